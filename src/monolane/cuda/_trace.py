"""When each block arrived at a phase, began it and ended it, as the kernel notes it."""

import numpy as np
import numpy.typing as npt

from monolane.cuda._device import Device
from monolane.cuda._kernel_header import TRACE_PASSES
from monolane.cuda._layout import Layout

_MOMENTS = 3  # arrived, begun, ended
_PATIENCE = 60.0  # seconds for the copy


class Trace:
    """Memory for the last TRACE_PASSES passes of every launch that is given its address."""

    def __init__(self, device: Device, layout: Layout) -> None:
        # EMBED is not traced, and GATHER belongs to HEAD's step.
        steps = len(layout.program.steps) - 1
        self._shape = (TRACE_PASSES, steps, layout.plan.groups.workers, _MOMENTS)
        self._device = device
        self._bytes = 8 * int(np.prod(self._shape))
        self.address = device.allocate(self._bytes)
        device.clear(self.address, self._bytes)

    def take(self) -> npt.NDArray[np.uint64]:
        """Return and forget the notes: nanoseconds of the GPU's clock, 0 where nothing was noted.

        uint64 [TRACE_PASSES, phases, W, 3]; pass p lies in row p % TRACE_PASSES.
        """
        pinned = self._device.pin(self._bytes)
        self._device.copy_out(pinned, self.address, self._bytes)
        self._device.clear(self.address, self._bytes)
        self._device.wait(self._device.mark(), _PATIENCE)
        notes = pinned.array.view(np.uint64).reshape(self._shape).copy()
        self._device.unpin(pinned)
        return notes

    def free(self) -> None:
        """Give the memory back."""
        self._device.free(self.address)
