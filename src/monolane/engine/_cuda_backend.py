"""The monokernel behind the engine's contract."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from monolane.cuda import Advance as CudaAdvance
from monolane.cuda import CudaDevice, CudaExecutor, Device, Drawn
from monolane.cuda import Guide as CudaGuide
from monolane.engine._backend import Advance, Backend, Epoch, TokenEvent, TokenLogprob
from monolane.engine._conductor import Conductor
from monolane.engine._constraint import Guide
from monolane.model import Weights

# How long one wait for tokens may keep Python from seeing a Ctrl-C, in seconds.
_PATIENCE = 0.1


class CudaBackend(Backend):
    """One kernel launch per epoch, on the first GPU."""

    name = "cuda"

    def __init__(
        self,
        weights: Weights,
        dtype: str,
        context: int,
        slots: int,
        device: Device | None = None,
    ) -> None:
        gpu = device or CudaDevice()
        try:
            self._executor = CudaExecutor(weights, dtype, gpu, context=context, slots=slots)
        except BaseException:
            gpu.close()
            raise
        self._conductor = Conductor(_Core(self._executor))
        self.dtype = self._executor.dtype
        self.context = context
        self.slots = slots

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""
        return self._executor.length(slot)

    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on."""
        self._conductor.exclusively(lambda: self._executor.truncate(slot, length))

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]."""
        found: list[npt.NDArray[np.float32]] = []
        self._conductor.exclusively(lambda: found.append(self._executor.logits(slot, token_ids)))
        return found[0]

    def start(self, advances: Sequence[Advance]) -> Epoch:
        """Begin a request on the GPU."""
        return self._conductor.start(advances)

    def close(self) -> None:
        """Give the GPU's memory back."""
        self._executor.close()


class _Core:
    """The executor as the conductor wants it."""

    def __init__(self, executor: CudaExecutor) -> None:
        self._executor = executor

    def start(self, advances: Sequence[Advance]) -> None:
        self._executor.start([_translated(advance) for advance in advances])

    def read(self) -> bool:
        return self._executor.read(_PATIENCE)

    def take(self) -> list[TokenEvent]:
        return [_event(drawn) for drawn in self._executor.take()]

    def guide(self, slot: int, guide: Guide) -> None:
        self._executor.guide(slot, CudaGuide(guide.forced, guide.mask))

    def interrupt(self) -> None:
        self._executor.interrupt()

    def length(self, slot: int) -> int:
        return self._executor.length(slot)


def _translated(advance: Advance) -> CudaAdvance:
    draw = advance.draw
    return CudaAdvance(
        slot=advance.slot,
        tokens=advance.token_ids,
        budget=advance.budget,
        temperature=draw.temperature,
        top_k=draw.top_k,
        top_p=draw.top_p,
        min_p=draw.min_p,
        seed=draw.seed,
        stop_ids=advance.stop_ids,
        logprobs=advance.logprobs,
        logit_bias=draw.logit_bias,
        guided=advance.guided,
    )


def _event(drawn: Drawn) -> TokenEvent:
    described = drawn.logprobs
    logprob = (
        None if described is None else TokenLogprob(drawn.token, described.logprob, described.top)
    )
    return TokenEvent(drawn.slot, drawn.token, drawn.time_ns, logprob)
