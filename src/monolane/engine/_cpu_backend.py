"""The native core behind the engine's contract."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from monolane.cpu import AdvanceTuple, CpuExecutor
from monolane.engine._backend import Advance, Backend, Epoch, TokenEvent, TokenLogprob
from monolane.engine._conductor import Conductor
from monolane.engine._constraint import Guide
from monolane.model import Weights

# How long one wait for tokens may keep Python from seeing a Ctrl-C, in milliseconds.
_PATIENCE = 100


class CpuBackend(Backend):
    """C++ threads, pinned, on a static plan."""

    name = "cpu"

    def __init__(self, weights: Weights, dtype: str, context: int, slots: int) -> None:
        self._executor = CpuExecutor(weights, dtype, context=context, slots=slots)
        self._core = _Core(self._executor)
        self._conductor = Conductor(self._core)
        self.dtype = self._executor.arithmetic.name
        self.context = context
        self.slots = slots

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""
        return self._core.length(slot)

    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on."""
        self._conductor.exclusively(lambda: self._executor.core.truncate(slot, length))

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]."""
        found: list[npt.NDArray[np.float32]] = []
        self._conductor.exclusively(lambda: found.append(self._executor.logits(slot, token_ids)))
        return found[0]

    def bytes_per_token(self, length: int) -> int | None:
        """Bytes that drawing one token reads behind ``length`` tokens, by the plan."""
        return self._executor.bytes_per_token(length)

    def start(self, advances: Sequence[Advance]) -> Epoch:
        """Begin a request on the core's own threads."""
        return self._conductor.start(advances)


class _Core:
    """The native executor as the conductor wants it."""

    def __init__(self, executor: CpuExecutor) -> None:
        self._core = executor.core
        self._raw: list[tuple[int, int, int, float | None, tuple[tuple[int, float], ...]]] = []

    def start(self, advances: Sequence[Advance]) -> None:
        self._core.start([_tuple(advance) for advance in advances])

    def read(self) -> bool:
        return self._core.read(_PATIENCE, self._raw)

    def take(self) -> list[TokenEvent]:
        raw, self._raw = self._raw, []
        return [_event(*event) for event in raw]

    def guide(self, slot: int, guide: Guide) -> None:
        self._core.guide(slot, guide.forced, guide.mask)

    def interrupt(self) -> None:
        self._core.interrupt()

    def length(self, slot: int) -> int:
        return self._core.length(slot)


def _tuple(advance: Advance) -> AdvanceTuple:
    draw = advance.draw
    return (
        advance.slot,
        advance.token_ids,
        advance.budget,
        draw.temperature,
        draw.top_k,
        draw.top_p,
        draw.min_p,
        draw.seed,
        sorted(advance.stop_ids),
        -1 if advance.logprobs is None else advance.logprobs,
        draw.logit_bias,
        advance.guided,
    )


def _event(
    slot: int,
    token: int,
    time_ns: int,
    logprob: float | None,
    top: tuple[tuple[int, float], ...],
) -> TokenEvent:
    described = None if logprob is None else TokenLogprob(token, logprob, top)
    return TokenEvent(slot, token, time_ns, described)
