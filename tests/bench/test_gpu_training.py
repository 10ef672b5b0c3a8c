"""Training's commands on the processor that stands for a GPU: figures, ends, and the ledger."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from bench.gpu import _packages, training
from bench.gpu._campaign import FIRST
from bench.gpu._stage import Budget, Stage
from bench.gpu.monokernel._ledger import Ledger
from bench.gpu.monokernel.run import main as monokernel
from bench.gpu.training import PARTS, REHEARSAL, journal, main
from monolane import _results
from monolane._results import Record


def stage(work: Path, seconds: float = 300.0) -> tuple[Stage, list[Record]]:
    records: list[Record] = []
    scale = replace(REHEARSAL, seconds=seconds)
    return Stage(scale, work, Budget(300.0), records.append), records


def put(monkeypatch: pytest.MonkeyPatch, end: Callable[[], None]) -> None:
    """Another end of each command."""
    monkeypatch.setattr("monolane.cli.main", end)


def test_each_command_is_measured_and_the_ledger_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    assert main(["--rehearse", "--out", str(out), "--work", str(work), "--commit", "abc"]) == 0
    (results,) = out.glob("*-training.json")
    document = json.loads(results.read_text())
    _results.validate_document(document)
    found = {x["name"]: x for x in document["records"]}
    for name in ("train", "sft", "distil"):
        assert found[name]["part"] == f"training:{name}"
        assert found[name]["tokens_per_s"] > 0
        # Two of the steps are timed; a line a step has a time between two.
        assert found[name]["runs"] == 2
    assert found["train"]["waited"] < 1
    assert found["forecast"]["memory_gb"] > 0
    assert found["forecast"]["step_gb"] > 0
    assert "| distil | **" in capsys.readouterr().out
    ledger = tmp_path / "ledger.json"
    Ledger.read().write(ledger)
    assert monokernel(["--fold", str(results), "--ledger", str(ledger)]) == 0
    parts = [part.name for part in PARTS if part.name != FIRST]
    assert parts == [x["part"] for x in Ledger.read().parts if x["part"].startswith("training:")]
    for name in parts:
        assert Ledger.read(ledger).state(name, "Emulated") == "done"


def test_a_command_is_asked_to_stop_and_told_apart_from_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    timers: list[tuple[float, Callable[[], None]]] = []

    class Timer(threading.Thread):
        """Lets the command itself say when its time is over."""

        def __init__(self, seconds: float, function: Callable[[], None]) -> None:
            super().__init__()
            timers.append((seconds, function))

        def cancel(self) -> None:
            self.join()

    def endless() -> None:
        sys.stderr.write("step 1: begun\nhalf of a line")
        try:
            timers[0][1]()
            for _ in range(300):  # 300 s is patience: the signal is there at once
                time.sleep(1)
        except KeyboardInterrupt:
            sys.exit(130)

    monkeypatch.setattr(training.threading, "Timer", Timer)
    inherited = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, inherited))
    put(monkeypatch, endless)
    here, _ = stage(tmp_path, seconds=90.0)
    words = list(sys.argv)
    assert [line for _, line in training.run_command(here, ["train"])] == ["step 1: begun"]
    assert sys.argv == words
    assert [seconds for seconds, _ in timers] == [90.0]
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN

    timers.clear()
    put(monkeypatch, lambda: timers[0][1]())  # before the command listens
    assert training.run_command(here, ["train"]) == []

    put(monkeypatch, lambda: sys.exit(130))  # nobody has asked
    here, records = stage(tmp_path)
    training.sft(here, "training:sft")
    assert "monolane sft: expected exit status 0, got 130" in records[0]["error"]


@pytest.mark.parametrize("status", [None, 0])
def test_a_signal_that_comes_after_the_end_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    class Timer(threading.Thread):
        """Its time is over as the command is."""

        def __init__(self, seconds: float, function: Callable[[], None]) -> None:
            super().__init__()
            self.function = function

        def cancel(self) -> None:
            self.function()

    def command() -> None:
        sys.stderr.write("step 1: done\n")
        if status is not None:
            sys.exit(status)

    monkeypatch.setattr(training.threading, "Timer", Timer)
    put(monkeypatch, command)
    words, handler = list(sys.argv), signal.getsignal(signal.SIGINT)
    here, _ = stage(tmp_path)
    assert [line for _, line in training.run_command(here, ["train"])] == ["step 1: done"]
    assert sys.argv == words
    assert signal.getsignal(signal.SIGINT) == handler


def test_too_few_steps_are_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, lambda: sys.stderr.write("step 1: a\nstep 2: b\nstep 3: c\n") and None)
    here, records = stage(tmp_path)
    training.distil(here, "training:distil")
    assert records[0]["not_measured"] == "3 steps were done in its time, and 3 are not timed"
    assert "tokens_per_s" not in records[0]


def test_the_first_steps_and_events_are_left_out(tmp_path: Path) -> None:
    lines = [{"step": 0, "event": "start"}, *({"step": i, "loss": 1.0} for i in range(1, 6))]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    assert [x["step"] for x in journal(tmp_path)] == [4, 5]


def test_what_the_machine_lacks_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "a-1-py3-none-any.whl", "w") as archive:
        archive.writestr("carried_package_of_a_test.py", "found = True\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert not _packages.provide(tmp_path, tmp_path / "site"), "nothing is missing here"
    assert not (tmp_path / "site").exists()
    monkeypatch.setattr(_packages, "find_spec", lambda name: None)
    assert _packages.provide(tmp_path, tmp_path / "site")
    assert sys.path[0] == str(tmp_path / "site")
    assert (tmp_path / "site" / "carried_package_of_a_test.py").is_file()
