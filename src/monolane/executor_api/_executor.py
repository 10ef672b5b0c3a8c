"""What an executor is: a model that advances some sequences, one epoch at a time.

The engine hands over whole *epochs*: "feed these tokens, then draw until a stop, the budget, or my
interruption". A call per token would put Python on the path of every token; an epoch is one native
call or one chain of kernel launches, and tokens leave it through a ring while it runs.

``reference``, ``cpu`` and ``cuda`` implement this class and know nothing of each other or of who
calls. Several requests at once are the business of the engine's ``SharedExecutor``.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from monolane.errors import BackendError, RequestError
from monolane.executor_api._request import Advance, Guide
from monolane.executor_api._saved_kv import Kept
from monolane.executor_api._token import TokenEvent


class Executor(ABC):
    """A model with ``slots`` sequences of up to ``context`` tokens each.

    Used by one thread at a time, but for ``interrupt``, ``guide``, ``join`` and ``leave``, which
    may come from any thread while another reads, and for what is done to a slot that ``is_free``.
    """

    name: str
    dtype: str  # of the arithmetic's weights, as in Engine.load
    cache_dtype: str = "auto"  # of keys and values, as in Engine.load
    slots: int
    context: int
    plan: Any = None  # the monolane.plan.Plan that it runs; None where there is none
    cache_bytes: int = 0  # of memory that slots take as they fill, at most; of this host
    workers: int = 1  # threads, or blocks of threads, that decode
    # Whether a sequence that goes on from what was kept has the bits of one read anew: ``save`` and
    # ``restore`` are there, and bits do not depend on how many tokens a pass carries.
    keeps_prefixes: bool = False
    # Whether what is kept is ``KeptBytes``, which can be written to a file.
    keeps_bytes: bool = True
    losses: int = 0  # how often all that was kept has been lost, with a rank
    # Of a tail (see Kept) at most: positions, or as many as take the bytes of its states; 0: there
    # are no tails.
    tail_positions: int = 0

    # Whether it verifies drafted tokens; else it ignores ``Advance.drafts``, which is a hint.
    drafts: bool = False
    drafter: str = (
        ""  # who drafts beside what the text repeats: "draft", a model, "heads" or nobody
    )
    has_hidden: bool = False  # whether ``hidden`` is there

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of those that decode, this one first."""
        return (os.getpid(),)

    @abstractmethod
    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot; from any thread."""

    def is_free(self, slot: int) -> bool:
        """Tell whether no epoch uses a slot; from any thread.

        Then it may be truncated, adapted, saved and restored by any thread, while an epoch of
        others runs. False where an executor does all of that between epochs only.
        """
        del slot
        return False

    @abstractmethod
    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on; between epochs.

        RequestError if a windowed layer no longer holds the keys that the next token would see, or
        states are of later tokens: these go back to 0 alone.
        """

    def adapt(self, slot: int, adapter: int) -> None:
        """Have the sequence of an empty slot be that of an adapter, 0 of none; between epochs.

        Those that the executor was made with count from 1 on. A slot keeps it, also when it is
        emptied. RequestError if the slot holds tokens, or there is no such adapter.
        """
        if adapter:
            raise BackendError(f"lora: the {self.name} backend has no adapters; use 'cpu'")

    def copy(self, source: int, target: int) -> None:
        """Make a slot hold what another holds, bit by bit, to go on from it; between epochs.

        A prefix is kept so: copy the sequence, then ``truncate`` it to what is shared.
        """
        raise BackendError(f"copy: the {self.name} backend copies no sequences yet; use 'cpu'")

    def save(self, slot: int, begin: int, end: int) -> Kept:
        """Return what a slot holds of positions ``begin`` to ``end - 1``; between epochs.

        The tail is that of ``end``.
        """
        raise BackendError(f"save: the {self.name} backend keeps no prefixes yet; use 'cpu'")

    def restore(self, slot: int, kept: Kept, count: int) -> None:
        """Put the first ``count`` positions of what was saved behind those of a slot.

        A tail is put back where all of its rows are. The last restored before the slot goes on
        must have one, if there are tails. Between epochs.
        """
        raise BackendError(f"restore: the {self.name} backend keeps no prefixes yet; use 'cpu'")

    def identity(self) -> str:
        """Return a name of all that the bits of kept positions depend on, but for the model."""
        raise BackendError(f"identity: the {self.name} backend keeps no prefixes yet; use 'cpu'")

    @abstractmethod
    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]; between epochs."""

    def hidden(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return what the head reads of each, normed, float32 [T, D]; between epochs.

        Of several lanes it is their mean.
        """
        raise BackendError(
            f"hidden: the {self.name} backend keeps no hidden states, only the logits made of "
            "them; use 'cpu'"
        )

    def streams(
        self, slot: int, token_ids: Sequence[int], layers: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        """Feed tokens; return the stream before each of some layers; between epochs.

        One behind the other, float32 [T, layers * D]. Of models of one lane: drafters learn from
        them.
        """
        raise BackendError(
            f"streams: the {self.name} backend keeps no streams of layers; use 'reference'"
        )

    @abstractmethod
    def start(self, advances: Sequence[Advance]) -> None:
        """Begin an epoch, and return at once. The slots belong to it until it is over."""

    def join(self, advances: Sequence[Advance]) -> bool:
        """Have more slots, which are free, take part in the epoch from its next pass on.

        Return whether they do: then they belong to it as if it had begun with them, and where it
        ends before that, nothing of them was fed. False where the epoch is over, or an executor
        takes nobody in: then the next one has to begin with them.
        """
        del advances
        return False

    def leave(self, slot: int) -> bool:
        """Have a slot take no part in the next pass; what it drew until then is still to be read.

        Then GONE comes in a token's place, and the slot is free, unless its last token, or the
        end of the epoch, is earlier. Return whether an executor can; else ``interrupt`` has to do.
        """
        del slot
        return False

    @abstractmethod
    def read(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for tokens, and keep them; return whether the epoch is over.

        So it is where none has begun. BackendError if the epoch failed; the tokens that came before
        are kept.
        """

    @abstractmethod
    def take(self) -> list[TokenEvent]:
        """Return the tokens kept so far, once. Apart from the wait, which a Ctrl-C may end."""

    @abstractmethod
    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot: once at first, then once after each draw.

        Forced tokens leave the epoch like drawn ones, but without log-probabilities. A guide may
        come before or while the pass runs that needs it; until it has come, this slot waits and
        others go on. A slot whose guide has no mask ends with its forced tokens.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Ask the epoch to end within one pass; read it to its end."""

    def script(self, slot: int, drafts: Sequence[int] = (), draws: Sequence[int] = ()) -> None:
        """Say what is drafted in a slot, or drawn: for tests and measurements; between epochs.

        Both are tokens by their position in the sequence. ``drafts`` are proposed instead of the
        drafter's own. ``draws`` come instead of what the model draws, as far as they go: so a text
        is replayed on a model that would not say it. None of either: as always.
        """
        raise BackendError(f"script: the {self.name} backend drafts no tokens; use 'cpu'")

    def bytes_per_token(self, length: int) -> int | None:
        """Bytes that drawing one token reads behind ``length`` tokens; None where no plan says."""
        return None

    def set_trace(self, on: bool) -> None:
        """From the next epoch on, note when each worker is in which phase, or do not."""
        raise BackendError(f"trace: the {self.name} backend keeps none; use 'cpu'")

    def take_spans(self) -> npt.NDArray[np.void]:
        """Return and forget the notes of the traced epochs: SPAN records, in no given order."""
        raise BackendError(f"trace: the {self.name} backend keeps none; use 'cpu'")

    def close(self) -> None:  # noqa: B027  most executors hold nothing but what the collector frees
        """Give back memory and threads."""


class MakeExecutor(Protocol):
    """What makes an executor of loaded weights, a ``monolane.model.Weights``."""

    def __call__(
        self,
        weights: Any,
        dtype: str,
        *,
        context: int,
        slots: int,
        **more: Any,
    ) -> Executor:
        """Return the executor; ``more``: other options of ``Loading`` of which it is told."""


def check_adapt(held: int, adapter: int, count: int) -> None:
    """Raise RequestError where a slot of ``held`` tokens cannot have one of ``count`` adapters."""
    if held:
        raise RequestError(f"adapt: expected an empty slot, got one with {held} tokens")
    if not 0 <= adapter <= count:
        raise RequestError(f"adapt: expected an adapter from 0 to {count}, got {adapter}")
