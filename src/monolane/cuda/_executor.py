"""A model on a GPU: epochs as launches of the monokernel, several requests in one epoch.

The kernels of a launch follow each other in the stream, from wide to narrow, without a word from
the host: what one leaves, the next begins with. Only where what runs changes in another way - a
request ends while others wait, or few enough are left for a narrower kernel - the host asks for the
end within a pass, and lays out the next launch.

A guided slot's kernel waits, at each draw, for what the host says of it; who guides works that out
while the pass runs. Whoever is late, or has forced tokens to put first, gets the row back (it is
*parked*), and is served again by a launch that begins once the guide is there.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from monolane.cuda._advance import Advance, Drawn, Guide, Running
from monolane.cuda._desk import Desk
from monolane.cuda._device import Device, Mark
from monolane.cuda._faults import describe_fault
from monolane.cuda._formats import find_dtype
from monolane.cuda._kernels import Kernels
from monolane.cuda._layout import Layout
from monolane.cuda._logprobs import describe_logprobs
from monolane.cuda._machine import WIDTHS, lay_out_widths
from monolane.cuda._resident import Resident
from monolane.cuda._slots import Slots
from monolane.cuda._specialise import EVENTS, PARKED_TOKEN
from monolane.cuda._trace import Trace
from monolane.errors import BackendError, RequestError
from monolane.model import Weights

_POLL_SECONDS = 100e-6  # between two looks at the ring: a tenth of a token of a large model
_LOGIT_BYTES = 64 << 20  # for recorded logits, at most _LOGIT_ROWS of them
_LOGIT_ROWS = 128
_LOGPROB_ROWS = 32  # of a launch: so long do tokens with log-probabilities wait at most
# Patience of a pass with a late guide: of one that serves nobody else, and of one that does.
_ALONE_SECONDS, _IN_COMPANY_SECONDS = 20e-3, 50e-6
_LOST = "this GPU can no longer be used from this process: start a new one"


class CudaExecutor:
    """A model on the GPU ``device``, which the executor owns from now on.

    dtype      "auto" (as stored, float32 as bfloat16), "bfloat16", "float16" or "float8"
    context    tokens that a sequence may hold
    slots      sequences

    BackendError if model and GPU do not fit together; the message says what to do.
    """

    WIDTHS = WIDTHS  # rows of a pass at most, of each kernel
    WATCHDOG_SECONDS = 5.0  # patience of a wait inside the kernel: a pass takes milliseconds
    HANG_SECONDS = 120.0  # patience of the host, for what the kernel's own does not end

    def __init__(
        self, weights: Weights, dtype: str, device: Device, *, context: int, slots: int
    ) -> None:
        self.dtype = find_dtype(dtype, weights.config)
        self.context, self.slots = context, slots
        self._device = device
        layouts = lay_out_widths(weights.config, device.info, self.dtype, context, self.WIDTHS)
        self.layout: Layout = layouts[-1]  # of the widest kernel
        self._kernels = Kernels(device, layouts)
        self._resident = Resident(device, layouts, weights, slots)
        vocab = weights.config.vocab_size
        self._desk = Desk(device, self.layout.width, vocab)
        self._slots = Slots(slots, self.layout)
        self._rows = max(self.layout.width, min(_LOGIT_ROWS, _LOGIT_BYTES // (4 * vocab)))
        self._logits = device.allocate(self._rows * vocab * 4)
        self._logits_down = device.pin(self._rows * vocab * 4)
        self._logit_rows = self._logits_down.array.view(np.float32).reshape(-1, vocab)
        self._trace: Trace | None = None
        # The epoch.
        self._running: list[Running] = []
        self._drawn: list[Drawn] = []
        self._handed = 0  # tokens of `_drawn` that `take` has given out
        self._in_epoch = False
        self._interrupted = False
        self._failure = ""  # to be told at the next reading
        self._lost = ""  # why the GPU can no longer be used
        self._control = (
            threading.Lock()
        )  # held to ask for the end, to guide, and to lay out a launch
        self._called = threading.Event()  # a guide has come, or the word to end
        self._guides: dict[int, deque[Guide]] = {}  # by guided slot: what has not been taken
        self._next_guide = 1  # the stamp that no guide has had
        # The launch.
        self._served: list[Running] = []  # empty between launches
        self._first_guides: list[int] = []
        self._seen = 0  # events
        self._budgets: list[int] = []
        self._counts: list[int] = []  # tokens drawn
        self._ended: list[bool] = []
        self._parked: list[bool] = []  # given back for want of a guide
        self._first = 0  # of `_drawn`, the launch's first token
        self._recording = 0  # advances whose tokens wait for their logits
        self._mark: Mark = None
        self._moved = 0.0  # when the launch last gave a sign of life
        self._pass_number = self._syncs = 0  # since the words were cleared

    # ---- slots -----------------------------------------------------------------------------------

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot; as of the last launch while an epoch runs."""
        return self._slots.length(slot)

    def truncate(self, slot: int, length: int) -> None:
        """Take back the tokens of a slot from ``length`` on.

        RequestError if a windowed layer no longer holds the keys that the next token would see.
        """
        self._check_idle()
        self._slots.truncate(slot, length)

    def logits(self, slot: int, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V]."""
        self._check_idle()
        self._slots.check_tokens(slot, token_ids)
        found = []
        for first in range(0, len(token_ids), self._rows):
            tokens = tuple(token_ids[first : first + self._rows])
            advance = Advance(slot=slot, tokens=tokens, budget=1)
            self._begin([Running(advance, tokens, 1, all_logits=True)])
            try:
                while not self.read(1.0):
                    pass
            except BaseException:
                self._end()
                raise
            found.append(self._logit_rows[: len(tokens)].copy())
        return np.concatenate(found)

    # ---- epochs ----------------------------------------------------------------------------------

    def start(self, advances: Sequence[Advance]) -> None:
        """Begin an epoch and return; one at a time. RequestError if it cannot be run."""
        self._check_idle()
        self._slots.check(advances)
        self._begin([Running(x, x.tokens, x.budget) for x in advances])

    def read(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for tokens, and keep them; return whether the epoch is over.

        BackendError if the kernel failed: the slots are empty then, and the executor usable.
        """
        if self._failure:
            message, self._failure = self._failure, ""
            raise BackendError(message)
        if not self._in_epoch:
            return True
        deadline = time.monotonic() + seconds
        while True:
            self._called.clear()
            ended = self._passed() if self._served else True
            if self._served:  # asked before the ring is read: later there come no more
                self._take_events()
            if ended and self._settle():
                return True
            left = deadline - time.monotonic()
            if self._ready > self._handed or left <= 0:
                return False
            if not self._served:  # whoever is left waits for a guide
                self._called.wait(left)
            elif not ended:
                time.sleep(_POLL_SECONDS)

    def take(self) -> list[Drawn]:
        """Return the tokens kept so far, once."""
        end = self._ready
        taken, self._handed = self._drawn[self._handed : end], end
        return taken

    @property
    def _ready(self) -> int:
        """Tokens that may be handed out; those of a launch that records wait for their logits."""
        return self._first if self._recording else len(self._drawn)

    def interrupt(self) -> None:
        """Ask the epoch to end within one pass; read it to its end."""
        with self._control:
            self._interrupted = True
            self._desk.ask_to_end(True)
            self._called.set()

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot of the epoch, from any thread.

        Once at first, then once after each draw. Forced tokens leave the epoch like drawn ones,
        without log-probabilities. RequestError if the epoch has no such slot.
        """
        with self._control:
            if slot not in self._guides:
                raise RequestError(f"guide: expected a guided slot of the epoch, got {slot}")
            self._guides[slot].append(guide)
            place = next((i for i, x in enumerate(self._served) if x.advance.slot == slot), None)
            if place is None or self._ended[place]:
                self._desk.ask_to_end(True)  # for a launch that serves this slot too
            else:
                self._post(place)
            self._called.set()

    def set_trace(self, on: bool) -> None:
        """From the next epoch on, note when each block is in which phase, or do not."""
        self._check_idle()
        if self._trace is not None:
            self._trace.free()
        self._trace = Trace(self._device, self.layout) if on else None

    def take_trace(self) -> npt.NDArray[np.uint64]:
        """Return and forget what was noted: see ``Trace.take``."""
        self._check_idle()
        if self._trace is None:
            raise BackendError("trace: expected set_trace(True) before the epoch")
        return self._trace.take()

    def close(self) -> None:
        """End what runs, and give the GPU's memory back."""
        self._end()
        if not self._lost:
            self._device.close()

    def _end(self) -> None:
        """End what runs, and wait for it."""
        if self._in_epoch:
            self.interrupt()
            with suppress(BackendError):  # it ends all the same
                while not self.read(1.0):
                    pass

    # ---- launches --------------------------------------------------------------------------------

    def _begin(self, running: list[Running]) -> None:
        self._running = running
        self._drawn, self._handed = self._drawn[self._handed :], 0
        self._interrupted, self._failure = False, ""
        self._in_epoch = True
        self._guides = {x.advance.slot: deque() for x in running if x.advance.guided}
        with self._control:
            self._launch(running)

    def _launch(self, able: Sequence[Running]) -> None:
        """Lay out the next kernels and send them off; with the lock held."""
        self._served = list(able[: self.layout.width])
        count, self._seen = len(self._served), 0
        self._first = len(self._drawn)
        self._recording = sum(x.advance.logprobs is not None for x in self._served)
        guided = sum(x.advance.guided for x in self._served)
        limit = (EVENTS - guided) // count  # a row that is given back is an event too
        if self._recording:
            limit = min(limit, max(1, min(self._rows, _LOGPROB_ROWS) // self._recording))
        if self._recording and guided:
            limit = 1  # who guides must see each token at once, and those wait for the launch's end
        self._budgets = [min(x.budget, limit) for x in self._served]
        self._counts, self._ended = [0] * count, [False] * count
        self._parked = [False] * count
        self._number_guides()
        try:
            self._send()
        except BaseException as error:
            # Ctrl-C too: a launch of which the host knows only a part cannot be accounted for.
            self._abandon(f"cuda: a launch was not completed: {error}; all sequences are empty now")
            if self._lost:
                raise BackendError(self._lost) from error
            raise

    def _send(self) -> None:
        self._make_stamps_last()
        lengths = [self._slots.length(x.advance.slot) for x in self._served]
        self._desk.ask_to_end(False)
        epoch = {"pass_number": self._pass_number, "syncs": self._syncs}
        self._desk.write(self._served, lengths, self._budgets, self._first_guides, epoch)
        for place, x in enumerate(self._served):
            if self._guides.get(x.advance.slot):
                self._post(place)
        patience = _ALONE_SECONDS if len(self._served) == 1 else _IN_COMPANY_SECONDS
        rows = sum(len(x.tokens) for x in self._served)
        widths = self._kernels.chain(len(self._served), rows)
        for i, width in enumerate(widths):
            params = self._resident.params()
            self._desk.fill(params, i, len(widths))
            params["logits"] = self._logits
            params["trace"] = self._trace.address if self._trace else 0
            params["watchdog_ns"] = int(self.WATCHDOG_SECONDS * 1e9)
            params["guide_patience_ns"] = int(patience * 1e9)
            params["advance_count"] = len(self._served)
            params["handover"] = widths[i + 1] if i + 1 < len(widths) else 0
            self._kernels.launch(width, params)
        self._desk.fetch()
        recorded = sum(
            len(x.tokens) if x.all_logits else budget
            for x, budget in zip(self._served, self._budgets, strict=True)
            if x.all_logits or x.advance.logprobs is not None
        )
        if recorded:
            row_bytes = self._logit_rows.itemsize * self._logit_rows.shape[1]
            self._device.copy_out(self._logits_down, self._logits, recorded * row_bytes)
        self._mark = self._device.mark()
        self._moved = time.monotonic()

    def _abandon(self, message: str) -> None:
        """Drop the epoch after a failure of the host; the next reading tells of it."""
        self._in_epoch, self._failure, self._served = False, message, []
        try:
            self._desk.ask_to_end(True)
            self._device.wait(self._device.mark(), self.HANG_SECONDS)
            self._start_afresh()
        except BackendError as error:
            self._lost = f"{error}; {_LOST}"

    def _make_stamps_last(self) -> None:
        """Clear the words if stamps could wrap within a launch: then no stale one can match."""
        passes = sum(len(x.tokens) for x in self._served) + sum(self._budgets)
        events = 2 * len(self.layout.layers) + 2
        if (self._pass_number + passes + 2) * events >= 1 << 32:
            self._clear_words()

    # ---- guides ----------------------------------------------------------------------------------

    def _number_guides(self) -> None:
        """Give every draw of the launch a stamp that no guide had before."""
        needed = sum(self._budgets) + 1
        if self._next_guide + needed >= 1 << 32:
            self._desk.clear_guides()
            self._next_guide = 1
        self._first_guides = []
        for x, budget in zip(self._served, self._budgets, strict=True):
            self._first_guides.append(self._next_guide)
            self._next_guide += budget if x.advance.guided else 0

    def _post(self, place: int) -> None:
        """Leave a slot's guide for the kernel that runs: its mask, or the wish to have its row."""
        guides = self._guides[self._served[place].advance.slot]
        stamp = self._first_guides[place] + self._counts[place]
        mask = None if guides[0].forced else guides[0].mask
        self._desk.guide(place, stamp, mask)

    def _take_guides(self) -> None:
        """Between launches: let forced tokens leave, and let those be served whose guide is there.

        Forced tokens go in like a prompt, behind what is still to be fed.
        """
        drawn, running_after = list(self._drawn), list(self._running)
        guides_after = dict(self._guides)
        for i, running in enumerate(self._running):
            slot = running.advance.slot
            guides = self._guides.get(slot)
            if running.done or not guides:
                continue
            running, guide = replace(running, parked=False), guides[0]
            if guide.forced or guide.mask is None:
                left, running = running.force(guide)
                now = time.perf_counter_ns()
                drawn += [Drawn(slot, token, now) for token in left]
                guides_after[slot] = deque([replace(guide, forced=()), *list(guides)[1:]])
            running_after[i] = running
        end = len(drawn)
        self._drawn, self._running, self._guides, self._first = (
            drawn, running_after, guides_after, end,
        )  # fmt: skip

    # ---- what comes of a launch ------------------------------------------------------------------

    def _passed(self) -> bool:
        try:
            if self._device.passed(self._mark):
                return True
            if time.monotonic() - self._moved < self.HANG_SECONDS:
                return False
            raise BackendError(
                f"cuda: expected a token within {self.HANG_SECONDS:.0f} s, got none, and the "
                "kernel's own watchdog did not end it"
            )
        except BackendError as error:
            self._in_epoch, self._lost = False, f"{error}; {_LOST}"
            raise BackendError(self._lost) from error

    def _take_events(self) -> None:
        while (event := self._desk.event(self._seen)) is not None:
            token, index = event
            advance = self._served[index].advance
            self._moved = time.monotonic()
            if token == PARKED_TOKEN:
                self._seen += 1
                self._take_parked(index)
                continue
            self._drawn.append(Drawn(advance.slot, token, time.perf_counter_ns()))
            self._seen = len(self._drawn) - self._first + sum(self._parked)
            self._counts[index] += 1
            if advance.guided:
                self._guides[advance.slot].popleft()
            if self._counts[index] == self._budgets[index] or token in advance.stop_ids:
                self._ended[index] = True
                self._rearrange()

    def _take_parked(self, index: int) -> None:
        with (
            self._control
        ):  # a guide that comes later finds the row parked, one before is seen here
            self._parked[index] = self._ended[index] = True
            if self._guides[self._served[index].advance.slot]:
                self._desk.ask_to_end(True)
        self._rearrange()

    def _able(self) -> list[Running]:
        """Return who can be served."""
        return [x for x in self._running if not x.done and not x.parked]

    def _rearrange(self) -> None:
        """Ask for another launch if it would serve those who are left better than this one."""
        left = self._ended.count(False)
        waiting = len(self._able()) > len(self._served)
        if left and (waiting or self._kernels.would_narrow(len(self._served), left)):
            self._desk.ask_to_end(True)

    def _settle(self) -> bool:
        """Go on where no launch runs; return whether the epoch is over.

        Safe to be cut off by Ctrl-C and run again: accounts change at once, in one line.
        """
        if self._served:
            self._account()
        with self._control:
            if not self._interrupted:
                self._take_guides()
            if self._interrupted or all(x.done for x in self._running):
                self._in_epoch = False
                return True
            if able := self._able():
                self._launch(able)
            return False

    def _account(self) -> None:
        """Take note of what an ended launch did."""
        if self._desk.fault.any():
            self._recover()
        epoch, progress = self._desk.epoch, self._desk.progress
        events = int(epoch["events"])
        assert events == self._seen, "an event was lost"
        if self._recording:
            self._drawn[self._first :] = self._described()
        after = dict(zip(map(id, self._served), self._served, strict=True))
        for running, row, parked in zip(self._served, progress, self._parked, strict=False):
            slot, length = running.advance.slot, int(row["length"])
            self._slots.set_length(slot, length + parked)  # so far the cache was written
            self._slots.set_length(slot, length)
            counts = int(row["fed"]), int(row["drawn"]), int(row["next"])
            after[id(running)] = replace(running.after(*counts), parked=parked)
        running_after = [after.get(id(x), x) for x in self._running]
        self._pass_number, self._syncs = int(epoch["pass_number"]), int(epoch["syncs"])
        self._desk.clear_events(events)
        end = len(self._drawn)
        with self._control:
            self._running, self._served, self._first, self._recording = running_after, [], end, 0

    def _described(self) -> list[Drawn]:
        """Return the launch's tokens with the log-probabilities that were asked for."""
        wanted = {x.advance.slot: x.advance.logprobs for x in self._served}
        rows = iter(self._logit_rows)  # in the order of the tokens that were recorded
        found = []
        for drawn in self._drawn[self._first :]:
            count = wanted[drawn.slot]
            if count is not None:
                drawn = replace(drawn, logprobs=describe_logprobs(next(rows), drawn.token, count))
            found.append(drawn)
        return found

    def _recover(self) -> None:
        """Make the executor usable after a kernel that gave up, and raise."""
        text = describe_fault(self._desk.fault, self.layout.plan)
        self._in_epoch = False
        self._served, self._recording = [], 0
        self._start_afresh()
        raise BackendError(
            f"cuda: {text}. All sequences are empty now, and the engine can be used again; if it "
            "happens again, please report this message with the output of 'monolane doctor'"
        )

    def _start_afresh(self) -> None:
        """Empty all sequences, and forget the stamps of a launch that did not end well."""
        self._slots.clear()
        self._resident.clear_cache()
        self._clear_words()
        self._desk.clear_events(EVENTS)

    def _clear_words(self) -> None:
        self._resident.clear_words()
        self._pass_number = self._syncs = 0

    def _check_idle(self) -> None:
        if self._lost:
            raise BackendError(self._lost)
        if self._in_epoch:
            raise BackendError("an epoch is running; read it to its end or stop it first")
