"""How probable the end of a token sequence is to an engine, token by token."""

from collections.abc import Sequence

import numpy as np

from monolane.engine import Engine
from monolane.reference import log_probabilities


class Likelihood:
    """Scores by the logits of an engine; those of the last sequence are kept.

    Endings of one token after one text (the letters A to D) then cost one pass together.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids: list[int] = []
        self._logits_TV = np.empty((0, 0), np.float32)

    def __call__(self, ids: Sequence[int], count: int) -> tuple[list[float], bool]:
        """Return the log-probabilities of the last ``count`` ids, and whether each is greedy's.

        Nats. All ids but the first can be scored.
        """
        given = list(ids[:-1])
        if self._ids != given:
            self._ids, self._logits_TV = given, self._engine.logits(given)
        nats, greedy = [], True
        rows_CV = self._logits_TV[-count:]
        for logits_V, token in zip(rows_CV, ids[-len(rows_CV) :], strict=True):
            nats.append(float(log_probabilities(logits_V)[token]))
            greedy = greedy and bool(logits_V[token] == logits_V.max())
        return nats, greedy
