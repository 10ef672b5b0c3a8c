"""What a request asks of an executor: which tokens go in, and how the next ones are drawn."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The parameters of one draw; docs/sampling.md defines them for all executors.

    The numbers cross to native executors as the struct ``Draw`` of ``_border.py``.
    """

    temperature: float = 0.0  # 0: the most probable token
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # 64 bits; a draw depends on (seed, position) and the logits alone
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, what its logit gains), ids ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What one slot does in an epoch: feed ``token_ids``, then draw up to ``budget`` tokens.

    It ends after drawing one of ``stop_ids``. Every drawn token but the last is fed, so a following
    epoch begins with the last.
    """

    slot: int
    token_ids: tuple[int, ...]  # at least one
    budget: int  # at least 1; the slot's context holds token_ids and budget - 1 more
    draw: Draw = Draw()
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None  # None, or the number of alternatives to report
    guided: bool = False  # every draw waits for a Guide


@dataclass(frozen=True, slots=True)
class Guide:
    """What may come next in a guided slot: first the forced tokens, then one draw under the mask.

    ``mask``: uint32 [ceil(V / 32)], bit t % 32 of word t // 32 for token t of the *model's*
    vocabulary, at least one of them set; None: the answer ends with the forced tokens.
    """

    mask: npt.NDArray[np.uint32] | None
    forced: tuple[int, ...] = ()
