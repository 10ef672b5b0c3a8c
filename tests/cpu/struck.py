"""What is asked of ranks before and after they are struck, and what must come of each fault."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

import monolane
from monolane.cpu import CpuExecutor
from monolane.executor_api import Advance

DEMO = Path(monolane.__file__).parent / "demo"
IDS = np.random.default_rng(0).integers(512, size=900).tolist()
PATIENCE = 3.0  # seconds that the watchdog waits; where a rank gets no core for so long, take more
# Far more than the watchdog's time and a start on a machine that stands still for a while. What
# hangs would do so for ever.
HANGS = 300.0


@dataclass(frozen=True)
class Outcome(ABC):
    """What came of a fault."""

    fault: str  # kind and stage
    seconds: float  # from the fault to its error
    named: bool  # the error named the rank that was struck, or one of a link's
    served: bool  # the next request had the bits of the first

    @property
    @abstractmethod
    def left(self) -> int:
        """How much was left behind."""


Some = TypeVar("Some", bound=Outcome)
Strike = Callable[[random.Random], Some]  # brings about one fault of a random kind


def ask(executor: CpuExecutor) -> np.ndarray:
    """Answer a prompt of several passes; return its logits and what is drawn behind it."""
    executor.take()  # what a lost epoch had drawn
    executor.truncate(0, 0)
    logits = executor.logits(0, IDS[:100])
    executor.start([Advance(slot=0, token_ids=(1, 2, 3), budget=40)])
    while not executor.read(0.1):
        pass
    return np.append(logits[-1], [event.token_id for event in executor.take()])


def be_in(executor: CpuExecutor, stage: str) -> None:
    """Be in that stage for a while; what was struck too late is found by the next call."""
    executor.truncate(0, 0)
    prompt, budget = (tuple(IDS), 1) if stage == "prefill" else ((1, 2, 3), 900)
    executor.start([Advance(slot=0, token_ids=prompt, budget=budget)])
    while not executor.read(0.1):
        executor.take()


def check(outcome: Outcome) -> None:
    """The struck one is named, the next request has the same bits, and nothing is left behind."""
    assert outcome.named, outcome
    assert outcome.served, outcome
    assert not outcome.left, outcome
