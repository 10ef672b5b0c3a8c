"""The boards are read back with their own readers, in files."""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import MissingExtraError
from monolane.train._loggers import BOARD, TensorBoard, WandB
from monolane.train._record import StepRecord


def record(step: int, loss: float = 2.5, mfu: float | None = None) -> StepRecord:
    return StepRecord(step, loss, 0.001, 0.7, 1e-3, step * 256, 1000.0, mfu, 0.256)


def _read(folder: Path) -> Any:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / BOARD))
    reader.Reload()
    return reader


def _scalars(reader: Any, name: str) -> list[tuple[int, float]]:
    return [(point.step, pytest.approx(point.value)) for point in reader.Scalars(name)]


def test_tensorboard_reads_every_figure(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoard(tmp_path, start=0)
    board.step(replace(record(1, mfu=0.25), waited=0.125, memory=3 << 30, reserved=5 << 30))
    board.validation(1, {"bits_per_byte/web": 1.25})
    board.event(1, "checkpoint", "kept")
    board.close()
    reader = _read(tmp_path)
    assert _scalars(reader, "train/loss") == [(1, 2.5)]
    assert _scalars(reader, "train/z_loss") == [(1, 0.001)]
    assert _scalars(reader, "train/tokens") == [(1, 256)]
    assert _scalars(reader, "speed/mfu") == [(1, 0.25)]
    assert _scalars(reader, "speed/waited_for_rows") == [(1, 0.125)]
    assert _scalars(reader, "memory/peak_bytes") == [(1, 3 << 30)]
    assert _scalars(reader, "memory/reserved_bytes") == [(1, 5 << 30)]
    assert _scalars(reader, "validation/bits_per_byte/web") == [(1, 1.25)]
    assert "event/checkpoint/text_summary" in reader.Tags()["tensors"]


def test_steps_that_are_done_again_replace_what_was_shown(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoard(tmp_path, start=0)
    for step in (1, 2, 3, 4):
        board.step(record(step, loss=float(step)))
    board.step(record(3, loss=30.0))  # a rollback
    board.close()
    board = TensorBoard(tmp_path, start=2)  # a restart
    board.step(record(3, loss=300.0))
    board.close()
    assert _scalars(_read(tmp_path), "train/loss") == [(1, 1.0), (2, 2.0), (3, 300.0)]


def test_a_checkpoint_is_on_disk_before_the_writer_is_closed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoard(tmp_path, start=0)
    for step in range(1, 301):  # a thread writes them, as it finds the time
        board.step(record(step))
    board.event(300, "checkpoint", "")
    assert len(_read(tmp_path).Scalars("train/loss")) == 300  # a kill loses nothing that is kept
    board.close()


# What a tensorboard does whose protobuf another package has replaced by an older one.
TOO_NEW = """
from google.protobuf import runtime_version
runtime_version.ValidateProtobufRuntimeVersion(
    runtime_version.Domain.PUBLIC, 99, 0, 0, "", "tensorboard/compat/proto/event.proto"
)
"""


# Commands one after the other, in one process, as each would load torch: how each ends, and says.
COMMANDS = """
import contextlib, io, json, sys
from monolane.cli import main

ends = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["monolane", *words]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main()
        except SystemExit as end:
            ends.append([end.code, said.getvalue()])
print(json.dumps(ends))
"""


def test_a_board_that_cannot_be_opened_leaves_nothing_behind(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    proto = tmp_path / "path" / "tensorboard" / "compat" / "proto"
    proto.mkdir(parents=True)
    for folder in (proto, proto.parent, proto.parent.parent):
        (folder / "__init__.py").write_text("__version__ = '2.21.0'\ntf = None\n")
    (proto / "event_pb2.py").write_text(TOO_NEW)
    (tmp_path / "chats.jsonl").write_text("")
    places = {"OUT": tmp_path / "out", "CHATS": tmp_path / "chats.jsonl"}
    commands = ["train tiny OUT", "launch tiny OUT", "train demo OUT", "sft demo CHATS OUT"]
    words = [[str(places.get(word, word)) for word in each.split()] for each in commands]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(words)],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "path")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    assert len(ends) == len(commands)
    for command, (code, said) in zip(commands, ends, strict=True):
        assert code == 1, command
        expected = "expected a tensorboard that this environment's protobuf runs, got: "
        assert expected in said, (command, said)
        assert "gencode 99.0.0" in said, command
        assert "pip install 'tensorboard<2.21' 'setuptools<82'" in said, command
    assert {path.name for path in tmp_path.iterdir()} == {"path", "chats.jsonl"}


def test_wandb_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # not installed
    with pytest.raises(MissingExtraError, match=r"pip install 'monolane\[wandb\]'"):
        WandB(tmp_path, "project", {})


def test_wandb_keeps_one_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    ids = []
    for start in (0, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # W&B's own
            board = WandB(tmp_path, "monolane-test", {"seed": 0})
            ids.append(board._run.id)
            board.step(record(start + 1))
            board.validation(start + 1, {"bits_per_byte": 1.5})
            board.event(start + 1, "rollback", "rows 0 to 7 are left out")
            board.close()
    wandb.teardown()  # its own process writes out what it holds
    assert ids[0] == ids[1] == (tmp_path / "wandb-id").read_text().strip()
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert len(folders) == 2  # of one run: wandb sync puts them together
    for folder in folders:
        (log,) = folder.glob("*.wandb")
        for name in (b"train/loss", b"validation/bits_per_byte", b"rows 0 to 7 are left out"):
            assert name in log.read_bytes()
