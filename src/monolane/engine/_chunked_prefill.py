"""A sequence fed a part at a time, for what is computed of each of its tokens.

Others get their turn between two parts, and what is cancelled ends there.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from monolane.engine._shared_executor import SharedExecutor
from monolane.errors import BackendError

# Tokens of a part: a pass of the CPU is as wide, and logits of so many take 32 MB at a vocabulary
# of 128,000.
_PART = 64

Feed = Callable[[int, Sequence[int]], npt.NDArray[np.float32]]


def feed_in_parts(
    backend: SharedExecutor,
    feed: Feed,
    slot: int,
    token_ids: Sequence[int],
    cancelled: Callable[[], bool],
) -> Iterator[npt.NDArray[np.float32]]:
    """Feed tokens to an empty slot, at least one; yield what ``feed`` returns of each part.

    Ends early once ``cancelled``. BackendError if the slot was emptied meanwhile.
    """
    for begin in range(0, len(token_ids), _PART):
        if cancelled():
            return
        part = token_ids[begin : begin + _PART]
        found = feed(slot, part)
        # Another request may have learnt of it: then this part was fed behind nothing.
        if backend.length(slot) != begin + len(part):
            raise BackendError("a rank was lost, and with it the tokens before these; ask again")
        yield found
