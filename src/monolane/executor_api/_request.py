"""What a request asks of an executor: which tokens go in, and how the next ones are drawn."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from monolane._draw import Draw
from monolane.errors import RequestError

AUTO_DRAFTS = -1  # see Advance
# Who drafts, in the order of csrc/abi/advance.h: whoever promises more, what the text repeats, a
# model, heads or the model's own layer that predicts further ahead.
DRAFTERS = ("auto", "suffix", "draft", "heads")
_PLAIN = Draw()
TEXT_END = 0xFFFFFFFF  # behind each text of Advance.earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What one slot does in an epoch: feed ``token_ids``, then draw up to ``budget`` tokens.

    It ends after drawing one of ``stop_ids``. Every drawn token but the last is fed, so a following
    epoch begins with the last.
    """

    slot: int
    token_ids: tuple[int, ...]  # at least one
    budget: int  # at least 1; the slot's context holds token_ids and budget - 1 more
    draw: Draw = _PLAIN
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None  # None, or the number of alternatives to report
    guided: bool = False  # every draw waits for a Guide
    # Tokens to be drafted for a pass, AUTO_DRAFTS: as many as pay. A hint: the tokens are the same
    # with each, and an executor may draft fewer, or none.
    drafts: int = 0
    drafter: str = "auto"  # who drafts, one of DRAFTERS; "auto": whose drafts promise more
    # Tokens of the sequence before token_ids, for what looks back: as many as the slot holds, or
    # none. An array where they may be many: a tuple of 100,000 takes 40 times as long to hand over.
    history: Sequence[int] | npt.NDArray[np.uint32] = field(default=(), compare=False)
    prompt: int = 0  # how many of history and token_ids were given; the others were drawn
    # Earlier texts to draft from, TEXT_END behind each. A hint, too; but an answer may come sooner
    # by them, so they are those that whoever asks may know of.
    earlier: Sequence[int] | npt.NDArray[np.uint32] = field(default=(), compare=False)

    def check_history(self, held: int) -> None:
        """Raise RequestError if the history is not that of a slot with ``held`` tokens."""
        given = len(self.history)
        if given != held and (given or self.draw.penalises):
            raise RequestError(
                f"history: expected the {held} tokens that the slot holds, got {given}"
            )


@dataclass(frozen=True, slots=True)
class Guide:
    """What may come next in a guided slot: first the forced tokens, then one draw under the mask.

    ``mask``: uint32 [ceil(V / 32)], bit t % 32 of word t // 32 for token t of the *model's*
    vocabulary, at least one of them set; None: the answer ends with the forced tokens.
    """

    mask: npt.NDArray[np.uint32] | None
    forced: tuple[int, ...] = ()
