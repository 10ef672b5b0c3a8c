"""The kernels of a model, one for each width, and which of them serve what is to be done.

A kernel serves as many sequences as it is wide. It hands over to a narrower one when no more rows
are left than that one holds: prompts run wide, the answers that follow narrow.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from monolane.cuda._device import Device, Kernel, Launch
from monolane.cuda._kernel_header import specialisation
from monolane.cuda._layout import Layout


class Kernels:
    """Compiled monokernels, on each of some devices of one kind; the widths ascend."""

    def __init__(self, devices: Sequence[Device], layouts: Sequence[Layout]) -> None:
        self._devices = tuple(devices)
        self._layouts = {layout.width: layout for layout in layouts}
        # Each is proven once: for eight devices that takes seconds. They come one by one: what
        # the first has compiled the others find in the cache.
        headers = {width: specialisation(layout) for width, layout in self._layouts.items()}
        self._compiled = [_compile(device, headers) for device in devices]

    @property
    def widths(self) -> tuple[int, ...]:
        """Rows of a pass at most, of each kernel."""
        return tuple(self._layouts)

    def chain(self, sequences: int, rows: int) -> tuple[int, ...]:
        """Return the widths of the kernels to launch, one after the other."""
        return chain(self.widths, sequences, rows)

    def would_narrow(self, sequences: int, left: int) -> bool:
        """Return whether a narrower kernel could serve once only ``left`` sequences go on."""
        return chain(self.widths, left, left) != chain(self.widths, sequences, sequences)

    def launch(self, width: int, params: npt.NDArray[np.void]) -> None:
        """Launch one of them, on the device that its parameters are for."""
        number = int(params["device"])
        layout = self._layouts[width]
        shape = Launch(
            blocks=layout.device_workers,
            threads=32 * (layout.warps + 1),
            shared_bytes=layout.shared.total,
            cooperative=True,
        )
        self._devices[number].launch(self._compiled[number][width], shape, params.tobytes())


def chain(widths: Sequence[int], sequences: int, rows: int) -> tuple[int, ...]:
    """Return the widths, descending, of the kernels that feed ``rows`` rows of some sequences.

    The first is the narrowest that holds all rows at once, or the widest; the last is the narrowest
    that serves so many sequences.
    """
    able = [width for width in widths if width >= sequences]
    first = next((width for width in able if width >= rows), able[-1])
    return tuple(width for width in reversed(able) if width <= first)


def _compile(device: Device, headers: Mapping[int, str]) -> dict[int, Kernel]:
    """Compile the kernels of all widths side by side: some two seconds each, where the cache has
    none.
    """

    def one(header: str) -> Kernel:
        return device.kernel("monokernel.cu", "monokernel", {"specialisation.h": header})

    with ThreadPoolExecutor(len(headers)) as pool:
        return dict(zip(headers, pool.map(one, headers.values()), strict=True))
