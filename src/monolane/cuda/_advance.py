"""What a slot does in an epoch, and what comes of it."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from monolane.cuda._logprobs import Logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Feed ``tokens`` to a slot, then draw up to ``budget`` more, ending with one of ``stop_ids``.

    Every drawn token but the last is fed, so a following epoch begins with the last.
    """

    slot: int
    tokens: tuple[int, ...]  # at least one
    budget: int  # at least 1
    temperature: float = 0.0  # 0: the most probable token
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # 64 bits
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None  # None, or the number of alternatives to report
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, what is added to its logit)
    guided: bool = False  # every draw waits for CudaExecutor.guide


@dataclass(frozen=True, slots=True)
class Guide:
    """What may come next in a guided slot: the forced tokens as they are, then a draw.

    ``mask``: uint32 [ceil(V / 32)], bit t % 32 of word t // 32 for token t; None: no draw, the
    sequence ends with the forced tokens.
    """

    forced: tuple[int, ...]
    mask: npt.NDArray[np.uint32] | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token as it leaves an epoch."""

    slot: int
    token: int
    time_ns: int  # time.perf_counter_ns() when the host saw it
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A slot within an epoch: what it still has to do when the next launch begins."""

    advance: Advance
    tokens: tuple[int, ...]  # to feed; none once it is done
    budget: int  # tokens to draw at most
    all_logits: bool = False  # the logits of every row are wanted, and nothing is drawn
    parked: bool = False  # guided, and it has been seen that the next draw's guide is late

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not self.tokens

    def after(self, fed: int, drawn: int, last: int) -> "Running":
        """Return what is left after a launch that fed and drew so many tokens, ``last`` at last."""
        budget = self.budget - drawn
        if fed < len(self.tokens):
            tokens = self.tokens[fed:]
        elif self.all_logits or budget == 0 or (drawn and last in self.advance.stop_ids):
            tokens = ()
        else:  # with nothing drawn behind the last token, that was given back
            tokens = (last if drawn else self.tokens[-1],)
        return replace(self, tokens=tokens, budget=budget)

    def force(self, guide: Guide) -> tuple[tuple[int, ...], "Running"]:
        """Return the forced tokens that leave, up to the end if one ends it, and what is left."""
        left: list[int] = []
        for token in guide.forced:
            left.append(token)
            if len(left) == self.budget or token in self.advance.stop_ids:
                return tuple(left), replace(self, tokens=(), budget=self.budget - len(left))
        tokens = () if guide.mask is None else (*self.tokens, *left)
        return tuple(left), replace(self, tokens=tokens, budget=self.budget - len(left))
