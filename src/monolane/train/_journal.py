"""The journal of a run: one JSON line per step, validation and event, in ``log.jsonl``.

It is the run's memory: boards and the terminal only show what stands here, and the launcher reads
from it how far a run got. A line is written when it happens, so a killed run loses none but the
last; a run that goes on drops the lines of the steps that it will do again.

    {"step": 7, "loss": 2.5, ...}                          the fields of a StepRecord
    {"step": 7, "validation": {"bits_per_byte": 1.2}}
    {"step": 7, "event": "checkpoint", "text": "...", "time": "2026-01-31T12:00:00.000+00:00"}
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from monolane.errors import CheckpointError
from monolane.train._record import Observer, StepRecord

JOURNAL = "log.jsonl"


class Journal:
    """Observer that writes ``log.jsonl`` in a run's folder; ``start`` steps were done before."""

    def __init__(self, folder: Path, start: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / JOURNAL
        _cut(path, start)
        self._file = path.open("a", encoding="utf-8")

    def step(self, record: StepRecord) -> None:
        """Note a finished step."""
        fields = {name: value for name, value in asdict(record).items() if value is not None}
        self._write({name: _short(value) for name, value in fields.items()})

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        """Note the scores of a validation."""
        self._write({"step": step, "validation": {name: _short(scores[name]) for name in scores}})

    def event(self, step: int, kind: str, text: str) -> None:
        """Note what happened."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._write({"step": step, "event": kind, "text": text, "time": time})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


class Follower:
    """Reads the journal of a run that another process writes, and tells an observer."""

    def __init__(self, folder: Path, observer: Observer) -> None:
        self._path = folder / JOURNAL
        self._observer = observer
        self._at = 0  # bytes read so far
        self._file = -1  # inode
        self._told: set[bytes] = set()  # events and validations
        self._again = False  # whether what comes was told before the journal was cut
        self.steps = 0  # lines of steps that were passed on

    def poll(self, show: bool = True) -> bool:
        """Pass on the lines that came since the last call; without ``show``, read over them.

        Returns whether there were any.
        """
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return False
        if status.st_ino != self._file or status.st_size < self._at:
            self._again = self._file != -1  # a restarted run has cut it
            self._file, self._at = status.st_ino, 0
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            self._pass_on(line, show)
        return bool(whole)

    def _pass_on(self, text: bytes, show: bool) -> None:
        line = _parsed(self._path, text)
        if text in self._told:  # no two events have the same time
            return
        if self._again and line.get("event") not in ("start", "resume"):
            return
        self._again = False
        if "loss" in line:
            self.steps += 1
        else:
            self._told.add(text)
        if show:
            _tell(self._observer, line)


def read_journal(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's journal; none where there is no journal yet."""
    path = folder / JOURNAL
    if path.exists():
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
            if line.endswith(b"\n"):  # else it was killed in mid-write
                yield _parsed(path, line, number)


def last_step(folder: Path) -> int:
    """Return how many steps a run has done, as far as it knows; 0 where it has not begun."""
    return max((line["step"] for line in read_journal(folder) if "loss" in line), default=0)


def last_checkpoint(folder: Path) -> int:
    """Return the steps that the run's last checkpoint holds; 0 where there is none."""
    kept = [line["step"] for line in read_journal(folder) if line.get("event") == "checkpoint"]
    return kept[-1] if kept else 0


def _tell(observer: Observer, line: dict[str, Any]) -> None:
    if "event" in line:
        observer.event(line["step"], line["event"], line["text"])
    elif "validation" in line:
        observer.validation(line["step"], line["validation"])
    else:
        observer.step(StepRecord(**{"mfu": None, **line}))


def _short(value: float) -> float:
    """Round to what a reader can use; NaN and Inf stay, as Python's JSON spells them."""
    if isinstance(value, int) or not math.isfinite(value):
        return value
    return float(f"{value:.7g}")


def _cut(path: Path, start: int) -> None:
    """Drop the lines of steps that a resumed run will do again; replace the file in one step."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [
        line
        for number, line in enumerate(lines, 1)
        if line.endswith(b"\n") and _parsed(path, line, number)["step"] <= start
    ]
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(b"".join(kept))
    unfinished.replace(path)


def _parsed(path: Path, line: bytes, number: int = 0) -> dict[str, Any]:
    """Return what a line says; CheckpointError where it is none of ours."""
    try:
        found = json.loads(line)
        if isinstance(found, dict) and isinstance(found.get("step"), int):
            return found
    except ValueError:  # no JSON, or not in UTF-8
        pass
    where = f"{path}, line {number}" if number else f"{path}"
    raise CheckpointError(
        f"{where}: expected a line of a run's journal, got {line[:60]!r}; remove that line: the "
        "checkpoints do not need it"
    )
