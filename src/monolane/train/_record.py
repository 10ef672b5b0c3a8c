"""What a run says about itself: a value per step, and who may listen.

The loop knows nothing of files, boards or terminals: it tells its observers, on rank 0 alone. What
decides over the run (:class:`~monolane.train._guard.SpikeGuard`) is no observer but is asked on
every rank.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StepRecord:
    """A finished step of the whole run; sums and means are over all ranks.

    ``loss``, ``z_loss`` and ``norm`` must have the same bits on every rank: decisions hang on them.
    """

    step: int  # steps done, this one included: the first record says 1
    loss: float  # cross-entropy, nats per token, without the z-loss
    z_loss: float  # as it is added to the loss, nats per token; 0 where there is none
    norm: float  # of the gradients, before clipping
    learning_rate: float  # that this step used
    tokens: int  # trained on since the run began, this step included
    tokens_per_s: float  # of all ranks together, over this step
    mfu: float | None  # share of the device's peak, 0 to 1; None where the peak is not known
    seconds: float  # that the step took, on a wall clock
    waited: float = 0.0  # seconds of these in which its rows were waited for
    # Bytes of a GPU's memory that tensors took at the step's peak, and that torch held for them.
    memory: int | None = None
    reserved: int | None = None


class Observer(Protocol):
    """Listens to a run, on rank 0. A call must be short: the step waits for it."""

    def step(self, record: StepRecord) -> None:
        """Note a finished step. After a rollback or restart, step numbers come again."""

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        """Note what a validation after ``step`` steps gave: names like ``bits_per_byte/web``."""

    def event(self, step: int, kind: str, text: str) -> None:
        """Note what happened after ``step`` steps; ``kind`` is one word of :data:`EVENT_KINDS`."""

    def close(self) -> None:
        """Write out what is pending. The run is over, or is about to fail."""


# What listens to a run from a step on; asked for on the first process alone.
Listeners = Callable[[int], Sequence[Observer]]

EVENT_KINDS = (
    *(
        "start",
        "resume",
        "stage",
        "checkpoint",
        "damaged",
        "warning",
        "skipped",
        "spike",
        "rollback",
    ),
    *("stop", "end"),
)


class Observers:
    """Tells several observers as if they were one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def step(self, record: StepRecord) -> None:
        """Tell all of a finished step."""
        for observer in self._observers:
            observer.step(record)

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        """Tell all of a validation."""
        for observer in self._observers:
            observer.validation(step, scores)

    def event(self, step: int, kind: str, text: str) -> None:
        """Tell all of an event."""
        assert kind in EVENT_KINDS, f"expected one of {EVENT_KINDS}, got {kind!r}"
        for observer in self._observers:
            observer.event(step, kind, text)

    def close(self) -> None:
        """Close all, in the reverse of their order."""
        for observer in reversed(self._observers):
            observer.close()
