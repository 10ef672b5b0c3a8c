"""How probable a given text is to the model: what evaluation harnesses ask for as ``echo``."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np

from monolane.engine._chunked_prefill import feed_in_parts
from monolane.engine._shared_executor import SharedExecutor, no_token_error
from monolane.executor_api import TokenLogprob, describe_logprobs


def score(
    backend: SharedExecutor,
    slot: int,
    token_ids: Sequence[int],
    top: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[TokenLogprob]:
    """Feed all tokens but the last to an empty slot; yield how probable each but the first was.

    ``top`` alternatives come with each. Ends early once ``cancelled``. BackendError if a rank was
    lost meanwhile, or logits have no finite peak.
    """
    parts = feed_in_parts(backend, backend.logits, slot, token_ids[:-1], cancelled)
    for logits_V, token in zip(chain.from_iterable(parts), token_ids[1:], strict=False):
        if not np.isfinite(logits_V.max()):
            raise no_token_error()
        yield describe_logprobs(logits_V, token, top)
