"""processor.cpp, which trains the delay study's size for processors, computes what torch does."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs monolane[train]")
if not shutil.which("g++"):
    pytest.skip("needs g++", allow_module_level=True)

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from studies.delay import processor  # noqa: E402
from studies.delay.model import logits_of, make_model, nats_of  # noqa: E402
from studies.delay.sizes import SIZES, VARIANTS  # noqa: E402

# A sum of float32 values of up to 1 in size, a few hundred of them: some 2^-24 each, added up.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def gradients(function: Callable[..., Any], *inputs: Any, seed: int = 0) -> list[Any]:
    """What a function gives, and its gradients by its inputs, under weights of the outputs."""
    inputs = tuple(x.detach().clone().requires_grad_() for x in inputs)
    y = function(*inputs)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
    (y * weights.to(y.dtype)).sum().backward()
    return [y.detach(), *(x.grad for x in inputs)]


@pytest.mark.parametrize("width", processor.WIDTHS)
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 17, 256, 1023, 1024])
def test_attention_and_its_gradients(tokens: int, width: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    heads = [torch.randn(2, 2, tokens, width, generator=generator) for _ in range(3)]
    heads[0][:, :, -1] *= 30  # one key has nearly all of the weight
    got = gradients(lambda q, k, v: processor.attention(q, k, v, width**-0.5)[0], *heads)
    exact = gradients(
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        *(x.double() for x in heads),
    )
    for one, other in zip(got, exact, strict=True):
        # Scores of up to some hundreds, whose roundings stand in exponents.
        torch.testing.assert_close(one.double(), other, rtol=2e-4, atol=2e-4)


def test_heads_that_lie_otherwise_in_memory_are_read_as_they_are() -> None:
    q, k, v = (torch.randn(2, 9, 3, 8).transpose(1, 2) for _ in range(3))
    assert not q.is_contiguous()
    same = [x.contiguous() for x in (q, k, v)]
    for one, other in zip(
        gradients(lambda *x: processor.attention(*x, 0.3)[0], q, k, v),
        gradients(lambda *x: processor.attention(*x, 0.3)[0], *same),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_cross_entropy_and_its_gradient() -> None:
    logits = 5 * torch.randn(3, 7, 501, generator=torch.Generator().manual_seed(1))
    logits[0, 0] = -1e4
    logits[0, 0, 17] = 1e4  # certain
    targets = torch.randint(501, (3, 7), generator=torch.Generator().manual_seed(2))
    targets[0, 0] = 17
    got = gradients(lambda x: processor.summed_nats(x, targets), logits)
    exact = gradients(
        lambda x: torch.nn.functional.cross_entropy(
            x.flatten(0, 1), targets.flatten(), reduction="sum"
        ),
        logits.double(),
    )
    for one, other in zip(got, exact, strict=True):
        torch.testing.assert_close(one.double(), other, **CLOSE)


def test_a_loss_that_is_not_finite_is_seen() -> None:
    for wrong in (float("nan"), float("inf")):
        logits = torch.zeros(1, 2, 40)
        logits[0, 1, 3] = wrong
        nats = processor.summed_nats(logits, torch.tensor([[1, 3]]))
        assert not torch.isfinite(nats)


def test_what_is_not_computed_is_refused() -> None:
    def heads(tokens: int, width: int) -> list[Any]:
        return [torch.randn(1, 1, tokens, width) for _ in range(3)]

    for tokens, width in ((8, 5), (1025, 8)):
        with pytest.raises(ValueError, match="expected heads of .4, 8, 16. and rows of at most"):
            processor.attention(*heads(tokens, width), 1.0)
    with pytest.raises(TypeError, match="expected float32, got torch.float64"):
        processor.attention(*(x.double() for x in heads(8, 8)), 1.0)
    with pytest.raises(TypeError, match="expected float32, got torch.bfloat16"):
        processor.summed_nats(torch.zeros(1, 2, 8).bfloat16(), torch.zeros(1, 2, dtype=torch.int64))


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", ["dense", "delay 2"])
def test_a_model_learns_the_same_by_it(
    variant: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = replace(SIZES["tiny"], dtype="float32")
    ids = torch.randint(size.vocab, (2, 33), generator=torch.Generator().manual_seed(0))
    found = []
    for attention in ("sdpa", "narrow"):
        one = replace(size, attention=attention)
        model = make_model(one, VARIANTS[variant], 3)
        if compiled and attention == "narrow":
            from studies.delay.training import compile_layers

            compile_layers(model)
        loss = nats_of(one, False)(logits_of(model, ids[:, :-1]), ids[:, 1:])
        loss.backward()
        found.append([loss.detach(), *(x.grad for x in model.parameters())])
    for torch_s, its in zip(*found, strict=True):
        torch.testing.assert_close(its, torch_s, rtol=1e-4, atol=1e-4)
