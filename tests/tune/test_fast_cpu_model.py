"""The fast ways of a training step hold the numbers of the plain ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from monolane.errors import CheckpointError
from monolane.hf import LaneformerForCausalLM
from monolane.tune import BestTokens, Windows, retrofit_folder, swift
from monolane.tune import _divergence as fast
from monolane.tune import _teacher_topk as kept

Make = Callable[..., Path]
IDS = torch.arange(48).reshape(2, 24) * 5 % 320
# Two float64 evaluations of a few hundred sums of at most 320 terms in another order: 1e-16 each,
# of values and gradients up to some tens; a wrong term is 1e-3 and more.
TOLERANCE = {"rtol": 1e-10, "atol": 1e-11}


def load(folder: Path, dtype: torch.dtype = torch.float64) -> LaneformerForCausalLM:
    return LaneformerForCausalLM.from_pretrained(folder, dtype=dtype)


def gradients(model: Any) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


SHAPES: list[dict[str, Any]] = [
    {"delay": 1},
    {"delay": 1, "early": True, "head": "replicate"},
    {"delay": 0},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_step_has_the_plain_gradients(
    shape: dict[str, Any], tied: bool, llama: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast, "_CHUNK", 10)  # the last chunk is not full
    retrofit_folder(llama(tie_word_embeddings=tied), tmp_path / "out", lanes=4, **shape)
    model = load(tmp_path / "out").train()
    wanted_BCV = torch.randn(*IDS.shape, 320, dtype=torch.float64).log_softmax(-1)
    found_BCV = model(input_ids=IDS, use_cache=False).logits.log_softmax(-1)
    plain = functional.kl_div(found_BCV, wanted_BCV, log_target=True, reduction="none")
    plain = plain.sum(-1).mean()
    (3 * plain).backward()
    expected = gradients(model)
    logs_BCK, best_BCK = wanted_BCV.topk(320)
    with swift(model):
        loss = fast.divergence(model, IDS, best_BCK, logs_BCK)
        (3 * loss).backward()
        assert any("forward" in vars(module) for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())
    torch.testing.assert_close(loss, plain, **TOLERANCE)
    torch.testing.assert_close(gradients(model), expected, **TOLERANCE)


def test_the_rest_counts_as_one_token() -> None:
    logits_NV = torch.randn(7, 40, dtype=torch.float64) * 3
    logs_NK, ids_NK = (torch.randn(7, 40, dtype=torch.float64) * 2).log_softmax(1).topk(5)

    def lumped(logits_NV: Tensor) -> Tensor:
        q_NV = logits_NV.softmax(1)
        q_NK, p_NK = q_NV.gather(1, ids_NK), logs_NK.exp()
        q_rest, p_rest = 1 - q_NK.sum(1), 1 - p_NK.sum(1)
        parts = (p_NK * (logs_NK - q_NK.log())).sum(1) + p_rest * (p_rest / q_rest).log()
        return parts.sum()

    free_NV = logits_NV.clone().requires_grad_()
    expected = lumped(free_NV)
    expected.backward()  # type: ignore[no-untyped-call]
    loss = fast.to_gradient(logits_NV, ids_NK, logs_NK)
    torch.testing.assert_close(loss, expected.detach(), **TOLERANCE)
    torch.testing.assert_close(logits_NV, free_NV.grad, **TOLERANCE)


def test_a_student_that_is_sure_and_wrong_costs_much_but_not_everything() -> None:
    logits_NV = torch.zeros(1, 8)
    logits_NV[0, 7] = 1e4
    logs_NK = torch.tensor([[0.5, 0.5]]).log()
    loss = fast.to_gradient(logits_NV, torch.tensor([[0, 1]]), logs_NK)
    assert 80 < loss < 100
    assert torch.isfinite(logits_NV).all()


def test_the_teachers_best_are_computed_once(
    llama: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retrofit_folder(llama(), tmp_path / "one", lanes=1)
    teacher = load(tmp_path / "one", torch.float32).eval()
    windows = Windows(np.arange(16 * 40) * 7 % 320, 16, seed=0)
    folder, places = tmp_path / "best", np.array([3, 30, 3])
    ids, logs = BestTokens(folder, teacher, windows, 20).take(places)
    with torch.no_grad():
        all_BCV = teacher(torch.from_numpy(windows.train_RC[places])).logits.log_softmax(-1)
    # float32: some 6e-8 of each of a few dozen roundings of logits up to ten.
    torch.testing.assert_close(logs, all_BCV.gather(2, ids), rtol=0, atol=2e-5)
    torch.testing.assert_close(logs, all_BCV.topk(20).values, rtol=0, atol=2e-5)

    computed = []
    compute = BestTokens._compute
    monkeypatch.setattr(
        BestTokens, "_compute", lambda self, place: (computed.append(place), compute(self, place))
    )
    again = BestTokens(folder, teacher, windows, 20)
    assert torch.equal(again.take(places)[1], logs)
    assert computed == []
    with (folder / "logs").open("r+b") as file:  # window 30: 16 tokens of 20 in float32 each
        file.seek(30 * 16 * 20 * 4 + 5)
        file.write(b"\xff")
    assert torch.equal(again.take(places)[1], logs)
    assert computed == [30]
    with pytest.raises(CheckpointError, match="expected the best tokens of this teacher"):
        BestTokens(folder, teacher, windows, 21)
    with torch.no_grad():
        teacher.model.norm.scale += 1
    with pytest.raises(CheckpointError, match="expected the best tokens of this teacher"):
        BestTokens(folder, teacher, windows, 20)
    (folder / "sums").write_bytes(b"1")
    (folder / "facts.json").unlink()
    with pytest.raises(CheckpointError, match="sums: expected 152 bytes, found 1"):
        BestTokens(folder, teacher, windows, 20)


def test_chunks_of_the_head_do_not_show(
    llama: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retrofit_folder(llama(), tmp_path / "lanes", lanes=4)
    model = load(tmp_path / "lanes").eval()
    whole = kept.best_tokens(model, IDS, 9)
    monkeypatch.setattr(kept, "_ROWS_AT_ONCE", 11)
    for found, expected in zip(kept.best_tokens(model, IDS, 9), whole, strict=True):
        torch.testing.assert_close(found, expected)
