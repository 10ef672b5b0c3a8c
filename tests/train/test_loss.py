import pytest
import torch

from monolane.data import IGNORED
from monolane.train._trainer import summed_losses


def test_sums_are_those_of_torch() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 7) * 3
    targets = torch.randint(0, 7, (2, 5))
    targets[0, 3:] = IGNORED
    nats, squares = summed_losses(logits, targets)
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    torch.testing.assert_close(nats, expected)
    kept = logits[targets != IGNORED].logsumexp(-1)
    torch.testing.assert_close(squares, kept.square().sum())


def test_16_bits_are_widened_first() -> None:
    logits = torch.full((1, 1, 1000), 8.0, dtype=torch.bfloat16)
    nats, _ = summed_losses(logits, torch.zeros(1, 1, dtype=torch.long))
    assert nats.dtype == torch.float32
    assert nats.item() == pytest.approx(6.907755, abs=1e-5)  # ln 1000, which bfloat16 cannot hold


def test_what_is_ignored_gives_no_gradient() -> None:
    logits = torch.randn(1, 3, 4, requires_grad=True)
    nats, squares = summed_losses(logits, torch.tensor([[1, IGNORED, 2]]))
    (nats + squares).backward()
    assert logits.grad is not None
    assert logits.grad[0, 1].eq(0).all()
    assert logits.grad[0, 0].ne(0).all()
