"""The mixed exchange: the dense model at one end, the plain delayed one at the other."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from monolane.engine import Engine, SamplingParams
from monolane.errors import ConfigError, TextError
from monolane.hf import LaneformerForCausalLM
from monolane.model import read_config
from monolane.tune import (
    AnnealRecipe,
    LoraRecipe,
    Windows,
    annealed,
    distil_folder,
    heal,
    held_out_loss,
    layer_share,
    retrofit_folder,
)

Make = Callable[..., Path]


@pytest.fixture
def folders(llama: Make, tmp_path: Path) -> tuple[Path, Path]:
    """The same weights without a delay and with one of a layer."""
    source = llama()
    dense, delayed = tmp_path / "dense4", tmp_path / "delayed4"
    retrofit_folder(source, dense, lanes=4, delay=0)
    retrofit_folder(source, delayed, lanes=4, delay=1)
    return dense, delayed


def load(folder: Path) -> LaneformerForCausalLM:
    return LaneformerForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(40)[None]
    with torch.no_grad():
        found: torch.Tensor = model(ids, use_cache=False).logits
    return found


def test_the_ends_are_the_two_models_to_the_bit(folders: tuple[Path, Path]) -> None:
    dense, delayed = map(load, folders)
    student = load(folders[1])
    with annealed(student, "together") as annealing:
        assert torch.equal(logits(student), logits(dense))
        annealing.advance(1.0)
        assert torch.equal(logits(student), logits(delayed))
        annealing.advance(0.5)
        between = logits(student)
    assert torch.equal(logits(student), logits(delayed))
    assert list(student.state_dict()) == list(delayed.state_dict())
    for end in (dense, delayed):
        assert (between - logits(end)).abs().max() > 0.1


def test_half_way_is_the_mean_of_the_two_exchanges(folders: tuple[Path, Path]) -> None:
    student = load(folders[1])
    o, late = torch.randn(4, 1, 3, 8), torch.randn(4, 1, 3, 8)
    with annealed(student, "together") as annealing:
        annealing.advance(0.25)
        layer = student.model.layers[2]
        expected = 0.75 * o.sum(0) + 0.25 * torch.stack(
            [o[lane] + sum(late[j] for j in range(4) if j != lane) for lane in range(4)]
        )
        torch.testing.assert_close(layer.mlp_reduce(o, late), expected)
        first = student.model.layers[0]  # before the delay: no exchange, sqrt(4)
        torch.testing.assert_close(first.attention_reduce(o, None), 0.75 * o.sum(0) + 0.25 * 2 * o)


def test_the_orders() -> None:
    def shares(order: Any, progress: float) -> list[float]:
        return [layer_share(order, i, 4, progress) for i in range(4)]

    assert shares("together", 0.3) == [0.3] * 4
    assert shares("from_top", 0.375) == [0, 0, 0.5, 1]
    assert shares("from_bottom", 0.375) == [1, 0.5, 0, 0]
    assert shares("at_once", 0.0) == [1.0] * 4
    for order in ("together", "from_top", "from_bottom"):
        assert shares(order, 0.0) == [0.0] * 4
        assert shares(order, 1.0) == shares(order, 1.5) == [1.0] * 4


def test_training_heals_what_the_delay_broke(folders: tuple[Path, Path]) -> None:
    """A random teacher, but a teacher: its own samples are the text."""
    teacher, student = map(load, folders)
    start = torch.randint(0, 320, (64, 1))
    ids = teacher.generate(
        start, max_new_tokens=47, do_sample=True, pad_token_id=0, eos_token_id=None
    )
    windows = Windows(ids.flatten().numpy().astype(np.int64), 16, seed=0)
    recipe = AnnealRecipe(steps=60, rows_per_step=8, context=16, peak_lr=3e-3)
    shares = []
    healed = heal(teacher, student, windows, recipe, lambda step, loss, share: shares.append(share))
    assert healed.source < healed.after < healed.at_once
    assert healed.after - healed.source < 0.7 * (healed.at_once - healed.source)
    assert shares[0] < 0.05
    assert shares[29] == shares[-1] == 1
    assert held_out_loss(student, windows) == healed.after  # the plain model, nothing mixed in it


def test_the_folder_is_a_plain_laneformer(folders: tuple[Path, Path], tmp_path: Path) -> None:
    dense, delayed = folders
    text = tmp_path / "text.py"
    text.write_text(Path(__file__).read_text())
    recipe = AnnealRecipe(steps=3, rows_per_step=2, context=32, order="from_top")
    out = tmp_path / "out"
    healed = distil_folder(dense, delayed, text, out, recipe)
    assert len(healed.curve) == 3
    assert read_config(out) == read_config(delayed)
    assert f"{healed.after:.3f} at the end" in (out / "README.md").read_text()
    with Engine.load(out, "cpu") as engine:
        assert engine.generate("def", SamplingParams(max_tokens=3, ignore_eos=True)).token_ids
    (delayed / "tokenizer.json").unlink()
    with pytest.raises(TextError, match="expected a tokenizer.json"):
        distil_folder(dense, delayed, text, tmp_path / "other", recipe)


def test_low_rank_updates_alone_are_trained(folders: tuple[Path, Path], tmp_path: Path) -> None:
    dense, delayed = folders
    text = tmp_path / "text.py"
    text.write_text(Path(__file__).read_text())
    lora = LoraRecipe(rank=2, alpha=4.0)
    recipe = AnnealRecipe(steps=4, rows_per_step=2, context=32, peak_lr=1e-2, lora=lora)
    healed = distil_folder(dense, delayed, text, tmp_path / "out", recipe)
    assert "low-rank updates of rank 2 alone." in (tmp_path / "out" / "README.md").read_text()
    before, after = load(delayed).state_dict(), load(tmp_path / "out").state_dict()
    assert list(before) == list(after)
    for name, weight in before.items():
        changed = after[name] - weight
        if name.rsplit(".", 2)[-2] in lora.matrices:  # a stack: rank 2 in each lane, but rounded
            values = torch.linalg.svdvals(changed)
            assert values[:, 0].min() > 0, name
            assert (values[:, 2] < 1e-4 * values[:, 0]).all(), name
        else:
            assert not changed.any(), name
    assert len(healed.curve) == 4


def test_low_rank_updates_go_on_to_the_same_bits(folders: tuple[Path, Path]) -> None:
    windows = Windows(np.arange(2000) % 320, 16, seed=0)
    recipe = AnnealRecipe(
        steps=6, rows_per_step=2, context=16, lora=LoraRecipe(rank=2, alpha=4.0), peak_lr=1e-2
    )

    class Once:
        """Keeps the state after three steps, and ends there."""

        kept: Any = None

        def after(self, step: int, last: bool, state: Callable[[], Any]) -> None:
            if step == 3 and self.kept is None:
                self.kept = copy.deepcopy(state())
                raise KeyboardInterrupt

    whole, broken, resumed = (load(folders[1]) for _ in range(3))
    heal(load(folders[0]), whole, windows, recipe)
    keeper: Any = Once()
    with pytest.raises(KeyboardInterrupt):
        heal(load(folders[0]), broken, windows, recipe, keeper=keeper)
    assert all(weight.requires_grad for weight in broken.parameters())
    heal(load(folders[0]), resumed, windows, recipe, keeper=keeper, state=keeper.kept)
    first = load(folders[1]).state_dict()
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
        if ".w1." in name:
            assert not torch.equal(weight, first[name])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("order", "sideways", "order: expected one of 'together', 'from_top'"),
        ("objective", "guess", "objective: expected one of 'distil', 'finetune'"),
        ("anneal_share", 0.0, "anneal_share: expected more than 0"),
        ("steps", 0, "steps: expected more than 0"),
        ("context", 1, "context: expected at least 2, got 1"),
        ("decay_share", 0.99, "expected warmup . decay within"),
    ],
)
def test_recipes_that_are_none(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AnnealRecipe(**{field: value})
