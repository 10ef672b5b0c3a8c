"""A model whose kernel keeps its words, and the words of a launch, however it ended.

The words are looked at where they are, beside the stream: a launch that hangs does not keep them
from being read. A kernel that faults takes the context along, and device memory with it; words that
were *pinned*, in the host's memory, outlast that too, but each exchange then crosses the bus, so
that times are others, and with them what may go wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from bench.gpu._stage import Stage
from bench.gpu.monokernel._events import Words, arrange
from bench.gpu.monokernel._model import Model, Variant
from monolane.cuda import CudaDevice, Device
from monolane.cuda._device import Pinned
from monolane.cuda._faults import FAULT_NUMBERS, WAITS, describe_fault
from monolane.cuda._layout import Layout
from monolane.errors import BackendError
from monolane.executor_api import Advance
from monolane.model import Weights

_PEEK_SECONDS = 20.0  # for a copy of at most 16 MB, beside a kernel that may hang


@dataclass(frozen=True)
class Left:
    """What a run left behind."""

    words: Words | None  # None: they were lost with the device's memory
    tokens: tuple[tuple[int, int], ...]  # (slot, token) as drawn
    trouble: str = ""  # why it did not end well
    fault: tuple[int, ...] = ()  # Params.fault; zeros where no wait starved
    lost: bool = False  # the device can no longer be used from this process
    early: bool = False  # the trouble came before the run, while what lies behind it was fed

    @property
    def whole(self) -> Words:
        """The words, of a run that lost none."""
        assert self.words is not None, self.trouble
        return self.words

    @property
    def ended(self) -> str:
        """How, in a word."""
        if self.lost:
            return "lost"
        return "starved" if any(self.fault) else "failed"


class KeptModel:
    """One width of a model, with room for the words of ``passes`` passes."""

    def __init__(
        self,
        stage: Stage,
        weights: Weights,
        dtype: str,
        width: int,
        passes: int,
        *,
        sms: int,
        watchdog: float | None = None,
        hang: float | None = None,
        pinned: bool = False,
    ) -> None:
        self._model = Model(
            stage, widths=(width,), slots=2, context=weights.config.max_positions,
            weights=weights, dtype=dtype, variant=Variant("words", kept_passes=passes),
            watchdog=watchdog, hang=hang, sms=sms,
        )  # fmt: skip
        self.device: Device = self._model.device
        self._resident = self._model.executor._resident
        (self._memory,) = self._resident._memories
        base = self._memory._first_word
        names = self._memory._words
        self._places = {x: (int(self._memory._params[x]) - base, n) for x, n in names.items()}
        total = max(at + nbytes for at, nbytes in self._places.values())
        self._pinned = self._move(total) if pinned else None
        self._window = Window(self.device, base, total)
        fault = self._resident.mailbox._at("fault")
        self._fault_window = Window(self.device, fault, 4 * FAULT_NUMBERS)

    @property
    def layout(self) -> Layout:
        """Of the kernel."""
        return self._model.layout

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """Those that the last run drew from, where it was asked for them: [draws, V]."""
        return self._resident.logit_rows.copy()

    def run(self, advances: Sequence[Advance], behind: Sequence[int] = ()) -> Left:
        """One epoch on empty slots; words begin as zeros, passes count from 0.

        ``behind``: what slot 0 has before. Passes that feed it count, their words are forgotten.
        """
        with self._cleared_by_the_host():
            self._resident.start_afresh()
        if behind:
            fed = self._epoch([Advance(slot=0, token_ids=tuple(behind), budget=1)])
            if fed.trouble:
                return replace(fed, early=True)
            with self._cleared_by_the_host():
                self._memory.clear_words()
        return self._epoch(advances)

    @contextmanager
    def _cleared_by_the_host(self) -> Iterator[None]:
        """Where words are pinned: the device need not clear what is the host's."""
        if self._pinned is None:
            yield
            return
        self._pinned.array[:] = 0
        with patch.object(self._memory, "clear_words"):
            yield

    def _epoch(self, advances: Sequence[Advance]) -> Left:
        seen: dict[str, Any] = {}

        def look() -> None:  # before the executor clears what a fault left
            seen["words"], seen["fault"] = self._read(), self._read_fault()

        try:
            with patch.object(self._resident, "start_afresh", look):
                tokens = tuple((x.slot, x.token_id) for x in self._model.run(*advances))
        except (BackendError, AssertionError) as error:  # an assertion: of counts that do not agree
            if not seen:  # it hangs, or the device is lost
                look()
            trouble, fault = str(error), seen["fault"]
            if fault.any():
                told = describe_fault(fault, self.layout.plan)
                trouble = f"{trouble}; {told}" if self.lost else told
            return Left(seen["words"], (), trouble, tuple(fault.tolist()), self.lost)
        return Left(self._read(), tokens)

    @property
    def lost(self) -> bool:
        """Whether the device can no longer be used from this process."""
        return bool(self._resident.lost)

    def close(self) -> None:
        """Give the device back, unless it is lost."""
        if not self.lost:
            self._window.close()
            self._fault_window.close()
        self._model.close()

    def _move(self, nbytes: int) -> Pinned:
        """Put the words into the host's memory."""
        pinned = self.device.pin(nbytes)
        for name, (at, _) in self._places.items():
            self._memory._params[name] = pinned.address + at
        return pinned

    def _read_fault(self) -> npt.NDArray[np.uint32]:
        nothing = np.zeros(FAULT_NUMBERS, np.uint32)
        try:
            found = self._fault_window.read().view(np.uint32)
        except BackendError:
            return nothing
        return found if int(found[0]) in WAITS else nothing  # before a first launch it is anything

    def _read(self) -> Words | None:
        if self._pinned is not None:
            memory = self._pinned.array.copy()
        else:
            try:
                memory = self._window.read()
            except BackendError:
                return None
        buffers = {
            x: memory[at : at + nbytes].view(np.uint64) for x, (at, nbytes) in self._places.items()
        }
        return arrange(self.layout, buffers)


class Window:
    """A look at a device's memory beside its stream, which may hang.

    Made before anything is launched: pinning memory would wait for what runs.
    """

    def __init__(self, device: Device, address: int, nbytes: int) -> None:
        self._device, self._address, self._nbytes = device, address, nbytes
        if isinstance(device, CudaDevice):
            flags = device._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            self._stream = device._call("cuStreamCreate", int(flags))
            self._pinned = device.pin(nbytes)

    def read(self) -> npt.NDArray[np.uint8]:
        """The memory as it is; BackendError if the device is lost."""
        device = self._device
        if not isinstance(device, CudaDevice):
            view: npt.NDArray[np.uint8] = device._view(self._address, self._nbytes)  # type: ignore[attr-defined]
            return view.copy()
        host = device._pinned[self._pinned.address]
        device._call("cuMemcpyDtoHAsync", host, self._address, self._nbytes, self._stream)
        device.wait(device.mark(self._stream), _PEEK_SECONDS)
        return self._pinned.array.copy()

    def close(self) -> None:
        """Give back what it took."""
        if isinstance(self._device, CudaDevice):
            self._device.unpin(self._pinned)
            self._device._call("cuStreamDestroy", self._stream)
