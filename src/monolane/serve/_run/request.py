"""One request on its way: its choices take turns at the engine and report through one channel.

Each choice is decoded by a thread, which sleeps while one thread takes the tokens of all (see
``output_thread.py``). ``cancel`` reaches it through the choice's stream: within a
token, or within a pass while the prompt is read. The turn is given back after the thread has let go
of the slot, never before.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from monolane.engine import Piece
from monolane.serve._errors import ApiError, api_error
from monolane.serve._run.channel import Channel, Update, gap
from monolane.serve._run.choice import Choice
from monolane.serve._run.deadline import Deadline
from monolane.serve._run.scheduler import Turn
from monolane.serve._run.service import Service
from monolane.serve._tools.calls import Delta

log = logging.getLogger("monolane.serve")

# client: it went away; deadline; buffer: it reads too slowly; shutdown; failure: of another choice.
Reason = Literal["client", "deadline", "buffer", "shutdown", "failure"]

_REST = 0.002  # seconds between two looks at a fast stream of tokens, for each that runs
_LONGEST_REST = 0.016  # one picture of a screen, or until the next event where that is later

_MESSAGES: dict[Reason, tuple[int, str]] = {
    "client": (499, "the client closed the connection"),
    "deadline": (504, "the request took longer than its deadline; ask for fewer tokens"),
    "buffer": (503, "the client read so slowly that its buffer ran full; the request was ended"),
    "shutdown": (503, "the server is shutting down; send the request to another"),
    "failure": (500, "another choice of this request failed"),
}


def ended(reason: Reason) -> ApiError:
    """Return what a request that was cancelled gets."""
    return ApiError(*_MESSAGES[reason])


def log_failure(what: str, error: BaseException) -> None:
    """Log why something failed: with a traceback where the server is at fault, not its client."""
    told = api_error(error)
    if told.status == 500:
        log.error("%s failed", what, exc_info=error)
    else:
        log.warning("%s ended with %d: %.200s", what, told.status, ascii(str(told))[1:-1])


class ServedRequest:
    """The choices of one request, from the queue to their last tokens."""

    def __init__(
        self,
        service: Service,
        choices: Sequence[Choice],
        arrived: int,
        streamed: bool,
        ahead: float = 0.0,
    ) -> None:
        """``arrived``: time.perf_counter_ns() of the request; ``ahead``: its priority, in seconds.

        ``streamed``: the answer is read as it comes, so its buffer is bounded.
        """
        self.choices = choices
        for choice in choices:
            choice.arrived = arrived
        limit = service.options.buffer_tokens if streamed else None
        self.channel = Channel(limit, lambda: service.scheduler.running)
        self.reason: Reason | None = None  # why it was cancelled
        self.error: BaseException | None = None
        self.turns: dict[int, Turn] = {}  # of the choices that wait, by index
        self._full: set[int] = set()  # of the choices that had no room for a piece
        self._service, self._loop = service, asyncio.get_running_loop()
        self._next, self._ahead = deque(choices), ahead
        # Makes the whole reply of one choice on the thread that has decoded it, None: not there.
        self.at_end: Callable[[], bytes | None] | None = None
        self.made: bytes | None = None
        self._working = 0  # choices that wait for their turn or run
        options = service.options
        self._deadline = Deadline(choices, arrived, options.deadline_seconds, options.stall_seconds)
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self, deadline: float | None) -> None:
        """Enter the queue; ApiError 429 when it is full.

        ``deadline``: the request's own, in seconds from its arrival; the server's counts, too.
        """
        scheduler = self._service.scheduler
        together = min(scheduler.policy.slots, len(self.choices), scheduler.places)
        # Now, and not when the tasks begin: requests that start in one turn of the loop would all
        # find the same place free.
        first = [self._next.popleft() for _ in range(together)]
        for choice in first:
            self._enqueue(choice)
        self._service.cancels.add(self.cancel)
        if deadline is not None:
            taken = (time.perf_counter_ns() - self.choices[0].arrived) / 1e9
            left = max(0.0, deadline - taken)
            self._timers["own"] = self._loop.call_later(left, self.cancel, "deadline")
        self._look()
        self._working = len(first)
        for choice in first:
            self._await_turn(choice)

    def _look(self) -> None:
        """End the request at the server's deadline, or look again when that may have come."""
        left = self._deadline.left(time.perf_counter_ns())
        if left <= 0:
            self.cancel("deadline")
        else:
            self._timers["look"] = self._loop.call_later(left, self._look)

    def cancel(self, reason: Reason) -> None:
        """Stop the decode within one token and leave the queue. Harmless when it is over."""
        if self.reason is not None or self.channel.closed:
            return
        self.reason = reason
        self._next.clear()
        for turn in self.turns.values():
            turn.withdraw()
        for choice in self.choices:
            choice.stream.cancel()

    def ahead(self, index: int) -> int:
        """Return how many sequences get their turn before a choice that waits."""
        return self._service.scheduler.ahead(self.turns[index])

    @property
    def failure(self) -> BaseException | None:
        """Why there is no whole answer, or None."""
        if self.error is not None:
            return self.error
        return None if self.reason is None else ended(self.reason)

    def _end(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._service.cancels.discard(self.cancel)
        self._service.metrics.finish([one for one in self.choices if not one.admitted])
        self.channel.close()

    def _enqueue(self, choice: Choice) -> None:
        cost = self._service.metrics.expect(len(choice.prompt_ids), choice.budget)
        self.turns[choice.index] = self._service.scheduler.enqueue(cost, self._ahead)

    # A choice runs by callbacks, and not in a task of its own: with the futures around it, that
    # would take the event loop as long as reading the request's head.

    def _await_turn(self, choice: Choice) -> None:
        """Decode a choice as soon as it has its turn: now, where that has come."""
        granted = self.turns[choice.index].granted
        if granted.done():
            self._begin(choice)
        else:
            granted.add_done_callback(lambda _: self._begin(choice))

    def _begin(self, choice: Choice) -> None:
        """Hand a choice whose turn has come, or was given up, to a thread."""
        granted = self.turns.pop(choice.index).granted
        if granted.exception() is not None:  # withdrawn
            self._go_on(withdrawn=True)
            return
        service = self._service
        if self.reason is not None:  # cancelled between the grant and this
            self._release(choice)
            return
        choice.admitted = time.perf_counter_ns()
        service.note_progress()
        service.running.add(choice)
        self.channel.put(Update(choice, admitted=True))
        try:
            service.decoders.submit(self._run, choice)
        except RuntimeError as error:  # the server ends
            self._release(choice, error)

    def _run(self, choice: Choice) -> None:
        """Decode a choice, on a thread of its own, and tell the event loop of the end."""
        failure = None
        try:
            try:
                self._decode(choice)
            finally:
                self._service.metrics.finish((choice,))
            if self.at_end is not None and len(self.choices) == 1 and self.reason is None:
                self.made = self.at_end()
        except Exception as error:
            failure = error
        self._loop.call_soon_threadsafe(self._release, choice, failure)

    def _release(self, choice: Choice, failure: Exception | None = None) -> None:
        """Give a turn back, whose slot has been let go of, and go on with what is left."""
        self._service.running.discard(choice)
        self._service.scheduler.release()
        if failure is not None:
            self.error = self.error or failure
            log_failure("a request", failure)
            self.cancel("failure")
        self._go_on()

    def _go_on(self, *, withdrawn: bool = False) -> None:
        """Let the next choice wait for its turn; without one, end with the last that runs."""
        if self._next and not withdrawn:
            choice = self._next.popleft()
            self._enqueue(choice)
            self._await_turn(choice)
            return
        self._working -= 1
        if not self._working:
            self._end()

    def _decode(self, choice: Choice) -> None:
        """Run a choice to its end, on a thread of its own, which sleeps while tokens gather."""
        with choice.stream as stream:
            for piece in stream:
                if rest := self._take(choice, piece):
                    self._service.output.follow(stream, rest, partial(self._take, choice))

    def _take(self, choice: Choice, piece: Piece) -> float:
        """Report a piece; return the seconds until the next is to be looked for, 0: at once."""
        if choice.index in self._full:  # to its end, where what was read is kept
            return 0.0
        service = self._service
        update = _update(choice, piece)
        if not choice.first:
            choice.first = piece.times_ns[0] if piece.times_ns else time.perf_counter_ns()
            if choice.echo is not None:
                update.prompt_logprobs = choice.stream.prompt_logprobs
        choice.times.extend(piece.times_ns)
        service.note_progress()
        service.metrics.drawn(len(piece.times_ns))
        if not self.channel.put(update):
            self._full.add(choice.index)
            self._loop.call_soon_threadsafe(self.cancel, "buffer")
            choice.stream.cancel()
            return 0.0
        return 0.0 if piece.finish_reason else _rest(choice, service.scheduler.running)


def _rest(choice: Choice, running: int) -> float:
    """Return the seconds to let tokens gather before the next look; ``running`` sequences decode.

    No client sees a token before the next event, so looking more often gains nothing, and costs
    much: on a CPU a decoding worker that makes way for who looks holds up all others. So all
    sequences together are looked at as often as one alone. Where the budget ends the answer, a
    rest is no longer than what is left of it. There is none where each draw waits for the mask that
    we work out.
    """
    drawn = choice.drawn
    if choice.guided or drawn < 2:
        return 0.0
    step = (choice.last - choice.first) / (drawn - 1) / 1e9
    rest = min(_REST * running, max(_LONGEST_REST, gap(running)))
    return min(rest, step * (choice.budget - drawn - 1)) if step < rest else 0.0


def _update(choice: Choice, piece: Piece) -> Update:
    """Return what a piece adds to its choice."""
    tokens, reason = len(piece.token_ids), piece.finish_reason
    if choice.discard:
        return Update(choice, tokens, finish_reason=reason and "length")
    update = Update(
        choice,
        tokens,
        list(piece.token_ids),
        logprobs=list(piece.logprobs),
        finish_reason=reason,
    )
    if choice.parser is None:
        update.deltas = [Delta(piece.text, piece.thinking)]
        return update
    update.deltas = [Delta(reasoning=piece.thinking), choice.parser.push(piece.text)]
    if reason is not None:
        update.deltas.append(choice.parser.finish())
        # A call that is not whole is none to be made; one that was cut off ends with "length".
        if choice.parser.called and not choice.parser.broken and reason == "stop":
            update.finish_reason = "tool_calls"
    return update
