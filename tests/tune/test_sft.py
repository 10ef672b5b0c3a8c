"""Fine-tuning end to end: it learns, resumes to the bit, and ends in a folder that chats."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from monolane._schedule import Wsd
from monolane.engine import Engine, SamplingParams
from monolane.errors import CheckpointError, ConfigError, MissingExtraError, TextError
from monolane.hf import LaneformerForCausalLM
from monolane.model import Checkpoint, Quantization, quantize_folder, read_config
from monolane.text import ChatTemplate
from monolane.tune import LoraRecipe, SftRecipe, _sft, chat_encoder, prepare_material, tune_folder
from monolane.tune._material import Row, row_arrays

from .conftest import DEMO, write_chats

pytest.importorskip("accelerate", reason="needs the extra 'sft'")

CHATS = [
    [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    for q, a in (("a", "one"), ("b", "two"), ("c", "def f(x):"), ("d", "x"), ("e f", "y z"))
]
RECIPE = SftRecipe(
    steps=6, rows_per_step=2, rows_at_once=1, context=32, peak_lr=1e-2, decay_share=0.34
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_chats(tmp_path / "chats.jsonl", CHATS)


def weights(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = Checkpoint.open(folder)
    return {name: checkpoint[name] for name in checkpoint}


def equal(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(np.array_equal(first[n], second[n]) for n in first)


def test_it_learns_its_chats_and_the_engine_says_them(
    chat_model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    recipe = dataclasses.replace(RECIPE, steps=60, packing=False)
    tuned = tune_folder(chat_model, data, out, recipe, save_every=100)
    assert len(tuned.losses) == tuned.steps == 60
    assert tuned.losses[-1] < 0.1 * tuned.losses[0]
    with Engine.load(out, "reference") as engine:
        for chat in CHATS:
            answer = engine.generate(chat[:1], SamplingParams(max_tokens=20))
            assert (answer.text, answer.finish_reason) == (chat[1]["content"], "stop")
    assert "after supervised fine-tuning" in (out / "README.md").read_text()
    marked = (tmp_path / "out.run" / "chat_template.training.jinja").read_text()
    assert "generation" in marked
    assert (out / "chat_template.jinja").read_text() == ChatTemplate.open(chat_model).source


class KilledError(Exception):
    pass


@pytest.mark.parametrize(
    "lora",
    [None, pytest.param(LoraRecipe(rank=2), marks=pytest.mark.slow)],
    ids=["all weights", "lora"],
)
def test_a_killed_run_resumes_to_the_bit(
    lora: LoraRecipe | None, chat_model: Path, data: Path, tmp_path: Path
) -> None:
    if lora:
        pytest.importorskip("peft")
    recipe = dataclasses.replace(RECIPE, lora=lora)
    whole = tune_folder(chat_model, data, tmp_path / "whole", recipe, save_every=2)

    def kill(step: int, logs: dict[str, float]) -> None:
        if step == 5:
            raise KilledError

    killed = tmp_path / "killed"
    with pytest.raises(KilledError):
        tune_folder(chat_model, data, killed, recipe, save_every=2, report=kill)
    assert not killed.exists()
    partial = tmp_path / "killed.run" / "checkpoint-6"  # as if killed while it was written
    partial.mkdir()
    (partial / "trainer_state.json").write_text('{"global_step": 6, ')
    with pytest.raises(CheckpointError, match="found one; continue it with --resume"):
        tune_folder(chat_model, data, killed, recipe)
    resumed = tune_folder(chat_model, data, killed, recipe, resume=True, save_every=2)
    assert resumed.losses == whole.losses[4:]
    assert equal(tmp_path / "whole", killed)
    assert not equal(chat_model, killed)


def test_a_resumed_run_is_the_one_that_began(chat_model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(CheckpointError, match="expected a run to resume, found none"):
        tune_folder(chat_model, data, out, RECIPE, resume=True)
    run = tmp_path / "out.run"
    run.mkdir(exist_ok=True)
    facts: dict[str, Any] = {"format": 2, "recipe": {}, "data": "", "model": []}
    (run / "run.json").write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match="recipe: expected what the run began with"):
        tune_folder(chat_model, data, out, RECIPE, resume=True)
    (run / "run.json").write_text(json.dumps(facts | {"format": 1}))  # of another order of rows
    with pytest.raises(CheckpointError, match="format: expected what the run began with"):
        tune_folder(chat_model, data, out, RECIPE, resume=True)


def test_a_finished_run_is_resumed_by_its_own_model_and_says_its_losses_again(
    chat_model: Path, data: Path, tmp_path: Path
) -> None:
    out, recipe = tmp_path / "out", dataclasses.replace(RECIPE, steps=2)
    tune_folder(chat_model, data, out, recipe)
    card = (out / "README.md").read_text()
    again = tune_folder(chat_model, data, out, recipe, resume=True, overwrite=True)
    assert not again.losses
    assert (out / "README.md").read_text() == card
    template = chat_model / "chat_template.jinja"
    template.write_text("x" + ChatTemplate.open(chat_model).source)
    with pytest.raises(CheckpointError, match="rows: expected what the run began with"):
        tune_folder(chat_model, data, out, recipe, resume=True, overwrite=True)
    template.unlink()
    path = next(chat_model.glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # another model of the same shapes
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="model: expected what the run began with"):
        tune_folder(chat_model, data, out, recipe, resume=True, overwrite=True)


def test_every_step_has_all_its_rows_and_every_pass_each_row_once(
    chat_model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 rows in steps of 2: the Trainer alone would end each pass with a step of one row."""
    read: list[bytes] = []
    collate = _sft._collate

    def noted(pad_id: int, rows: list[Row]) -> dict[str, torch.Tensor]:
        read.extend(chat.ids.tobytes() for row in rows for chat in row.chats)
        return collate(pad_id, rows)

    monkeypatch.setattr(_sft, "_collate", noted)
    recipe = dataclasses.replace(RECIPE, steps=None, epochs=3, packing=False)
    tuned = tune_folder(chat_model, data, tmp_path / "out", recipe)
    assert (tuned.steps, len(read)) == (8, 16)
    passes = [read[start : start + 5] for start in (0, 5, 10)]
    assert all(len(set(rows)) == 5 for rows in passes)
    assert passes[0] != passes[1]


def test_the_loss_is_the_mean_over_the_answers(
    chat_model: Path, data: Path, tmp_path: Path
) -> None:
    """The first step's loss, computed by hand: the rows it draws are all rows here."""
    recipe = dataclasses.replace(RECIPE, steps=1, rows_per_step=5, packing=False, warmup_share=0)
    tuned = tune_folder(chat_model, data, tmp_path / "out", recipe)
    encoder = chat_encoder(chat_model, read_config(chat_model))
    model = LaneformerForCausalLM.from_pretrained(chat_model, dtype=torch.float32)
    losses: list[float] = []
    for chat in CHATS:
        encoded = encoder.encode(chat)
        ids = torch.from_numpy(encoded.ids.astype(np.int64))
        with torch.no_grad():
            logits = model(ids[None]).logits[0].log_softmax(-1)
        losses += [-logits[i - 1, ids[i]].item() for i in np.flatnonzero(encoded.spoken)]
    assert len(losses) == tuned.material.spoken
    # The log rounds to four decimals.
    assert tuned.losses[0] == pytest.approx(sum(losses) / len(losses), abs=2e-4)


def test_bfloat16_products_train_float32_weights(
    chat_model: Path, data: Path, tmp_path: Path
) -> None:
    """Losses near those in float32, and not the same: eight bits of each factor are left."""
    exact = tune_folder(chat_model, data, tmp_path / "exact", dataclasses.replace(RECIPE, steps=2))
    recipe = dataclasses.replace(RECIPE, steps=2, precision="bfloat16")
    rough = tune_folder(chat_model, data, tmp_path / "rough", recipe)
    assert rough.losses[0] != exact.losses[0]
    assert rough.losses[0] == pytest.approx(exact.losses[0], rel=0.05)
    assert read_config(tmp_path / "rough").dtype == "float32"


def test_packed_chats_do_not_see_each_other(chat_model: Path, data: Path) -> None:
    recipe = dataclasses.replace(RECIPE, context=96)
    encoder = chat_encoder(chat_model, read_config(chat_model))
    material = prepare_material(data, encoder, 96, recipe)
    model = LaneformerForCausalLM.from_pretrained(chat_model, dtype=torch.float32).eval()
    assert len(material.rows) < material.chats
    arrays = row_arrays(material.rows, 0)
    with torch.no_grad():
        packed = model(
            input_ids=torch.from_numpy(arrays["input_ids"]),
            position_ids=torch.from_numpy(arrays["position_ids"]),
            use_cache=False,
        ).logits
        for row, logits in zip(material.rows, packed, strict=True):
            begin = 0
            for chat in row.chats:
                alone = model(torch.from_numpy(chat.ids.astype(np.int64))[None]).logits[0]
                found = logits[begin : begin + len(chat)]
                # The same sums, over masked zeros in between: rounding only.
                torch.testing.assert_close(found, alone, atol=2e-4, rtol=0)
                begin += len(chat)


def test_the_rate_is_that_of_the_schedule(chat_model: Path, data: Path, tmp_path: Path) -> None:
    rates: list[float] = []
    recipe = dataclasses.replace(RECIPE, steps=10, warmup_share=0.2, decay_share=0.4)
    tune_folder(
        chat_model,
        data,
        tmp_path / "out",
        recipe,
        report=lambda step, logs: rates.append(logs["learning_rate"] / 1e-2),
    )
    schedule = Wsd.of(10, 0.2, 0.4)
    assert (schedule.warmup, schedule.decay) == (2, 4)
    # No step of them is without an effect.
    assert rates == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])


def test_what_is_not_installed_is_named(
    chat_model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sft, "find_spec", lambda name: None if name == "peft" else object())
    recipe = dataclasses.replace(RECIPE, lora=LoraRecipe())
    with pytest.raises(MissingExtraError, match=r"pip install 'monolane\[sft\]'"):
        tune_folder(chat_model, data, tmp_path / "out", recipe)


def test_what_cannot_be_tuned(
    chat_model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(TextError, match="line 1: expected at most 8 tokens"):
        tune_folder(chat_model, data, out, dataclasses.replace(RECIPE, context=8))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="expected one process, got 2"):
        tune_folder(chat_model, data, out, RECIPE)
    monkeypatch.delenv("WORLD_SIZE")
    codes = tmp_path / "codes"
    quantize_folder(DEMO, codes, Quantization(8))
    with pytest.raises(ConfigError, match="expected float weights to tune, got 8-bit codes"):
        tune_folder(codes, data, out, RECIPE)
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="expected no such folder"):
        tune_folder(chat_model, data, out, RECIPE)
    assert not (tmp_path / "out.run").exists()
