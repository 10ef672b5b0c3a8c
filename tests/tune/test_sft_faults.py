"""A fine-tuning to which something happens: what is kept, what is said, what is never written."""

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from monolane.errors import CheckpointError, TextError, TrainingError
from monolane.model import read_config
from monolane.train._lock import locked
from monolane.tune import SftRecipe, _sft, chat_encoder, prepare_material, tune_folder
from monolane.tune._run_state import newest_checkpoint
from monolane.tune._trainer_callback import Watch

from .conftest import write_chats
from .test_sft import CHATS, RECIPE, equal

pytest.importorskip("accelerate", reason="needs the extra 'sft'")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_chats(tmp_path / "chats.jsonl", CHATS)


def events(run: Path) -> list[tuple[int, str]]:
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [(line["step"], line["event"]) for line in lines if "event" in line]


def test_a_signal_keeps_any_step_and_a_damaged_checkpoint_is_passed_over(
    chat_model: Path, data: Path, tmp_path: Path
) -> None:
    tune_folder(chat_model, data, tmp_path / "whole", RECIPE, save_every=100)

    def ask(step: int, logs: dict[str, float]) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    out, run = tmp_path / "out", tmp_path / "out.run"
    with pytest.raises(KeyboardInterrupt):
        tune_folder(chat_model, data, out, RECIPE, save_every=2, report=ask)
    assert events(run)[-1] == (4, "stop")  # asked after step 3 was done, it ended step 4
    assert not out.exists()
    optimizer = run / "checkpoint-4" / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-50])
    with locked(run / "attempts" / "node-0.lock"), pytest.raises(TrainingError, match="nobody to"):
        tune_folder(chat_model, data, out, RECIPE, resume=True)
    tune_folder(chat_model, data, out, RECIPE, resume=True, save_every=100)
    assert (2, "damaged") in events(run)
    assert equal(out, tmp_path / "whole")
    # The Trainer goes on with the intervals that the checkpoint names; the damaged one is new.
    assert {path.name for path in run.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-6"}
    assert newest_checkpoint(run) == (run / "checkpoint-6", {})
    (run / "checkpoint-4" / "model.safetensors").unlink()
    (run / "checkpoint-6" / "trainer_state.json").write_text("")
    with pytest.raises(CheckpointError, match="those after 4, 6 steps are damaged; put back a"):
        newest_checkpoint(run)


def spoil(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """Make the gradients of these steps, counted from 1, infinite."""
    judge = Watch.on_pre_optimizer_step

    def spoiled(self: Watch, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 in steps:
            next(iter(kwargs["model"].parameters())).grad.fill_(float("inf"))
        judge(self, args, state, control, **kwargs)

    monkeypatch.setattr(Watch, "on_pre_optimizer_step", spoiled)


def test_a_gradient_that_is_not_finite_is_left_out(
    chat_model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, {2, 3, 4, 6})
    tuned = tune_folder(chat_model, data, tmp_path / "out", RECIPE)
    assert all(map(torch.isfinite, map(torch.tensor, tuned.losses)))
    skipped = [step for step, kind in events(tmp_path / "out.run") if kind == "skipped"]
    assert skipped == [2, 3, 4, 6]


def test_weights_that_are_not_finite_are_never_written(
    chat_model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        spoil(patch, {1, 2, 3, 4})
        with pytest.raises(TrainingError, match="step 4: the gradient is not finite, 4 times in"):
            tune_folder(chat_model, data, out, RECIPE)
    assert not out.exists()

    def broken(*_: Any) -> tuple[Any, list[float], list[float]]:
        model = torch.nn.Linear(2, 2)
        model.weight.data[0, 0] = torch.nan
        return model, [1.0], [1.0]

    monkeypatch.setattr(_sft, "_trained", broken)
    with pytest.raises(TrainingError, match="weight: expected finite weights, found NaN"):
        tune_folder(chat_model, data, tmp_path / "other", RECIPE)
    assert not (tmp_path / "other").exists()


SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"type": "function", "function": {"name": "now", "arguments": {}}}
CALLING = {"role": "assistant", "content": "wait", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("messages", "tools", "message"),
    [
        ([SYSTEM, *CHATS[0]], None, "message 0: the chat template leaves out the content of a mes"),
        ([CHATS[0][0], CALLING], None, "message 1: .*leaves out the tool calls of a message of 'a"),
        (CHATS[0], [CALL], "tools: the chat template leaves them out"),
    ],
)
def test_what_the_template_leaves_out_ends_the_command(
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    message: str,
    chat_model: Path,
    tmp_path: Path,
) -> None:
    data = tmp_path / "chats.jsonl"
    data.write_text(json.dumps({"messages": messages, "tools": tools}) + "\n")
    with pytest.raises(TextError, match=rf"chats.jsonl, line 1: {message}"):
        tune_folder(chat_model, data, tmp_path / "out", RECIPE)
    assert not (tmp_path / "out.run").exists()


def test_a_tokenizer_of_another_model_is_refused(chat_model: Path, data: Path) -> None:
    config = read_config(chat_model)
    material = prepare_material(data, chat_encoder(chat_model, config), 32, RECIPE)
    _sft._check_ids(material, config, chat_model)
    other = dataclasses.replace(config, vocab_size=100)
    with pytest.raises(
        TextError, match="token ids below vocab_size = 100, but its tokenizer gives"
    ):
        _sft._check_ids(material, other, chat_model)


def test_held_out_chats_are_scored_and_not_learnt(chat_model: Path, tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "x y"}]
        for i in range(12)
    ]
    data = write_chats(tmp_path / "chats.jsonl", chats)
    recipe = dataclasses.replace(RECIPE, held_out=0.4, evaluate_every=3, packing=False)
    tuned = tune_folder(chat_model, data, tmp_path / "out", recipe)
    assert tuned.material.chats + len(tuned.material.held_out) == 12
    assert 0 < len(tuned.material.held_out) < 12
    lines = map(json.loads, (tmp_path / "out.run" / "log.jsonl").read_text().splitlines())
    scores = {x["step"]: x["validation"]["nats_per_token"] for x in lines if "validation" in x}
    assert list(scores) == [3, 6]
    assert 0 < scores[6] < scores[3]
    with pytest.raises(TextError, match="expected chats to hold out, found none among 12"):
        tune_folder(chat_model, data, tmp_path / "b", SftRecipe(held_out=1e-9, context=32))
