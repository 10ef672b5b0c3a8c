"""The native executor with a model in it: builds the plan, hands over weights, runs epochs."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from monolane import _core
from monolane._core import Executor as NativeExecutor
from monolane._core import kernels
from monolane.cpu._arithmetic import Arithmetic, find_arithmetic
from monolane.cpu._weights import block_formats, check_config, convert, hand_over, keeps_floats
from monolane.epoch import (
    SPAN,
    TOKEN,
    Advance,
    Executor,
    Guide,
    Kept,
    TokenEvent,
    pack,
    unpack_tokens,
)
from monolane.errors import BackendError, RequestError
from monolane.model import ACTIVATIONS, Weights
from monolane.plan import build, cpu, pass_cost, to_arrays


class CpuExecutor(Executor):
    """A model on this machine's cores: C++ threads, pinned, on a static plan.

    dtype     "auto" (as stored), "float32", "bfloat16", "float16", "int8" or "int4"; "auto" alone
              where matrices are stored as GGUF's blocks
    workers   threads; None: one for each core that this process may use
    isa       instruction set; None: the best that this machine has
    """

    name = "cpu"
    keeps_prefixes = True

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
        self.workers = len(cores) if workers is None else workers
        if type(self.workers) is not int or not 1 <= self.workers <= 1024:
            raise BackendError(f"workers: expected 1 to 1024, got {workers!r}")
        blocks = block_formats(weights)
        arithmetic: Arithmetic = find_arithmetic(dtype, weights.config.stored_dtype, blocks)
        self.dtype = arithmetic.name
        self.isa = _find_isa(isa)
        self.context, self.slots = context, slots
        handover = hand_over(weights, arithmetic)
        self.plan = build(
            weights.config,
            cpu(self.workers),
            weights.config.dtype if dtype == "float32" or blocks else self.dtype,
            context=context,
            kv_bytes=arithmetic.keys.bits // 8,
            formats=handover.formats if blocks or keeps_floats(weights.config) else None,
        )
        arrays = to_arrays(self.plan)
        self._core = NativeExecutor(
            header=arrays.header.tobytes(),
            phases=arrays.phases.tobytes(),
            shares=arrays.shares.tobytes(),
            weights=handover.table,
            isa=self.isa,
            activation=ACTIVATIONS.index(arithmetic.activation),
            kv_format=arithmetic.keys.code,
            slots=slots,
            cores=cores,
        )
        self._identity = hashlib.sha256(arrays.header.tobytes() + arrays.phases.tobytes())
        self._identity.update(arrays.shares.tobytes())
        formats = (self.dtype, arithmetic.activation, arithmetic.keys.name)
        self._identity.update(" ".join((self.isa, *formats)).encode())
        windows = [layer.window or 0 for layer in weights.config.layers]
        self.tail_positions = max(windows) if self._core.has_rings else 0
        convert(self._core, self.plan, handover.sources)

    @property
    def converted_bytes(self) -> int:
        """Bytes of the workers' own copies of weights; 0 where all are used as they are stored."""
        return self._core.converted_bytes

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""
        with _our_errors():
            return self._core.length(slot)

    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on."""
        with _our_errors():
            self._core.truncate(slot, length)

    def copy(self, source: int, target: int) -> None:
        """Make a slot hold what another holds."""
        with _our_errors():
            self._core.copy(source, target)

    def save(self, slot: int, begin: int, end: int) -> Kept:
        """Return what a slot holds of positions ``begin`` to ``end - 1``."""
        with _our_errors():
            return Kept(*self._core.save(slot, begin, end))

    def restore(self, slot: int, kept: Kept, count: int) -> None:
        """Put the first ``count`` positions of what was saved behind those of a slot."""
        tail = kept.tail if count == kept.positions else None
        with _our_errors():
            self._core.restore(slot, count, kept.rows, tail)

    def identity(self) -> str:
        """Return a hash of plan, formats, instruction set and the core itself."""
        found = self._identity.copy()
        found.update(Path(_core.__file__).read_bytes())  # another build may sum in another order
        return found.hexdigest()

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]."""
        with _our_errors():
            found: npt.NDArray[np.float32] = self._core.logits(slot, list(token_ids))
            return found

    def start(self, advances: Sequence[Advance]) -> None:
        """Begin an epoch on the core's own threads."""
        packed = pack(advances)
        with _our_errors():
            self._core.start(
                packed.records.tobytes(), packed.tokens, packed.stops, packed.biases.tobytes()
            )

    def read(self, seconds: float) -> bool:
        """Wait for tokens, and keep them; return whether the epoch is over."""
        return self._core.read(int(seconds * 1000))

    def take(self) -> list[TokenEvent]:
        """Return the tokens kept so far, once."""
        return unpack_tokens(self._core.take().view(TOKEN.dtype))

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot."""
        with _our_errors():
            self._core.guide(slot, guide.forced, guide.mask)

    def interrupt(self) -> None:
        """Ask the epoch to end within one pass."""
        self._core.interrupt()

    def bytes_per_token(self, length: int) -> int:
        """Bytes that a pass of one token streams behind ``length`` tokens, by the plan."""
        return pass_cost(self.plan, 1, length).bytes

    def set_trace(self, on: bool) -> None:
        """From the next epoch on, note when each worker is in which phase, or do not."""
        with _our_errors():
            self._core.set_trace(on)

    def take_spans(self) -> npt.NDArray[np.void]:
        """Return and forget the notes of the traced epochs: SPAN records."""
        with _our_errors():
            return self._core.take_spans().view(SPAN.dtype)


@contextmanager
def _our_errors() -> Iterator[None]:
    """Turn what C++ throws into errors of ours: a wrong argument, or a call at the wrong time."""
    try:
        yield
    except (BackendError, RequestError):
        raise
    except ValueError as error:
        raise RequestError(str(error)) from None
    except RuntimeError as error:
        raise BackendError(str(error)) from None


def _find_isa(name: str | None) -> str:
    known = kernels.supported()
    if name is None:
        return kernels.best()
    if name not in known:
        raise BackendError(f"isa: expected one of {', '.join(known)}, got {name!r}")
    return name
