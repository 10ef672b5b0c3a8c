"""What lives as long as a model is loaded: kernels, memory, sequences, and what they count."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from monolane.cuda._device import Device
from monolane.cuda._kept_rows import KeptRows
from monolane.cuda._kernel_header import EVENTS
from monolane.cuda._kernels import Kernels
from monolane.cuda._layout import Layout
from monolane.cuda._mailbox import Mailbox
from monolane.cuda._memory import Memory
from monolane.cuda._peers import connect, join
from monolane.cuda._slots import Slots
from monolane.cuda._trace import Trace
from monolane.model import Weights

_LOGIT_BYTES = 64 << 20  # for recorded logits, at most _LOGIT_ROWS of them
_LOGIT_ROWS = 128


class Resident:
    """A model on a GPU, or on several, without anything of an epoch.

    The first device is the host's: there are logits and trace of all, and the results that are the
    same on each.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        layouts: tuple[Layout, ...],
        weights: Weights,
        slots: int,
    ) -> None:
        self.devices = tuple(devices)
        self.device = device = devices[0]
        self.layout = layouts[-1]  # of the widest kernel
        if len(devices) > 1:
            connect(devices)  # before there is memory, which then can be reached from everywhere
        self.kernels = Kernels(devices, layouts)
        self._memories = [Memory(x, layouts, weights, slots, i) for i, x in enumerate(devices)]
        if len(devices) > 1:
            for memory in self._memories:
                memory.meet(self._memories)
        vocab = weights.config.vocab_size
        width = self.layout.width
        self.mailbox = Mailbox(device, width, vocab)
        others = [Mailbox(x, width, vocab, self.mailbox) for x in devices[1:]]
        self.mailboxes = (self.mailbox, *others)
        self.slots = Slots(slots, self.layout)
        self.kept = KeptRows(devices, [x.cache for x in self._memories], self.layout)
        self.rows = max(self.layout.width, min(_LOGIT_ROWS, _LOGIT_BYTES // (4 * vocab)))
        self.logits = device.allocate(self.rows * vocab * 4)
        self.logits_down = device.pin(self.rows * vocab * 4)
        # float32 [rows, V], as the last launch left them.
        self.logit_rows = self.logits_down.array.view(np.float32).reshape(-1, vocab)
        self.trace: Trace | None = None
        self.pass_number = self.syncs = 0  # since the stamped words were cleared
        self.next_guide = 1  # the stamp that no guide has had
        self.lost = ""  # why the GPU can no longer be used

    def fetch_logits(self, count: int) -> None:
        """Ask for the first rows of recorded logits, in the stream's order."""
        nbytes = count * self.logit_rows.itemsize * self.logit_rows.shape[1]
        self.device.copy_out(self.logits_down, self.logits, nbytes)

    def params(self, number: int) -> npt.NDArray[np.void]:
        """Return the parameters of a device's kernels that do not change from launch to launch."""
        params = self._memories[number].params()
        params["logits"] = self.logits
        params["trace"] = self.trace.address if self.trace else 0
        return params

    def join(self) -> None:
        """Let no device go on before all have come to the present end of their streams."""
        join(self.devices)

    @property
    def faults(self) -> npt.NDArray[np.uint32]:
        """What starved on each device, once fetched: [devices, FAULT_NUMBERS]."""
        return np.stack([mailbox.fault for mailbox in self.mailboxes])

    def make_stamps_last(self, passes: int) -> None:
        """Clear the words if stamps could wrap within so many passes: no stale one can match."""
        events = 2 * len(self.layout.layers) + 2
        if (self.pass_number + passes + 2) * events >= 1 << 31:  # above are bad stamps
            self._clear_words()

    def take_guide_stamps(self, counts: list[int]) -> list[int]:
        """Return the first of so many stamps for each, which no guide had before."""
        if self.next_guide + sum(counts) + 1 >= 1 << 32:
            self.mailbox.clear_guides()
            self.next_guide = 1
        firsts = []
        for count in counts:
            firsts.append(self.next_guide)
            self.next_guide += count
        return firsts

    def start_afresh(self) -> None:
        """Empty all sequences, and forget the stamps of a launch that did not end well."""
        self.slots.clear()
        for memory in self._memories:
            memory.clear_cache()
        self._clear_words()
        self.mailbox.clear_events(EVENTS)

    def _clear_words(self) -> None:
        for memory in self._memories:
            memory.clear_words()
        self.pass_number = self.syncs = 0
