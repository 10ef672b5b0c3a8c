"""What an answer must look like, said token by token while it is decoded.

Not a list of the tokens so far for each mask: a grammar keeps its own place, and is told of each
token once. Not a callback of the decode thread either: the mask of the next token is worked out by
whoever reads the answer, while the pass runs that needs it.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Guide:
    """What may come next: first the forced tokens, as they are, then one draw under the mask.

    ``mask``: uint32 [ceil(V / 32)], bit t % 32 of word t // 32 for token t of the *model's*
    vocabulary, at least one of them set; None: the answer ends with the forced tokens.
    """

    mask: npt.NDArray[np.uint32] | None
    forced: tuple[int, ...] = ()


class Constraint(Protocol):
    """The place of one answer in its grammar; for one request, and one thread at a time.

    Where an answer may end, the mask allows a token that ends it; where it must, there is no mask.
    """

    def step(self, token_id: int | None) -> Guide:
        """Take the token drawn under the last guide, None at first; say what may follow it.

        The forced tokens of a guide count as taken. A token that ends the answer is not told.
        """
