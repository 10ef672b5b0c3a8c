"""The native executor with a model in it: builds the plan, hands over weights, names its limits."""

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from monolane._core import Executor, kernels
from monolane.cpu._formats import Arithmetic, find_arithmetic
from monolane.cpu._weights import check_config, convert, hand_over
from monolane.errors import BackendError
from monolane.model import Weights
from monolane.plan import Plan, build, cpu, pass_cost, to_arrays

# slot, tokens, budget, temperature, top_k, top_p, min_p, seed, stop ids, logprobs or -1, biases,
# guided
AdvanceTuple = tuple[
    int,
    Sequence[int],
    int,
    float,
    int,
    float,
    float,
    int,
    Sequence[int],
    int,
    Sequence[tuple[int, float]],
    bool,
]


class CpuExecutor:
    """A model on this machine's cores.

    dtype     "auto" (as stored), "float32", "bfloat16", "float16", "int8" or "int4"
    workers   threads; None: one for each core that this process may use
    isa       instruction set; None: the best that this machine has
    """

    def __init__(
        self,
        weights: Weights,
        dtype: str = "auto",
        *,
        context: int,
        slots: int,
        workers: int | None = None,
        isa: str | None = None,
    ) -> None:
        check_config(weights.config)
        cores = sorted(os.sched_getaffinity(0))
        count = len(cores) if workers is None else workers
        if type(count) is not int or not 1 <= count <= 1024:
            raise BackendError(f"workers: expected 1 to 1024, got {workers!r}")
        self.arithmetic: Arithmetic = find_arithmetic(dtype, weights.config.stored_dtype)
        self.isa = _find_isa(isa)
        plan_dtype = weights.config.dtype if dtype == "float32" else self.arithmetic.name
        kv_bytes = self.arithmetic.kv.bytes
        self.plan: Plan = build(
            weights.config, cpu(count), plan_dtype, context=context, kv_bytes=kv_bytes
        )
        self.context, self.slots = context, slots
        arrays = to_arrays(self.plan)
        handover = hand_over(weights, self.arithmetic)
        self._core = Executor(
            arrays.header.tobytes(),
            arrays.phases.tobytes(),
            arrays.shares.tobytes(),
            handover.table,
            self.isa,
            self.arithmetic.activation,
            self.arithmetic.kv,
            slots,
            cores,
        )
        convert(self._core, self.plan, handover.sources)

    @property
    def core(self) -> Executor:
        """The native object: epochs, logits, traces."""
        return self._core

    def bytes_per_token(self, length: int) -> int:
        """Bytes that a pass of one token streams behind ``length`` tokens."""
        return pass_cost(self.plan, 1, length).bytes

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]."""
        found: npt.NDArray[np.float32] = self._core.logits(slot, list(token_ids))
        return found


def _find_isa(name: str | None) -> str:
    known = kernels.supported()
    if name is None:
        return kernels.best()
    if name not in known:
        raise BackendError(f"isa: expected one of {', '.join(known)}, got {name!r}")
    return name
