"""Loss spikes: tells a run when to go back to its last good checkpoint.

A loss is judged against the median and the median absolute deviation (MAD) of the losses before
it: mean and standard deviation would be dragged along by the very spike that they judge. One bad
batch is no spike: the majority of the last few losses must be far above. Far *below* (a new
mixture, the learning rate's decay) they are the start of a new history. The last few are not
history yet, so the beginning of a slow divergence does not hide its end. Judging is a pure function
of the records: every rank comes to the same answer without a word.
"""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from monolane.errors import TrainingError
from monolane.train._config import GuardConfig
from monolane.train._record import StepRecord

_SIGMA_PER_MAD = 1.4826  # of a normal distribution


class SpikeGuard:
    """Watches the loss of a run; :meth:`observe` says whether to roll back.

    Keep :meth:`state` in every checkpoint and :meth:`load` it with the checkpoint, also in a
    rollback: the history goes back with the weights, the count of rollbacks does not.
    """

    def __init__(self, config: GuardConfig | None = None) -> None:
        self.config = config or GuardConfig()
        self._recent: deque[float] = deque(maxlen=2 * self.config.patience - 1)
        self._history: deque[float] = deque(maxlen=self.config.window)  # those before `recent`
        self._rollbacks: list[int] = []  # the steps that asked for one
        self.onset = 0  # where the spike began that `observe` found last

    def observe(self, record: StepRecord) -> bool:
        """Return whether the run should go back: to its newest checkpoint before :attr:`onset`.

        Raises :class:`~monolane.errors.TrainingError` where it has gone back too often.
        """
        if not self.config.enabled:
            return False
        # What is not finite has updated nothing (:class:`Trainer`): alone it does no harm, and it
        # counts as far above. That needs no history.
        finite = math.isfinite(record.loss) and math.isfinite(record.norm)
        self._add(record.loss if finite else math.inf)
        low, high = self.limits() or (-math.inf, math.inf)
        above = [at for at, loss in enumerate(self._recent) if loss > high or loss == math.inf]
        if len(above) >= self.config.patience:
            return self._roll_back(record, record.step - (len(self._recent) - 1 - above[0]))
        below = [loss for loss in self._recent if loss < low]
        if len(below) >= self.config.patience:
            self.forget()
            self._history.extend(below)
        return False

    def limits(self) -> tuple[float, float] | None:
        """Return the losses below and above which one is far off, or None: too little history."""
        if len(self._history) < self.config.history:
            return None
        middle = median(self._history)
        sigma = _SIGMA_PER_MAD * median(abs(loss - middle) for loss in self._history)
        far = max(self.config.threshold * sigma, self.config.min_rise)
        return middle - far, middle + far

    def forget(self) -> None:
        """Start a new history: the data is about to change in a way that may *raise* the loss."""
        self._history.clear()
        self._recent.clear()

    def state(self) -> dict[str, Any]:
        """Return plain values for a checkpoint (JSON would do)."""
        return {
            "history": list(self._history),
            "recent": list(self._recent),
            "rollbacks": list(self._rollbacks),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a :meth:`state`; rollbacks that only this guard knows of stay counted."""
        self.forget()
        self._history.extend(state["history"])
        self._recent.extend(state["recent"])
        if len(state["rollbacks"]) > len(self._rollbacks):  # of one run: the longer is the later
            self._rollbacks = list(state["rollbacks"])

    def _add(self, loss: float) -> None:
        if len(self._recent) == self._recent.maxlen and math.isfinite(self._recent[0]):
            self._history.append(self._recent[0])
        self._recent.append(loss)

    def _roll_back(self, record: StepRecord, onset: int) -> bool:
        self.onset = onset
        self._recent.clear()
        span = self.config.span
        near = [step for step in self._rollbacks if abs(record.step - step) < span]
        if len(near) >= self.config.rollbacks:
            raise TrainingError(
                f"step {record.step}: the loss is {record.loss:.4g} (gradient norm "
                f"{record.norm:.4g}) after {len(near)} rollbacks within {span} steps; the run "
                "has diverged: lower the learning rate, look at the data of these steps, or raise "
                "guard.rollbacks"
            )
        self._rollbacks.append(record.step)
        return True
