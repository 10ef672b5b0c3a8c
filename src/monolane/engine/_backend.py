"""What the engine asks of a backend, and nothing more.

The engine hands over whole *epochs*: "feed these tokens, then draw until a stop, the budget, or my
word". A call per token would put Python on the path of every token; an epoch is one native call or
one kernel launch, and tokens leave it through a ring while it runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monolane.engine._constraint import Guide
from monolane.engine._parameters import Draw
from monolane.errors import BackendError


@dataclass(frozen=True, slots=True)
class Advance:
    """What one slot does in an epoch: feed ``token_ids``, then draw up to ``budget`` tokens.

    It ends after drawing one of ``stop_ids``. Every drawn token but the last is fed, so a following
    epoch begins with the last.
    """

    slot: int
    token_ids: tuple[int, ...]  # at least one
    budget: int  # at least 1; the slot's context holds token_ids and budget - 1 more
    draw: Draw
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None  # None, or the number of alternatives to report
    guided: bool = False  # every draw waits for Epoch.guide


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token under the model itself, before any temperature."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the most probable tokens, best first


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token as it leaves an epoch."""

    slot: int
    token_id: int
    time_ns: int  # time.perf_counter_ns() when it was drawn
    logprob: TokenLogprob | None = None


class Epoch(ABC):
    """An epoch that is running."""

    @abstractmethod
    def read(self) -> list[TokenEvent]:
        """Wait for tokens and return all that are there; [] once the epoch has ended.

        A failure of the backend is raised here, after the tokens that came before it.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Ask for the end, within one token, from any thread; a read that waits returns then."""

    @abstractmethod
    def stop(self) -> None:
        """Ask for the end, within one token, and wait for it. Harmless on an ended epoch."""

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot: once at first, then once after each draw.

        Forced tokens leave the epoch like drawn ones, but without log-probabilities. May come
        before or while the pass runs that needs it; until it has come, this slot waits and others
        go on. A slot whose guide has no mask ends with its forced tokens.
        """
        raise BackendError("this backend takes no constraints; use 'cpu' or 'reference'")


class Backend(ABC):
    """An executor with a model and ``slots`` sequences of up to ``context`` tokens each."""

    name: str
    dtype: str  # of the arithmetic's weights, as in Engine.load
    slots: int
    context: int

    @abstractmethod
    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""

    @abstractmethod
    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on."""

    @abstractmethod
    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]."""

    @abstractmethod
    def start(self, advances: Sequence[Advance]) -> Epoch:
        """Begin an epoch; the slots belong to it until it has ended."""

    def bytes_per_token(self, length: int) -> int | None:
        """Bytes that drawing one token reads behind ``length`` tokens; None where no plan says."""
        return None

    def close(self) -> None:  # noqa: B027  most backends hold nothing that the collector does not free
        """Give back memory and threads."""
