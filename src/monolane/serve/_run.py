"""One request on its way: its choices take turns at the engine, and their parts come out of one
channel.

A choice is decoded by a thread, which ``cancel`` reaches through its stream: within a token, and
amid the prompt within a pass. The turn is given back when the thread has let go of the slot, never
before.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Literal

from monolane.engine import Piece
from monolane.serve._channel import Admitted, Channel, Part, Scored
from monolane.serve._delta import Delta
from monolane.serve._errors import ApiError
from monolane.serve._prepare import Choice
from monolane.serve._scheduler import Turn, WithdrawnError
from monolane.serve._service import Service, log
from monolane.serve._timings import Clock

# client: it went away; deadline; buffer: it reads too slowly; shutdown; failure: of another choice.
Reason = Literal["client", "deadline", "buffer", "shutdown", "failure"]

_REST = 0.002  # seconds between two looks at a fast stream of tokens, for each that runs
_LONGEST_REST = 0.016  # a picture of a screen

_MESSAGES: dict[Reason, tuple[int, str]] = {
    "client": (499, "the client closed the connection"),
    "deadline": (504, "the request took longer than its deadline; ask for fewer tokens"),
    "buffer": (503, "the client read so slowly that its buffer ran full; the request was ended"),
    "shutdown": (503, "the server is shutting down; send the request to another"),
    "failure": (500, "another choice of this request failed"),
}


class Run:
    """The choices of one request, from the queue to their last parts."""

    def __init__(
        self, service: Service, choices: Sequence[Choice], arrived: int, streamed: bool
    ) -> None:
        """Take the choices; ``arrived`` is time.perf_counter_ns() of the request.

        ``streamed``: the parts are read as they come, so the buffer is bounded; else the whole
        answer waits in it.
        """
        self.choices = choices
        self.clocks = [Clock(len(choice.prompt_ids), arrived) for choice in choices]
        self.channel = Channel(service.options.buffer_tokens if streamed else None)
        self.reason: Reason | None = None  # why it was cancelled
        self.error: BaseException | None = None
        self.turns: dict[int, Turn] = {}  # of the choices that wait, by index
        self._service, self._loop = service, asyncio.get_running_loop()
        self._next = deque(choices)
        self._running: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Enter the queue, ``seconds`` before the deadline; ApiError 429 when it is full."""
        service = self._service
        service.scheduler.check_room()
        service.runs.add(self)
        together = min(service.scheduler.policy.slots, len(self.choices))
        self._tasks = [asyncio.create_task(self._work()) for _ in range(together)]
        self._timer = self._loop.call_later(seconds, self.cancel, "deadline")
        asyncio.gather(*self._tasks).add_done_callback(self._end)

    def cancel(self, reason: Reason) -> None:
        """Stop the decode within one token and leave the queue. Harmless when it is over."""
        if self.reason is not None or self.channel.closed:
            return
        self.reason = reason
        self._next.clear()
        for turn in self.turns.values():
            turn.withdraw()
        for index in self._running:
            self.choices[index].stream.cancel()

    def ahead(self, index: int) -> int:
        """Return how many sequences get their turn before a choice that waits."""
        return self._service.scheduler.ahead(self.turns[index])

    def positions(self) -> tuple[int, ...]:
        """Return how far each running choice is in its prompt and answer, in tokens."""
        return tuple(self.choices[index].stream.position for index in sorted(self._running))

    @property
    def failure(self) -> BaseException | None:
        """Why there is no whole answer, or None."""
        if self.error is not None:
            return self.error
        return None if self.reason is None else ApiError(*_MESSAGES[self.reason])

    def _end(self, _: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._service.runs.discard(self)
        self._service.metrics.finish(self)
        self.channel.close()

    async def _work(self) -> None:
        while self._next:
            choice = self._next.popleft()
            try:
                await self._one(choice)
            except WithdrawnError:
                return
            except Exception as error:
                self.error = self.error or error
                log.error("a request failed", exc_info=error)
                self.cancel("failure")

    async def _one(self, choice: Choice) -> None:
        service, clock = self._service, self.clocks[choice.index]
        scheduler = service.scheduler
        turn = scheduler.enqueue(service.metrics.expect(clock.prompt_n, choice.budget))
        self.turns[choice.index] = turn
        try:
            await turn.granted
        finally:
            del self.turns[choice.index]
        try:
            if self.reason is not None:  # cancelled between the grant and this
                return
            clock.admitted = time.perf_counter_ns()
            service.movement.note()
            self.channel.put(Admitted(choice.index))
            self._running.add(choice.index)
            await self._loop.run_in_executor(service.decoders, self._decode, choice)
        finally:
            self._running.discard(choice.index)
            scheduler.release()

    def _decode(self, choice: Choice) -> None:
        """Run a choice to its end, on a thread of its own."""
        clock = self.clocks[choice.index]
        with choice.stream as stream:
            for piece in stream:
                if not clock.first:
                    clock.first = piece.times_ns[0] if piece.times_ns else time.perf_counter_ns()
                    if choice.echo is not None:
                        self.channel.put(Scored(choice.index, stream.prompt_logprobs))
                clock.add(piece.times_ns)
                self._service.movement.note()
                self._service.metrics.drawn(len(piece.times_ns))
                if not self.channel.put(_part(choice, piece)):
                    self._loop.call_soon_threadsafe(self.cancel, "buffer")
                    return
                if piece.finish_reason is None:
                    time.sleep(_rest(choice, clock, self._service.scheduler.running))


def _rest(choice: Choice, clock: Clock, running: int) -> float:
    """Return the seconds to leave tokens to gather before the next look, of ``running`` sequences.

    Nobody sees a token earlier than the next event anyway, and waking a thread for each costs the
    server twice the processor time at 3,000 tokens/s (34 µs a token for 18), on a CPU at the
    expense of decode: a worker that makes way for it holds up all others. So all sequences
    together are looked at as often as one alone. Not before the last tokens, so that the end is
    told at once; and not where each draw waits for the mask that we work out.
    """
    if choice.guided or clock.drawn < 2:
        return 0.0
    step = (clock.last - clock.first) / (clock.drawn - 1) / 1e9
    rest = min(_REST * running, _LONGEST_REST)
    return min(rest, step * (choice.budget - clock.drawn - 1)) if step < rest else 0.0


def _part(choice: Choice, piece: Piece) -> Part:
    parser, delta, called = choice.parser, Delta(piece.text), False
    if parser is not None:
        delta = parser.push(piece.text)
        if piece.finish_reason is not None:
            delta = delta + parser.finish()
            # A call that was cut off is none to be made: that answer ends with "length".
            called = parser.called and piece.finish_reason == "stop"
    return Part(choice.index, delta, piece.token_ids, piece.logprobs, piece.finish_reason, called)
