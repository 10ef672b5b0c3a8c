"""The monokernel behind the engine's contract."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from monolane.cuda import Advance as CudaAdvance
from monolane.cuda import CudaDevice, CudaExecutor, Device, Drawn
from monolane.cuda import Guide as CudaGuide
from monolane.epoch import Advance, Executor, Guide, TokenEvent, TokenLogprob
from monolane.errors import BackendError
from monolane.model import Weights


class CudaBackend(Executor):
    """One kernel launch per epoch, on the first GPU."""

    name = "cuda"

    def __init__(
        self,
        weights: Weights,
        dtype: str = "auto",
        *,
        context: int,
        slots: int,
        workers: int | None = None,
        device: Device | None = None,
    ) -> None:
        if workers is not None:
            raise BackendError(f"workers: the plan of a GPU says how many, got {workers!r}")
        gpu = device or CudaDevice()
        try:
            self._executor = CudaExecutor(weights, dtype, gpu, context=context, slots=slots)
        except BaseException:
            gpu.close()
            raise
        self.dtype = self._executor.dtype
        self.context = context
        self.slots = slots

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""
        return self._executor.length(slot)

    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on."""
        self._executor.truncate(slot, length)

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]."""
        return self._executor.logits(slot, token_ids)

    def start(self, advances: Sequence[Advance]) -> None:
        """Begin an epoch on the GPU."""
        self._executor.start([_translated(advance) for advance in advances])

    def read(self, seconds: float) -> bool:
        """Wait for tokens, and keep them; return whether the epoch is over."""
        return self._executor.read(seconds)

    def take(self) -> list[TokenEvent]:
        """Return the tokens kept so far, once."""
        return [_event(drawn) for drawn in self._executor.take()]

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot."""
        self._executor.guide(slot, CudaGuide(guide.forced, guide.mask))

    def interrupt(self) -> None:
        """Ask the epoch to end within one pass."""
        self._executor.interrupt()

    def close(self) -> None:
        """Give the GPU's memory back."""
        self._executor.close()


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
