"""The memory in which host and kernel hand an epoch to each other.

On the way in, advances, progress, tokens and stop ids go up in one copy; on the way out, progress,
epoch and fault come down in one. Between the kernels of an epoch nothing passes through the host:
what one leaves the next begins with. Tokens leave through a ring in pinned memory
while the kernels run, and the host's wish to end lies beside it; so do guides, which the host
leaves for kernels that run.

Of several devices each has a mailbox; the first one's has the ring, the wish and the guides for
all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.cuda._device import Device, Pinned
from monolane.cuda._faults import FAULT_NUMBERS
from monolane.cuda._kernel_header import EVENTS, MASKED, PARKED, mask_words
from monolane.cuda._params import ADVANCE_DTYPE, EPOCH_DTYPE, PROGRESS_DTYPE
from monolane.cuda._slot_progress import Running
from monolane.executor_api import pack

_EVENT_BYTES = 16  # two stamped words
_CONTROL_BYTES = 64  # a line of its own


class Mailbox:
    """Memory for ``width`` advances of a model with ``vocab`` tokens."""

    def __init__(
        self, device: Device, width: int, vocab: int, first: "Mailbox | None" = None
    ) -> None:
        self._device = device
        down = [
            ("progress_out", PROGRESS_DTYPE, (width,)),
            ("epoch_out", EPOCH_DTYPE),
            ("fault", "<u4", (FAULT_NUMBERS,)),
        ]
        up = [
            ("progress_between0", PROGRESS_DTYPE, (width,)),
            ("epoch_between0", EPOCH_DTYPE),
            ("progress_between1", PROGRESS_DTYPE, (width,)),
            ("epoch_between1", EPOCH_DTYPE),
            ("progress_in", PROGRESS_DTYPE, (width,)),
            ("epoch_in", EPOCH_DTYPE),
            ("advances", ADVANCE_DTYPE, (width,)),
        ]
        self._down = np.dtype(down)
        self._form = np.dtype([*down, *up])  # all of it goes up, so that all begins as zeros
        assert self._form.fields is not None
        self._offsets = {name: field[1] for name, field in self._form.fields.items()}
        assert self._offsets["advances"] % 8 == 0, "seeds are read at once"
        self._results = device.pin(self._down.itemsize)
        # Pinned memory has the same address for all devices.
        nbytes = _CONTROL_BYTES + EVENTS * _EVENT_BYTES
        self._shared: Pinned = first._shared if first else device.pin(nbytes)
        self._control = self._shared.array[:4].view(np.uint32)
        # [EVENTS][2] stamped words, each read at once: the stamp in the upper half.
        self._ring = self._shared.array[_CONTROL_BYTES:].view(np.uint64).reshape(EVENTS, 2)
        # [width][1 + M] stamped words: a Verdict, then the mask; each with the stamp of its draw.
        nbytes = 8 * width * (1 + mask_words(vocab))
        self._guide_memory: Pinned = first._guide_memory if first else device.pin(nbytes)
        self._guides = self._guide_memory.array.view(np.uint64).reshape(width, -1)
        self._grow(1 << 16)

    def write(
        self,
        running: Sequence[Running],
        lengths: Sequence[int],
        budgets: Sequence[int],
        first_guides: Sequence[int],
        epoch: Mapping[str, int],
        seen: Sequence[npt.NDArray[np.uint32] | None],
    ) -> None:
        """Lay out a launch and send it.

        lengths        tokens now in the slots
        budgets        tokens to draw in this launch
        first_guides   the stamp of each one's first guide
        epoch          fields of EPOCH that go on from the last launch
        seen           what each one's penalties look at, as Advance.seen in _params; None: nothing
        """
        packed = pack(
            [
                replace(x.advance, token_ids=x.tokens, budget=budget, history=())
                for x, budget in zip(running, budgets, strict=True)
            ]
        )
        tables = [table for table in seen if table is not None]
        lists = [packed.tokens, packed.stops, packed.biases, *tables]
        sizes = [array.nbytes for array in lists]
        nbytes = self._form.itemsize + sum(sizes)
        if nbytes > self._staging.array.nbytes:
            self._device.unpin(self._staging)
            self._device.free(self._address)
            self._grow(2 * nbytes)
        array = self._staging.array
        array[: self._form.itemsize] = 0
        form = array[: self._form.itemsize].view(self._form)[0]
        for name, value in epoch.items():
            form["epoch_in"][name] = value
        form["progress_in"]["length"][: len(running)] = lengths
        records = form["advances"][: len(running)]
        for name in packed.records.dtype.names or ():
            records[name] = packed.records[name]
        records["all_logits"] = [x.all_logits for x in running]
        records["first_guide"] = first_guides
        at = self._address + nbytes - sum(sizes[3:])
        for record, table in zip(records, seen, strict=True):
            if table is not None:
                record["seen"] = at
                at += table.nbytes
        array[self._form.itemsize : nbytes] = np.concatenate([x.view(np.uint8) for x in lists])
        self._tokens = self._address + self._form.itemsize
        self._stops = self._tokens + sizes[0]
        self._biases = self._stops + sizes[1]
        self._guided = any(x.advance.guided for x in running)
        self._device.copy_in(self._address, self._staging, nbytes)

    def fill(self, params: npt.NDArray[np.void], number: int, count: int) -> None:
        """Put the addresses into the parameters of kernel ``number`` of ``count`` in a row."""
        # Two places between kernels: a block that starts late still reads what the kernel before
        # left, while another may have ended and written.
        begin = "in" if number == 0 else f"between{number % 2}"
        end = "out" if number == count - 1 else f"between{(number + 1) % 2}"
        params["advances"] = self._at("advances")
        params["progress_in"] = self._at(f"progress_{begin}")
        params["epoch_in"] = self._at(f"epoch_{begin}")
        params["progress_out"] = self._at(f"progress_{end}")
        params["epoch_out"] = self._at(f"epoch_{end}")
        params["fault"] = self._at("fault")
        params["tokens"], params["stops"] = self._tokens, self._stops
        params["biases"] = self._biases
        params["guides"] = self._guide_memory.address if self._guided else 0
        params["control"] = self._shared.address
        params["events"] = self._shared.address + _CONTROL_BYTES

    def fetch(self) -> None:
        """Ask for the results, in the stream's order."""
        self._device.copy_out(self._results, self._address, self._down.itemsize)

    @property
    def progress(self) -> npt.NDArray[np.void]:
        """How far each advance has come, once fetched: PROGRESS_DTYPE [width]."""
        return self._result("progress_out")

    @property
    def epoch(self) -> npt.NDArray[np.void]:
        """How the last kernel left the epoch, once fetched: EPOCH_DTYPE []."""
        return self._result("epoch_out")

    @property
    def fault(self) -> npt.NDArray[np.uint32]:
        """What starved, once fetched; zeros if nothing did: [FAULT_NUMBERS]."""
        return self._result("fault")

    def ask_to_end(self, wish: bool) -> None:
        """Ask the kernels to end within one pass, or take the wish back."""
        self._control[0] = wish

    def event(self, number: int) -> tuple[int, int] | None:
        """Return (token, index of the advance) of an event, or None if it is not there yet."""
        if number >= EVENTS:
            return None
        token, advance = int(self._ring[number, 0]), int(self._ring[number, 1])
        if token >> 32 != number + 1 or advance >> 32 != number + 1:
            return None
        return token & 0xFFFFFFFF, advance & 0xFFFFFFFF

    def guide(self, index: int, stamp: int, mask: npt.NDArray[np.uint32] | None) -> None:
        """Leave a guide for a draw of advance ``index``: a mask, or the wish to have the row back.

        What says so comes after the mask, and nobody reads the mask before.
        """
        row, high = self._guides[index], np.uint64(stamp << 32)
        if mask is not None:
            row[1:] = mask.astype(np.uint64) | high
        row[0] = np.uint64(PARKED if mask is None else MASKED) | high

    def clear_guides(self) -> None:
        """Forget all guides, whose stamps may then be used again."""
        self._guides[...] = 0

    def clear_events(self, count: int) -> None:
        """Forget the first events, whose stamps the next launch uses again."""
        self._ring[:count] = 0

    def _at(self, name: str) -> int:
        return self._address + self._offsets[name]

    def _result(self, name: str) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._results.array.view(self._down)[0][name]
        return found

    def _grow(self, nbytes: int) -> None:
        self._staging = self._device.pin(nbytes)
        self._address = self._device.allocate(nbytes)
