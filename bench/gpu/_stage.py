"""What a part of a campaign sees while it runs: sizes, a folder, a budget, a place for records.

`attempt` is the way to a record: a check that fails inside it leaves an error and no figure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane._results import Record, ResultsError, check_record
from monolane.errors import MonolaneError


class CheckError(Exception):
    """The device did something wrong; the message says what was expected and what came."""


class NotMeasuredError(Exception):
    """Something is left out, and why."""


def expect(holds: bool, message: str) -> None:
    """Raise CheckError unless `holds`."""
    if not holds:
        raise CheckError(message)


def expect_equal(what: str, got: Any, expected: Any) -> None:
    """Raise CheckError unless both are equal."""
    expect(got == expected, f"{what}: expected {expected}, got {got}")


FAULTS = ("wrong", "crash", "hang", "missing")  # that a rehearsal can have, for tests


class Budget:
    """`seconds` from now. `progress` tells it how much of a part's list is done (0 to 1)."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._start = clock()
        self.progress = 0.0

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    @property
    def exhausted(self) -> bool:
        """Nothing more may be started."""
        return self.spent >= self.seconds

    def repeats(self, wanted: int, least: int = 2) -> int:
        """`wanted`, or `least` once time runs ahead of progress by a fifth of the budget."""
        behind = self.spent / self.seconds - self.progress if self.seconds > 0 else 1.0
        return wanted if behind < 0.2 else min(wanted, least)


@dataclass
class Stage:
    """One part's surroundings, in a process of its own."""

    scale: Any  # the campaign's sizes
    work: Path  # shared by all parts: compiled kernels, weights, and what one leaves for another
    budget: Budget  # soft: nothing new is begun once it is spent
    emit: Callable[[Record], None]
    labels: Record = field(default_factory=dict)  # of every record
    # Folder of what `prepare` has made ahead.
    carried: Path | None = field(default=None, kw_only=True)
    # For the parts behind, in this process.
    kept: dict[Any, Any] = field(default_factory=dict, kw_only=True)
    wanted: tuple[str, ...] = field(default=(), kw_only=True)  # names of the parts of this run
    injected: str = field(default="", kw_only=True)  # a fault on purpose, of one of FAULTS

    def attempt(
        self, name: str, measure: Callable[..., Record], *args: Any, **labels: Any
    ) -> Record | None:
        """Emit `measure(*args)` under `name` and `labels`, or why there is no figure."""
        head: Record = {"name": name, **self.labels, **labels}
        try:
            if self.budget.exhausted:
                raise NotMeasuredError(f"this part's {self.budget.seconds:.0f} s were spent")
            record = head | measure(*args)
            self._inject()
            check_record(record)
        except NotMeasuredError as why:
            self.emit(head | {"not_measured": str(why)})
        except (CheckError, ResultsError, MonolaneError) as error:
            self.emit(record_of_error(head, error))
            self.after_error(error)
        else:
            self.emit(record)
            return record
        return None

    def _inject(self) -> None:
        """Go wrong, once, where a test asks for it."""
        kind, self.injected = self.injected, ""
        if kind == "wrong":
            raise CheckError("a fault on purpose")
        if kind == "crash":
            os.abort()
        while kind == "hang":
            time.sleep(60)

    def after_error(self, error: Exception) -> None:
        """What to do before the next attempt; what is raised here ends the part."""

    def skip(self, name: str, why: str, **labels: Any) -> None:
        """Say that something is left out, and why."""
        self.emit({"name": name, **self.labels, **labels, "not_measured": why})

    def paced(self, items: Sequence[Any]) -> Iterator[Any]:
        """The items, telling the budget how far we are."""
        for i, item in enumerate(items):
            self.budget.progress = i / len(items)
            yield item


def record_of_error(labels: Record, error: Exception) -> Record:
    """The record of something that failed."""
    return labels | {"error": f"{type(error).__name__}: {error}"[:2000]}


# ---- figures of repeated measurements: medians and percentiles, never a mean alone ---------------
def summary(values: Sequence[float] | npt.NDArray[np.floating]) -> Record:
    """`runs`, `min`, `median`, `max` of a few repeats."""
    v = np.asarray(values, dtype=np.float64)
    if v.size == 0:
        raise ValueError("expected at least one measurement, got none")
    return {
        "runs": int(v.size),
        "min": float(v.min()),
        "median": float(np.median(v)),
        "max": float(v.max()),
    }


def distribution(values: npt.NDArray[np.floating]) -> Record:
    """The summary, and the percentiles that a tail shows in."""
    v = np.asarray(values, dtype=np.float64).ravel()
    tail = {f"p{q}": float(np.percentile(v, q)) for q in (1, 10, 90, 99)}
    return summary(v) | {"mean": float(v.mean())} | tail


def speed(
    samples: Sequence[float], bytes_per_token: int | None = None, unit: str = "tokens/s"
) -> Record:
    """Figures of repeated runs, tokens/s each; with bytes also what the memory moved."""
    figures: Record = {"unit": unit, **summary(samples)}
    median = figures["median"]
    if unit == "tokens/s":
        figures |= {"tokens_per_s": median, "us_per_token": 1e6 / median}
    if bytes_per_token is not None:
        figures |= {"bytes_per_token": bytes_per_token, "gb_per_s": bytes_per_token * median / 1e9}
    return figures
