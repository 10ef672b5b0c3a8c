"""An epoch on a GPU: advances that are served by one launch after the other until all are done.

The kernels of a launch follow each other in the stream, from wide to narrow, and the host says
nothing in between: what one leaves, the next begins with. Only where what runs changes in another
way - a request ends while others wait, or few enough are left for a narrower kernel - the host asks
for the end within a pass, and lays out the next launch.

A guided slot's kernel waits, at each draw, for the host's guide; who guides works that out while
the pass runs. Whoever is late, or has forced tokens to put first, gets the row back (it is
*parked*), and is served again by a launch that begins once the guide is there.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from monolane.cuda._faults import describe_faults
from monolane.cuda._kernel_header import BROKEN_TOKEN, PARKED_TOKEN
from monolane.cuda._launch import Launched, lay_out, post, send
from monolane.cuda._loaded_model import Resident
from monolane.cuda._slot_progress import Running
from monolane.errors import BackendError, RequestError
from monolane.executor_api import NO_TOKEN, Advance, Guide, TokenEvent, describe_logprobs

_POLL_SECONDS = 100e-6  # between two looks at the ring: a tenth of a token of a large model
# Where the driver ends kernels that run for long, which it does after two seconds at the earliest.
_LONGEST_RUN_SECONDS = 0.5
_LOST = "this GPU can no longer be used from this process: start a new one"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long is waited before something counts as broken, in seconds."""

    watchdog: float  # of a wait inside the kernel: a pass takes milliseconds
    hang: float  # of the host, for what the kernel's own watchdog does not end


class Epoch:
    """What is left to do, what was drawn, and the launch that runs, if one does."""

    def __init__(
        self, resident: Resident, running: list[Running], kept: list[TokenEvent], limits: Limits
    ) -> None:
        self._resident, self._limits = resident, limits
        self._running = running
        self._drawn = kept  # tokens that have not been taken, of earlier epochs too
        self._begun = len(kept)  # of them, how many were before this epoch
        self._handed = 0  # of them, how many `take` has given out
        self._launch: Launched | None = None
        self._interrupted = False
        self.over = False
        self.failure = ""  # to be told at the next reading
        # Held to ask for the end, to guide, and to lay out a launch.
        self._control = threading.Lock()
        self._called = threading.Event()  # a guide has come, or an interruption
        vocab = resident.logit_rows.shape[1]
        # By slot with penalties: the tokens before the epoch's draws, as Advance.seen.
        self._given = {
            x.slot: _given(x.advance, vocab) for x in running if x.advance.draw.penalises
        }
        # By guided slot: what has not been taken.
        self._guides: dict[int, deque[Guide]] = {
            x.slot: deque() for x in running if x.advance.guided
        }

    def begin(self) -> None:
        """Send off the first launch."""
        with self._control:
            self._send(self._running)

    def read(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for tokens, and keep them; return whether the epoch is over."""
        if self.failure:
            message, self.failure = self.failure, ""
            raise BackendError(message)
        if self.over:
            return True
        deadline = time.monotonic() + seconds
        while True:
            self._called.clear()
            launch = self._launch
            ended = self._passed(launch) if launch else True
            if launch:  # asked before the ring is read: later there come no more
                self._take_events(launch)
            if ended and self._settle():
                return True
            left = deadline - time.monotonic()
            if self._available > self._handed or left <= 0:
                return False
            if self._launch is None:  # whoever is left waits for a guide
                self._called.wait(left)
            elif not ended:
                time.sleep(_POLL_SECONDS)

    def take(self) -> list[TokenEvent]:
        """Return the tokens kept so far, once."""
        end = self._available
        taken, self._handed = self._drawn[self._handed : end], end
        return taken

    @property
    def kept(self) -> list[TokenEvent]:
        """Tokens that were not taken."""
        return self._drawn[self._handed :]

    @property
    def _available(self) -> int:
        """Tokens that may be handed out; those of a launch that records wait for their logits."""
        launch = self._launch
        return launch.first if launch and launch.recording else len(self._drawn)

    def interrupt(self) -> None:
        """Ask for the end within one pass."""
        with self._control:
            self._interrupted = True
            self._resident.mailbox.ask_to_end(True)
            self._called.set()

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot, from any thread."""
        with self._control:
            if slot not in self._guides:
                raise RequestError(f"guide: expected a guided slot of the epoch, got {slot}")
            self._guides[slot].append(guide)
            launch = self._launch
            place = launch.place(slot) if launch else None
            if launch is None or place is None or launch.ended[place]:
                self._resident.mailbox.ask_to_end(True)  # for a launch that serves this slot too
            else:
                post(self._resident, launch, place, self._guides[slot][0])
            self._called.set()

    # ---- launches --------------------------------------------------------------------------------

    def _able(self) -> list[Running]:
        """Return who can be served."""
        return [x for x in self._running if not x.done and not x.parked]

    def _send(self, able: list[Running]) -> None:
        """Lay out the next kernels and send them off; with the lock held."""
        self._launch = launch = lay_out(self._resident, able, len(self._drawn))
        try:
            seen = self._seen(launch)
            send(self._resident, launch, self._guides, seen, self._limits.watchdog)
        except BaseException as error:
            # Ctrl-C too: a launch of which the host knows only a part cannot be accounted for.
            self._abandon(f"cuda: a launch was not completed: {error}; all sequences are empty now")
            if self._resident.lost:
                raise BackendError(self._resident.lost) from error
            raise
        limited = any(device.info.run_limited for device in self._resident.devices)
        # Who wants all logits feeds a few passes at most, and expects them of one launch.
        if limited and not any(x.all_logits for x in launch.served):
            # A thread of its own: nobody need be reading meanwhile.
            timer = threading.Timer(_LONGEST_RUN_SECONDS, self._cut_short, [launch])
            timer.daemon = True
            timer.start()

    def _cut_short(self, launch: Launched) -> None:
        """Ask a launch for its end, if it still runs; the next one goes on where it was."""
        with self._control:
            if self._launch is launch:
                self._resident.mailbox.ask_to_end(True)

    def _seen(self, launch: Launched) -> dict[int, npt.NDArray[np.uint32]]:
        """Return the tokens before a launch, as Advance.seen of those with penalties."""
        seen = {}
        for running in launch.served:
            if not running.advance.draw.penalises:
                continue
            table = self._given[running.slot].copy()
            for event in self._drawn[self._begun :]:
                if event.slot == running.slot:
                    table[event.token_id] = max(1, table[event.token_id]) + 1
            seen[running.slot] = table
        return seen

    def _abandon(self, message: str) -> None:
        """Drop the epoch after a failure of the host; the next reading tells of it."""
        self.over, self.failure, self._launch = True, message, None
        resident = self._resident
        try:
            resident.mailbox.ask_to_end(True)
            for device in resident.devices:
                device.wait(device.mark(), self._limits.hang)
            resident.start_afresh()
        except BackendError as error:
            resident.lost = f"{error}; {_LOST}"

    def _take_guides(self) -> None:
        """Between launches: let forced tokens leave, and let those be served whose guide is there.

        Forced tokens go in like a prompt, behind what is still to be fed.
        """
        drawn, running_after = list(self._drawn), list(self._running)
        guides_after = dict(self._guides)
        for i, running in enumerate(self._running):
            slot = running.slot
            guides = self._guides.get(slot)
            if running.done or not guides:
                continue
            running, guide = replace(running, parked=False), guides[0]
            if guide.forced or guide.mask is None:
                left, running = running.force(guide)
                now = time.perf_counter_ns()
                drawn += [TokenEvent(slot, token, now) for token in left]
                guides_after[slot] = deque([replace(guide, forced=()), *list(guides)[1:]])
            running_after[i] = running
        self._drawn, self._running, self._guides = drawn, running_after, guides_after

    # ---- what comes of a launch ------------------------------------------------------------------

    def _passed(self, launch: Launched) -> bool:
        try:
            devices = self._resident.devices
            # Each is asked: one that has failed is heard of while others still wait for it.
            passed = [x.passed(mark) for x, mark in zip(devices, launch.marks, strict=True)]
            if all(passed):
                return True
            if time.monotonic() - launch.moved < self._limits.hang:
                return False
            raise BackendError(
                f"cuda: expected a token within {self._limits.hang:.0f} s, got none, and the "
                "kernel's own watchdog did not end it"
            )
        except BackendError as error:
            self.over, self._resident.lost = True, f"{error}; {_LOST}"
            raise BackendError(self._resident.lost) from error

    def _take_events(self, launch: Launched) -> None:
        while (event := self._resident.mailbox.event(launch.seen)) is not None:
            token, place = event
            advance = launch.served[place].advance
            launch.moved = time.monotonic()
            if token == PARKED_TOKEN:
                launch.seen += 1
                self._take_parked(launch, place)
                continue
            if token == BROKEN_TOKEN:
                token, launch.broken[place] = NO_TOKEN, True
            self._drawn.append(TokenEvent(advance.slot, token, time.perf_counter_ns()))
            launch.seen = len(self._drawn) - launch.first + sum(launch.parked)
            launch.counts[place] += 1
            if advance.guided:
                self._guides[advance.slot].popleft()
            last = launch.counts[place] == launch.budgets[place] or token in advance.stop_ids
            if last or launch.broken[place]:
                launch.ended[place] = True
                self._rearrange(launch)

    def _take_parked(self, launch: Launched, place: int) -> None:
        # Locked: a guide that comes later finds the row parked, one that came before is seen here.
        with self._control:
            launch.parked[place] = launch.ended[place] = True
            if self._guides[launch.served[place].slot]:
                self._resident.mailbox.ask_to_end(True)
        self._rearrange(launch)

    def _rearrange(self, launch: Launched) -> None:
        """Ask for another launch if it would serve those who are left better than this one."""
        left, served = launch.ended.count(False), len(launch.served)
        waiting = len(self._able()) > served
        if left and (waiting or self._resident.kernels.would_narrow(served, left)):
            self._resident.mailbox.ask_to_end(True)

    def _settle(self) -> bool:
        """Go on where no launch runs; return whether the epoch is over.

        Safe to be cut off by Ctrl-C and run again: accounts change at once, in one line.
        """
        if self._launch:
            self._account(self._launch)
        with self._control:
            if not self._interrupted:
                self._take_guides()
            if self._interrupted or all(x.done for x in self._running):
                self.over = True
                return True
            if able := self._able():
                self._send(able)
            return False

    def _account(self, launch: Launched) -> None:
        """Take note of what an ended launch did."""
        resident, mailbox = self._resident, self._resident.mailbox
        if resident.faults.any():
            self._recover()
        epoch, progress = mailbox.epoch, mailbox.progress
        events = int(epoch["events"])
        assert events == launch.seen, "an event was lost"
        if launch.recording:
            self._drawn[launch.first :] = self._described(launch)
        after = {id(x): x for x in launch.served}
        for i, (running, row) in enumerate(zip(launch.served, progress, strict=False)):
            parked = launch.parked[i]
            length = int(row["length"])
            resident.slots.set_length(running.slot, length + parked)  # so far the cache was written
            resident.slots.set_length(running.slot, length)
            counts = int(row["fed"]), int(row["drawn"]), int(row["next"])
            left = replace(running.after(*counts), parked=parked)
            after[id(running)] = replace(left, tokens=()) if launch.broken[i] else left
        running_after = [after.get(id(x), x) for x in self._running]
        resident.pass_number, resident.syncs = int(epoch["pass_number"]), int(epoch["syncs"])
        mailbox.clear_events(events)
        with self._control:
            self._running, self._launch = running_after, None

    def _described(self, launch: Launched) -> list[TokenEvent]:
        """Return the launch's tokens with the log-probabilities that were asked for."""
        wanted = {x.slot: x.advance.logprobs for x in launch.served}
        rows = iter(self._resident.logit_rows)  # in the order of the tokens that were recorded
        found = []
        for event in self._drawn[launch.first :]:
            count = wanted[event.slot]
            row = None if count is None else next(rows)
            if count is not None and row is not None and event.token_id != NO_TOKEN:
                described = describe_logprobs(row, event.token_id, count)
                event = replace(event, logprob=described)
            found.append(event)
        return found

    def _recover(self) -> None:
        """Make the GPU usable after a kernel that gave up, and raise."""
        resident = self._resident
        text = describe_faults(resident.faults, resident.layout.plan)
        self.over, self._launch = True, None
        resident.start_afresh()
        raise BackendError(
            f"cuda: {text}. All sequences are empty now, and the engine can be used again; if it "
            "happens again, please report this message with the output of 'monolane doctor'"
        )


def _given(advance: Advance, vocab: int) -> npt.NDArray[np.uint32]:
    """Return the table of the tokens before an advance's first draw: uint32 [V]."""
    ids = np.concatenate([np.asarray(x, np.int64) for x in (advance.history, advance.token_ids)])
    table = np.bincount(ids[advance.prompt :], minlength=vocab).astype(np.uint32)
    table[np.unique(ids)] += 1
    return table
