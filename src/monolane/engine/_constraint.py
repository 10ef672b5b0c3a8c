"""What an answer must look like, said token by token while it is decoded.

Not a list of the tokens so far for each mask: a grammar keeps its own place, and is told of each
token once. Not a callback of the decode thread either: the thread that reads the answer works out
the mask of the next token, while the pass runs that needs it.
"""

from typing import Protocol

from monolane.epoch import Guide


class Constraint(Protocol):
    """The place of one answer in its grammar; for one request, and one thread at a time.

    Where an answer may end, the mask allows a token that ends it; where it must, there is no mask.
    """

    def step(self, token_id: int | None) -> Guide:
        """Take the token drawn under the last guide, None at first; say what may follow it.

        The forced tokens of a guide count as taken. A token that ends the answer is not told.
        """
