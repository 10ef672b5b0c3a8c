"""Penalties on tokens that a sequence has had, as docs/sampling.md defines them.

Shape legend: V vocabulary, S tokens that were seen.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from monolane.executor_api import Draw
from monolane.reference._operations import Floats


def count_seen(token_ids: Sequence[int] | npt.NDArray[np.integer], prompt: int) -> Counter[int]:
    """Return how often each token of a sequence was drawn: 0 of those only among the first."""
    ids = [int(token) for token in token_ids]
    seen = Counter(dict.fromkeys(ids, 0))
    seen.update(ids[prompt:])
    return seen


def penalised(logits_V: Floats, draw: Draw, seen: Counter[int]) -> Floats:
    """Return the logits with a draw's penalties on what was seen."""
    tokens_S = np.array(list(seen), np.int64)
    drawn_S = np.array(list(seen.values()), np.float64)
    logits_S, repetition = logits_V[tokens_S], np.float32(draw.repetition_penalty)
    logits_S = np.where(logits_S < 0, logits_S * repetition, logits_S / repetition)
    frequency = np.float64(np.float32(draw.frequency_penalty))
    presence = np.float64(np.float32(draw.presence_penalty))
    loss_S = np.where(drawn_S > 0, frequency * drawn_S + presence, 0)
    penalised_V = logits_V.copy()
    penalised_V[tokens_S] = (logits_S.astype(np.float64) - loss_S).astype(np.float32)
    return penalised_V
