"""Products in bfloat16: as near to float32's as roundings let them be, where they are asked for."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from monolane.errors import BackendError, CheckpointError, ConfigError
from monolane.hf import LaneformerForCausalLM
from monolane.tune import (
    AnnealRecipe,
    BestTokens,
    Windows,
    distil_folder,
    divergence,
    heal,
    products_dtype,
    retrofit_folder,
    swift,
)
from monolane.tune._fast_cpu_model import _narrow_products

Make = Callable[..., Path]
CPU = torch.device("cpu")
LAYERS, STEPS = 3, 12
# A rounding to bfloat16, with 8 bits, moves a number by at most this share of it.
ROUNDING = 2.0**-9
# Roundings between ids and logits: in each layer those of norm, query, key, turned query, turned
# key, value, score, output, and of norm, gate, up, their product, output; and as many of weights.
# They are independent, so their shares add up by squares.
SHARE = ROUNDING * math.sqrt(LAYERS * 26)


def models(llama: Make, folder: Path) -> tuple[Any, Callable[[], Any], Windows]:
    source = llama()
    retrofit_folder(source, folder / "one", lanes=1)
    retrofit_folder(source, folder / "lanes", lanes=4, delay=1)

    def load(name: str) -> Any:
        return LaneformerForCausalLM.from_pretrained(folder / name, dtype=torch.float32)

    windows = Windows(np.random.default_rng(0).integers(320, size=60 * 32), 32, seed=0)
    return load("one").eval(), lambda: load("lanes"), windows


def gradients(model: Any, *step: Any, dtype: torch.dtype) -> tuple[float, torch.Tensor, set[str]]:
    with swift(model, dtype):
        loss = divergence(model, *step, dtype=dtype)
    loss.backward()  # type: ignore[no-untyped-call]
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    kinds = {str(p.grad.dtype) for p in model.parameters()}
    model.zero_grad()
    return loss.item(), found, kinds


def test_a_step_differs_by_roundings(llama: Make, tmp_path: Path) -> None:
    teacher, make, windows = models(llama, tmp_path)
    places = np.arange(8)
    best = BestTokens(tmp_path / "best", teacher, windows, 64).take(places)
    step = (torch.from_numpy(windows.train_RC[places]), *best)
    model = make()
    wide, expected, _ = gradients(model, *step, dtype=torch.float32)
    narrow, found, kinds = gradients(model, *step, dtype=torch.bfloat16)
    assert kinds == {"torch.float32"}  # what the optimiser sees
    assert narrow != wide  # a run in float32 after all would be equal
    # The loss by the logits has the gradient q - p, of a 1-norm of at most 2.
    most = model(step[0], use_cache=False).logits.abs().max().item()
    assert abs(narrow - wide) < 2 * SHARE * most
    # Backward, each of these products is rounded twice more.
    assert (found - expected).norm() < 2 * SHARE * expected.norm()


def test_the_way_of_a_gpu_differs_by_roundings(llama: Make, tmp_path: Path) -> None:
    """On this CPU: the same operations are narrowed there."""
    teacher, make, windows = models(llama, tmp_path)
    places = np.arange(8)
    best = BestTokens(tmp_path / "best", teacher, windows, 64).take(places)
    step = (torch.from_numpy(windows.train_RC[places]), *best)
    model = make()
    wide, expected, _ = gradients(model, *step, dtype=torch.float32)
    narrowed = make()
    _narrow_products(narrowed.model, torch.bfloat16)
    loss = divergence(narrowed, *step, dtype=torch.bfloat16)
    loss.backward()  # type: ignore[no-untyped-call]
    found = torch.cat([p.grad.flatten() for p in narrowed.parameters()])
    assert {p.grad.dtype for p in narrowed.parameters()} == {torch.float32}
    assert loss.item() != wide
    most = model(step[0], use_cache=False).logits.abs().max().item()
    assert abs(loss.item() - wide) < 2 * SHARE * most
    assert (found - expected).norm() < 2 * SHARE * expected.norm()


def test_the_curve_stays_with_that_of_float32(llama: Make, tmp_path: Path) -> None:
    teacher, make, windows = models(llama, tmp_path)
    curves = {}
    for precision in ("float32", "bfloat16"):
        recipe = AnnealRecipe(
            "at_once", steps=STEPS, rows_per_step=4, context=32, peak_lr=3e-3, precision=precision
        )
        dtype = products_dtype(recipe.precision, CPU)
        best = BestTokens(tmp_path / precision, teacher, windows, 64, dtype)
        healed = heal(teacher, make(), windows, recipe, best=best)
        curves[precision] = [loss for _, loss, _ in healed.curve]
    wide, narrow = map(np.array, curves.values())
    assert wide[-1] < 0.9 * wide[0]
    # Logits of teacher and student are each off by SHARE of their size. Rounded weights are the
    # same for all tokens, so nothing is averaged out. The loss by the logits has the gradient
    # q - p, whose norm is at most sqrt(2 loss) (Pinsker). An update is off by 2 SHARE of its size,
    # as its gradient is: so is all that was learnt.
    ids_BC = torch.from_numpy(windows.train_RC[:4])
    size = make()(ids_BC, use_cache=False).logits.std().item()
    bound = SHARE * (size * np.sqrt(2 * 2 * wide) + 2 * (wide[0] - wide).clip(0))
    assert (bound < 0.1 * wide).all()
    assert (np.abs(narrow - wide) < bound).all()
    assert (narrow != wide).all()


def test_a_run_goes_on_in_the_numbers_that_it_began_with(
    llama: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models(llama, tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("A lane hears the others late, and each of them hears it late too. " * 200)
    recipe = AnnealRecipe(steps=2, rows_per_step=2, context=32)
    places = (tmp_path / "one", tmp_path / "lanes", text, tmp_path / "out", recipe)

    def stop(step: int, loss: float, share: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    with pytest.raises(KeyboardInterrupt):
        distil_folder(*places, report=stop, device="cpu")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    with pytest.raises(CheckpointError, match="products: expected what the run began with"):
        distil_folder(*places, resume=True, device="cpu")


def test_auto_follows_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for avx, amx in ((False, False), (True, False), (False, True)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda avx=avx: avx)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx)
        fast = torch.bfloat16 if avx or amx else torch.float32
        assert products_dtype("auto", CPU) == fast
        assert products_dtype("float32", CPU) == torch.float32
        assert products_dtype("bfloat16", CPU) == torch.bfloat16
    with pytest.raises(ConfigError, match="precision"):
        AnnealRecipe(precision="half")  # type: ignore[arg-type]


@pytest.mark.parametrize("has_unit", [True, False])
def test_auto_follows_the_gpu(monkeypatch: pytest.MonkeyPatch, has_unit: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_unit)
    gpu = torch.device("cuda")
    assert products_dtype("auto", gpu) == (torch.bfloat16 if has_unit else torch.float32)
    assert products_dtype("float32", gpu) == torch.float32
    if has_unit:
        assert products_dtype("bfloat16", gpu) == torch.bfloat16
        return
    with pytest.raises(BackendError, match="expected auto or float32 on this GPU"):
        products_dtype("bfloat16", gpu)
