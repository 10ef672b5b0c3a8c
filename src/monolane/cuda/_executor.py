"""The monokernel as an executor: a model on one GPU or on several, one epoch at a time."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.cuda._compile import KERNELS
from monolane.cuda._device import Device, GpuInfo
from monolane.cuda._epoch import Epoch, Limits
from monolane.cuda._formats import find_dtype
from monolane.cuda._kernel_header import specialisation
from monolane.cuda._layout import Layout
from monolane.cuda._loaded_model import Resident
from monolane.cuda._peers import close_all, open_devices
from monolane.cuda._plan_device import WIDTHS, lay_out_widths
from monolane.cuda._slot_progress import Running
from monolane.cuda._trace import Trace
from monolane.errors import BackendError, RequestError
from monolane.executor_api import Advance, Executor, Guide, Kept, Loading, TokenEvent
from monolane.model import Weights, cut_weights, find_lanes


class CudaExecutor(Executor):
    """A model on GPUs, which the executor owns from now on; None: as many of the first ones.

    dtype     "auto" (as stored; float32 and what is quantised as bfloat16), "bfloat16", "float16"
              or "float8"
    lanes     into which a dense model is cut; None: one for each GPU
    options   others of ``Loading``; ``devices`` is a divisor of the number of lanes

    BackendError if model and GPU do not fit together; the message says what to do.
    """

    name = "cuda"
    keeps_prefixes = True
    WIDTHS = WIDTHS  # rows of a pass at most, of each kernel
    WATCHDOG_SECONDS = 5.0  # patience of a wait inside the kernel: a pass takes milliseconds
    HANG_SECONDS = 120.0  # patience of the host, for what the kernel's own does not end

    def __init__(
        self,
        weights: Weights,
        dtype: str = "auto",
        device: Device | Sequence[Device] | None = None,
        *,
        context: int,
        slots: int,
        lanes: int | None = None,
        **options: Any,
    ) -> None:
        loading = Loading.of(self.name, dtype, context, slots, options)
        if device is None:
            opened = open_devices(loading.devices)
        else:
            opened = tuple(device) if isinstance(device, Sequence) else (device,)
        try:
            self.dtype = find_dtype(dtype, weights.config)
            lanes = find_lanes(weights.config, len(opened), lanes, "devices")
            weights = cut_weights(weights, lanes)
            layouts = lay_out_widths(
                weights.config, opened[0].info, self.dtype, context, self.WIDTHS, len(opened)
            )
            self._resident = Resident(opened, layouts, weights, slots)
        except BaseException:
            close_all(opened)
            raise
        self.context, self.slots = context, slots
        self.plan: Any = self.layout.plan
        self.workers = self.layout.plan.groups.workers
        self.tail_positions = self._resident.kept.tail_positions
        self._layouts = layouts
        self._epoch: Epoch | None = None

    @property
    def gpu(self) -> GpuInfo:
        """What the first GPU says of itself; all are of one kind."""
        return self._resident.device.info

    @property
    def layout(self) -> Layout:
        """Of the widest kernel."""
        return self._resident.layout

    # ---- sequences -------------------------------------------------------------------------------

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot; as of the last launch while an epoch runs."""
        return self._resident.slots.length(slot)

    def truncate(self, slot: int, length: int) -> None:
        """Take back the tokens of a slot from ``length`` on.

        RequestError if a windowed layer no longer holds the keys that the next token would see.
        """
        self._check_idle()
        self._resident.slots.truncate(slot, length)

    def copy(self, source: int, target: int) -> None:
        """Make a slot hold what another holds."""
        self._check_idle()
        slots = self._resident.slots
        slots.length(source), slots.length(target)  # which check them
        self._resident.kept.copy(source, target)
        slots.copy(source, target)

    def save(self, slot: int, begin: int, end: int) -> Kept:
        """Return what a slot holds of positions ``begin`` to ``end - 1``."""
        self._check_idle()
        slots = self._resident.slots
        slots.check_span(slot, begin, end)
        return self._resident.kept.save(slot, begin, end, slots.has_tail(slot, end))

    def restore(self, slot: int, kept: Kept, count: int) -> None:
        """Put the first ``count`` positions of what was saved behind those of a slot."""
        self._check_idle()
        slots = self._resident.slots
        begin = slots.length(slot)
        if not 0 <= count <= min(kept.positions, self.context - begin):
            raise RequestError(
                f"restore: expected at most {min(kept.positions, self.context - begin)} positions, "
                f"got {count}"
            )
        slots.restore(slot, count, self._resident.kept.restore(slot, begin, kept, count))

    def identity(self) -> str:
        """Return a hash of the kernels: their sources, and what they were compiled for."""
        found = hashlib.sha256()
        for path in sorted(KERNELS.iterdir()):
            found.update(path.read_bytes())
        for layout in self._layouts:
            found.update(specialisation(layout).encode())
        return found.hexdigest()

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]."""
        self._check_idle()
        resident = self._resident
        resident.slots.check_tokens(slot, token_ids)
        found = []
        for first in range(0, len(token_ids), resident.rows):
            tokens = tuple(token_ids[first : first + resident.rows])
            advance = Advance(slot=slot, token_ids=tokens, budget=1)
            self._begin([Running(advance, tokens, 1, all_logits=True)])
            try:
                while not self.read(1.0):
                    pass
            except BaseException:
                self._end()
                raise
            found.append(resident.logit_rows[: len(tokens)].copy())
        return np.concatenate(found)

    # ---- epochs ----------------------------------------------------------------------------------

    def start(self, advances: Sequence[Advance]) -> None:
        """Begin an epoch and return; one at a time. RequestError if it cannot be run."""
        self._check_idle()
        self._resident.slots.check(advances)
        self._begin([Running(x, x.token_ids, x.budget) for x in advances])

    def read(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for tokens, and keep them; return whether the epoch is over.

        BackendError if the kernel failed: the slots are empty then, and the executor usable.
        """
        return self._epoch is None or self._epoch.read(seconds)

    def take(self) -> list[TokenEvent]:
        """Return the tokens kept so far, once."""
        return [] if self._epoch is None else self._epoch.take()

    def interrupt(self) -> None:
        """Ask the epoch to end within one pass; read it to its end."""
        if self._epoch is not None:
            self._epoch.interrupt()

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot of the epoch, from any thread.

        Once at first, then once after each draw. Forced tokens leave the epoch like drawn ones,
        without log-probabilities. RequestError if the epoch has no such slot.
        """
        if self._epoch is None:
            raise RequestError(f"guide: expected a guided slot of the epoch, got {slot}")
        self._epoch.guide(slot, guide)

    def _begin(self, running: list[Running]) -> None:
        kept = [] if self._epoch is None else self._epoch.kept
        limits = Limits(self.WATCHDOG_SECONDS, self.HANG_SECONDS)
        self._epoch = Epoch(self._resident, running, kept, limits)
        self._epoch.begin()

    def _end(self) -> None:
        """End what runs, and wait for it."""
        if self._epoch is not None and not self._epoch.over:
            self.interrupt()
            with suppress(BackendError):  # it ends all the same
                while not self.read(1.0):
                    pass

    def _check_idle(self) -> None:
        if self._resident.lost:
            raise BackendError(self._resident.lost)
        if self._epoch is not None and not self._epoch.over:
            raise BackendError("an epoch is running; read it to its end or stop it first")

    # ---- trace and end ---------------------------------------------------------------------------

    def set_trace(self, on: bool) -> None:
        """From the next epoch on, note when each block is in which phase, or do not."""
        self._check_idle()
        resident = self._resident
        if resident.trace is not None:
            resident.trace.free()
        resident.trace = Trace(resident.device, self.layout) if on else None

    def take_trace(self) -> npt.NDArray[np.uint64]:
        """Return and forget what was noted: see ``Trace.take``."""
        self._check_idle()
        if self._resident.trace is None:
            raise BackendError("trace: expected set_trace(True) before the epoch")
        return self._resident.trace.take()

    def close(self) -> None:
        """End what runs, and give the GPU's memory back."""
        self._end()
        if not self._resident.lost:
            close_all(self._resident.devices)
