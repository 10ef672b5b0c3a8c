"""The journal keeps each step once, and whoever reads along is told everything once."""

import json
from collections.abc import Mapping
from pathlib import Path

from monolane.train._journal import Follower, Journal, last_checkpoint, last_step, read_journal
from monolane.train._record import Observers, StepRecord


def record(step: int, loss: float = 2.5, mfu: float | None = None) -> StepRecord:
    return StepRecord(step, loss, 0.001, 0.7, 1e-3, step * 256, 1000.0, mfu, 0.256)


class Told:
    """Observer that remembers."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def step(self, record: StepRecord) -> None:
        self.calls.append(record)

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        self.calls.append((step, dict(scores)))

    def event(self, step: int, kind: str, text: str) -> None:
        self.calls.append((step, kind, text))

    def close(self) -> None:
        self.calls.append("closed")


def _steps(folder: Path) -> list[int]:
    return [line["step"] for line in read_journal(folder) if "loss" in line]


def test_one_line_per_step_validation_and_event(tmp_path: Path) -> None:
    journal = Journal(tmp_path, start=0)
    journal.step(record(1, mfu=0.25))
    journal.validation(1, {"bits_per_byte": 1.25, "bits_per_byte/web": 1.25})
    journal.event(1, "checkpoint", "kept")
    journal.step(record(2, loss=float("nan")))
    journal.close()
    step, scores, event, broken = (
        json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()
    )
    assert step == {
        "step": 1,
        "loss": 2.5,
        "z_loss": 0.001,
        "norm": 0.7,
        "learning_rate": 1e-3,
        "tokens": 256,
        "tokens_per_s": 1000.0,
        "mfu": 0.25,
        "seconds": 0.256,
        "waited": 0.0,
    }
    assert scores == {"step": 1, "validation": {"bits_per_byte": 1.25, "bits_per_byte/web": 1.25}}
    assert {**event, "time": ""} == {"step": 1, "event": "checkpoint", "text": "kept", "time": ""}
    assert broken["loss"] != broken["loss"]  # NaN
    assert (last_step(tmp_path), last_checkpoint(tmp_path)) == (2, 1)


def test_a_resumed_run_replaces_the_steps_that_it_does_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, start=0)
    for step in range(1, 6):
        journal.step(record(step))
    journal.close()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')  # killed in mid-write
    assert last_step(tmp_path) == 5
    journal = Journal(tmp_path, start=3)
    journal.step(record(4, loss=2.0))
    journal.close()
    assert _steps(tmp_path) == [1, 2, 3, 4]


def test_before_a_run_there_is_nothing(tmp_path: Path) -> None:
    assert (last_step(tmp_path), last_checkpoint(tmp_path)) == (0, 0)
    Follower(tmp_path, Told()).poll()


def test_a_follower_tells_what_the_journal_was_told(tmp_path: Path) -> None:
    first, second = Told(), Told()
    follower = Follower(tmp_path, second)
    both = Observers([Journal(tmp_path, start=0), first])
    both.event(0, "start", "2 processes")
    follower.poll()
    both.step(record(1, mfu=0.5))
    both.validation(1, {"bits_per_byte": 2.0})
    follower.poll()
    follower.poll()
    both.step(record(2))
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')  # half a line, so far
    follower.poll()
    both.close()
    assert first.calls == [*second.calls, "closed"]


def test_a_follower_tells_nothing_twice_after_a_restart(tmp_path: Path) -> None:
    told = Told()
    follower = Follower(tmp_path, told)
    journal = Journal(tmp_path, start=0)
    journal.event(0, "start", "")
    for step in (1, 2, 3):
        journal.step(record(step))
        if step == 2:
            journal.event(2, "checkpoint", "")
    journal.close()
    follower.poll()
    before = len(told.calls)
    journal = Journal(tmp_path, start=2)
    follower.poll()  # it was cut, and the run has not said anything yet
    assert len(told.calls) == before
    journal.event(2, "resume", "")
    journal.step(record(3, loss=1.0))
    journal.close()
    follower.poll()
    assert told.calls[before:] == [(2, "resume", ""), record(3, loss=1.0)]


def test_a_follower_may_read_over_what_is_old(tmp_path: Path) -> None:
    journal, told = Journal(tmp_path, start=0), Told()
    journal.event(0, "start", "")
    follower = Follower(tmp_path, told)
    follower.poll(show=False)
    journal.step(record(1))
    follower.poll()
    journal.close()
    assert told.calls == [record(1)]
