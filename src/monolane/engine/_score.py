"""How probable a given text is to the model: what evaluation harnesses ask for as ``echo``."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from monolane.engine._backend import Backend, TokenLogprob

# Tokens whose logits are held at a time: 32 MB at a vocabulary of 128,000. Others get their turn
# between two such chunks, and a cancelled request ends there.
_CHUNK = 64


def score(
    backend: Backend,
    slot: int,
    token_ids: Sequence[int],
    top: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[TokenLogprob]:
    """Feed all tokens but the last to an empty slot; yield how probable each but the first was.

    ``top`` alternatives come with each. Ends early once ``cancelled``.
    """
    for begin in range(0, len(token_ids) - 1, _CHUNK):
        if cancelled():
            return
        end = min(begin + _CHUNK, len(token_ids) - 1)
        logits_TV = backend.logits(slot, token_ids[begin:end])
        for logits_V, token in zip(logits_TV, token_ids[begin + 1 : end + 1], strict=True):
            yield _logprob(logits_V, token, top)


def _logprob(logits_V: npt.NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    shifted_V = logits_V.astype(np.float64) - float(logits_V.max())
    logprob_V = shifted_V - np.log(np.exp(shifted_V).sum())
    return TokenLogprob(
        token,
        float(logprob_V[token]),
        tuple((i, float(logprob_V[i])) for i in _best(logits_V, top)),
    )


def _best(logits_V: npt.NDArray[np.float32], count: int) -> list[int]:
    """Return the ids of the largest logits, best first, the lowest id first among equals."""
    if count == 0:
        return []
    # Not one full sort per token: that would take longer than the model.
    least = np.partition(logits_V, -min(count, len(logits_V)))[-min(count, len(logits_V))]
    ids = np.flatnonzero(logits_V >= least)
    return [int(i) for i in ids[np.argsort(-logits_V[ids], kind="stable")][:count]]
