"""A run in the terminal: a live view on a terminal, a plain line now and then in a log file.

Everything goes to stderr; standard output stays empty. The view is an observer, so it shows a run
of this process as well as the journal of one that runs elsewhere.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from monolane.train._record import StepRecord

_QUIET_SECONDS = 15.0  # between plain lines when stderr is not a terminal
_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60  # of the sparkline
_EVENTS = 5  # that stay in view
_LONG_WAIT = 0.05  # of a step, in which its rows were waited for
_PACE = 50  # steps whose median tells the time that is left


class Terminal:
    """Observer that shows where a run of ``steps`` steps is."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        self._steps = steps
        self._console = console or Console(stderr=True)
        self._record: StepRecord | None = None
        self._losses: list[float] = []  # of all steps; the sparkline folds them
        self._seconds: deque[float] = deque(maxlen=_PACE)
        self._events: deque[str] = deque(maxlen=_EVENTS)
        self._scores: tuple[int, Mapping[str, float]] | None = None
        self._checkpoint: int | None = None
        self._shown = 0.0
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self._view, console=self._console, refresh_per_second=4
            )
            self._live.start()

    @property
    def is_live(self) -> bool:
        """Whether there is a view that is drawn again, as against lines that stay."""
        return self._live is not None

    def step(self, record: StepRecord) -> None:
        """Show a finished step."""
        del self._losses[record.step - 1 :]  # of steps that are done again
        self._losses.append(record.loss)
        self._seconds.append(record.seconds)
        self._record = record
        now = time.monotonic()
        if self._live is None and now - self._shown >= _QUIET_SECONDS:
            self._shown = now
            self.say(
                f"step {record.step}/{self._steps}  loss {record.loss:.3f}  "
                f"{record.tokens_per_s:,.0f} tokens/s  lr {record.learning_rate:.2e}"
            )

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        """Show the scores of a validation."""
        self._scores = (step, dict(scores))
        if self._live is None:
            self.say(f"step {step}  {_scores(scores)}")

    def event(self, step: int, kind: str, text: str) -> None:
        """Show what happened."""
        if kind == "checkpoint":
            self._checkpoint = step
        line = f"step {step}  {kind}: {text}" if text else f"step {step}  {kind}"
        self._events.append(line)
        if self._live is None:
            self.say(line)

    def close(self) -> None:
        """Leave the last view on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Show one line on stderr; where nobody reads any more, nothing is said from then on."""
        try:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        except (OSError, SystemExit):  # rich would exit for a broken pipe: not in mid-run
            self._console.quiet = True

    def _view(self) -> RenderableType:
        """Build the live view; rich calls it from a thread of its own."""
        record = self._record
        if record is None:
            return Panel("\n".join(self._events) or "waiting for the first step", title="train")
        bar = Table.grid(expand=True)  # a bar alone does not end its line
        bar.add_row(ProgressBar(total=self._steps, completed=record.step))
        return Panel(
            Group(
                bar,
                Text(sparkline(list(self._losses), _COLUMNS), style="cyan"),
                self._figures(record),
                Text("\n".join(self._events), style="dim"),
            ),
            title=f"step {record.step:,} / {self._steps:,}",
        )

    def _figures(self, record: StepRecord) -> Table:
        speed = f"{record.tokens_per_s:,.0f} tokens/s"
        if record.mfu is not None:
            speed += f", {record.mfu:.1%} of the device's peak"
        left = max(0, self._steps - record.step) * median(self._seconds)
        rows = [
            ("loss", f"{record.loss:.4f} nats/token"),
            ("gradient norm", f"{record.norm:.3f}"),
            ("learning rate", f"{record.learning_rate:.3e}"),
            ("tokens", f"{record.tokens:,}"),
            ("speed", speed),
            *_rare(record),
            ("time left", _duration(left)),
            ("last checkpoint", "none yet" if self._checkpoint is None else f"{self._checkpoint}"),
        ]
        if self._scores is not None:
            rows.append((f"validation {self._scores[0]}", _scores(self._scores[1])))
        table = Table.grid(padding=(0, 2))
        for row in rows:
            table.add_row(*row)
        return table


def _rare(record: StepRecord) -> Iterator[tuple[str, str]]:
    """Yield what is not always worth a line: memory on a GPU, and rows that come too slowly."""
    if record.memory is not None and record.reserved is not None:
        peak, held = (f"{size / 2**30:.1f}" for size in (record.memory, record.reserved))
        yield "memory", f"{peak} GiB at the peak, {held} held"
    if record.waited > _LONG_WAIT * record.seconds:
        yield "waited for rows", f"{record.waited / record.seconds:.0%} of the step"


def sparkline(values: Sequence[float], columns: int) -> str:
    """Draw values as a line of bars; where they outnumber the columns, each shows a mean.

    NaN and Inf, which have no height, are drawn as ``!``.
    """
    if not values:
        return ""
    columns = min(columns, len(values))
    bounds = [len(values) * at // columns for at in range(columns + 1)]
    means = [sum(values[first:last]) / (last - first) for first, last in pairwise(bounds)]
    finite = [mean for mean in means if abs(mean) < float("inf")]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(
        _BARS[round((mean - low) * scale)] if abs(mean) < float("inf") else "!" for mean in means
    )


def _scores(scores: Mapping[str, float]) -> str:
    """Say the totals; scores of parts (``bits_per_byte/web``) are for the boards."""
    return "  ".join(f"{name} {scores[name]:.4f}" for name in scores if "/" not in name)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
