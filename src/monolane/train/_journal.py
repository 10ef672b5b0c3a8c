"""The journal of a run: one JSON line per step on disk, and progress on stderr.

On a terminal the progress is a bar; elsewhere it is a plain line now and then, so that a log file
of an unattended run stays readable. Standard output stays empty.
"""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_QUIET_SECONDS = 15.0  # between plain lines when stderr is not a terminal


class Journal:
    """Writes ``log.jsonl`` in a run's folder and shows where the run is."""

    def __init__(self, folder: Path, steps: int, start: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "log.jsonl"
        self._steps = steps
        self._start = start
        self._console = Console(stderr=True)
        self._shown = 0.0
        self._file: TextIO
        self._bar: Progress
        self._task: TaskID

    def __enter__(self) -> "Journal":
        _cut(self._path, self._start)
        self._file = self._path.open("a", encoding="utf-8")
        self._bar = Progress(
            TextColumn("train"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=self._steps, completed=self._start, note="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        self._file.close()

    def record(self, step: int, loss: float, rate: float, norm: float, tokens_per_s: float) -> None:
        """Note a finished step: loss in nats per token, gradient norm before clipping."""
        line = {
            "step": step,
            "loss": round(loss, 5),
            "learning_rate": rate,
            "gradient_norm": round(norm, 4),
            "tokens_per_s": round(tokens_per_s, 1),
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        note = f"loss {loss:.3f}  {tokens_per_s:,.0f} tokens/s"
        self._bar.update(self._task, completed=step + 1, note=note)
        self._say_sometimes(f"step {step + 1}/{self._steps}  {note}  lr {rate:.2e}")

    def say(self, text: str) -> None:
        """Show one line on stderr."""
        self._console.print(text, highlight=False, markup=False)

    def _say_sometimes(self, text: str) -> None:
        now = time.monotonic()
        if not self._console.is_terminal and now - self._shown >= _QUIET_SECONDS:
            self._shown = now
            self.say(text)


def _cut(path: Path, start: int) -> None:
    """Drop the lines of steps that a resumed run will do again."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] < start]
    path.write_text("".join(kept), encoding="utf-8")
