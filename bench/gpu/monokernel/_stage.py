"""What a part of the campaign sees while it runs: sizes, a folder, a budget, a place for records.

`attempt` is the way to a record: a check that fails inside it leaves an error and no figure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench._results import Record, ResultsError, check_record
from bench.gpu.monokernel._scale import Scale
from bench.gpu.probes._budget import Budget
from monolane.errors import MonolaneError


class CheckError(Exception):
    """The device did something wrong; the message says what was expected and what came."""


class NotMeasuredError(Exception):
    """Something is left out, and why."""


def expect(holds: bool, message: str) -> None:
    """Raise CheckError unless `holds`."""
    if not holds:
        raise CheckError(message)


@dataclass
class Stage:
    """One part's surroundings, in a process of its own."""

    scale: Scale
    work: Path  # shared by all parts: compiled kernels, weights, and what one leaves for another
    budget: Budget  # soft: nothing new is begun once it is spent
    emit: Callable[[Record], None]

    def attempt(
        self, name: str, measure: Callable[..., Record], *args: Any, **labels: Any
    ) -> Record | None:
        """Emit `measure(*args)` under `name` and `labels`, or why there is no figure."""
        head: Record = {"name": name, "engine": "monolane", "model": self.scale.model} | labels
        try:
            if self.budget.exhausted:
                raise NotMeasuredError(f"this part's {self.budget.seconds:.0f} s were spent")
            record = head | measure(*args)
            check_record(record)
        except NotMeasuredError as why:
            self.emit(head | {"not_measured": str(why)})
            return None
        except (CheckError, ResultsError, MonolaneError) as error:
            self.emit(record_of_error(head, error))
            return None
        self.emit(record)
        return record


def record_of_error(labels: Record, error: Exception) -> Record:
    """The record of something that failed."""
    return labels | {"error": f"{type(error).__name__}: {error}"[:2000]}


def speed(
    samples: list[float], bytes_per_token: int | None = None, unit: str = "tokens/s"
) -> Record:
    """Figures of repeated runs, tokens/s each; with bytes also what the memory moved."""
    ordered = sorted(samples)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    figures: Record = {
        "unit": unit,
        "runs": len(ordered),
        "min": ordered[0],
        "median": median,
        "max": ordered[-1],
    }
    if unit == "tokens/s":
        figures |= {"tokens_per_s": median, "us_per_token": 1e6 / median}
    if bytes_per_token is not None:
        figures |= {"bytes_per_token": bytes_per_token, "gb_per_s": bytes_per_token * median / 1e9}
    return figures
