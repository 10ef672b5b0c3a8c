"""One request on its way: its choices take turns at the engine and report through one channel.

Each choice is decoded by a thread. ``cancel`` reaches it through the choice's stream: within a
token, or within a pass while the prompt is read. The turn is given back after the thread has let go
of the slot, never before.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Literal

from monolane.engine import Piece
from monolane.serve._errors import ApiError
from monolane.serve._run.channel import Channel, Update
from monolane.serve._run.choice import Choice
from monolane.serve._run.metrics import Metrics
from monolane.serve._run.scheduler import Scheduler, Turn, WithdrawnError
from monolane.serve._run.stall import StallWatch
from monolane.serve._tools.calls import Delta

log = logging.getLogger("monolane.serve")

# client: it went away; deadline; buffer: it reads too slowly; shutdown; failure: of another choice.
Reason = Literal["client", "deadline", "buffer", "shutdown", "failure"]

_REST = 0.002  # seconds between two looks at a fast stream of tokens, for each that runs
_LONGEST_REST = 0.016  # one picture of a screen

_MESSAGES: dict[Reason, tuple[int, str]] = {
    "client": (499, "the client closed the connection"),
    "deadline": (504, "the request took longer than its deadline; ask for fewer tokens"),
    "buffer": (503, "the client read so slowly that its buffer ran full; the request was ended"),
    "shutdown": (503, "the server is shutting down; send the request to another"),
    "failure": (500, "another choice of this request failed"),
}


class ServedRequest:
    """The choices of one request, from the queue to their last tokens."""

    def __init__(
        self,
        choices: Sequence[Choice],
        buffer_tokens: int | None,
        scheduler: Scheduler,
        metrics: Metrics,
        threads: Executor,
        watch: StallWatch,
    ) -> None:
        """``buffer_tokens``: that may wait to be read; None: the whole answer waits."""
        self.choices = choices
        self.channel = Channel(buffer_tokens)
        self.reason: Reason | None = None  # why it was cancelled
        self.error: BaseException | None = None
        self.turns: dict[int, Turn] = {}  # of the choices that wait, by index
        self._scheduler, self._metrics = scheduler, metrics
        self._threads, self._watch = threads, watch
        self._loop = asyncio.get_running_loop()
        self._next = deque(choices)

    def start(self, seconds: float, over: Callable[["ServedRequest"], None]) -> None:
        """Enter the queue, ``seconds`` before the deadline; ``over`` is told of the end."""
        timer = self._loop.call_later(seconds, self.cancel, "deadline")

        def end(_: object) -> None:
            timer.cancel()
            over(self)
            self._metrics.finish(self.choices)
            self.channel.close()

        together = min(self._scheduler.policy.slots, len(self.choices))
        self._workers = asyncio.gather(*(self._work() for _ in range(together)))
        self._workers.add_done_callback(end)

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
        return self._scheduler.ahead(self.turns[index])

    @property
    def failure(self) -> BaseException | None:
        """Why there is no whole answer, or None."""
        if self.error is not None:
            return self.error
        return None if self.reason is None else ApiError(*_MESSAGES[self.reason])

    async def _work(self) -> None:
        while self._next:
            choice = self._next.popleft()
            try:
                await self._take_turn(choice)
            except WithdrawnError:
                return
            except Exception as error:
                self.error = self.error or error
                log.error("a request failed", exc_info=error)
                self.cancel("failure")

    async def _take_turn(self, choice: Choice) -> None:
        cost = self._metrics.expect(len(choice.prompt_ids), choice.budget)
        turn = self.turns[choice.index] = self._scheduler.enqueue(cost)
        try:
            await turn.granted
        finally:
            del self.turns[choice.index]
        try:
            if self.reason is not None:  # cancelled between the grant and this
                return
            choice.clock.admitted = time.perf_counter_ns()
            self._watch.note()
            self._watch.running.add(choice)
            self.channel.put(Update(choice, admitted=True))
            await self._loop.run_in_executor(self._threads, self._decode, choice)
        finally:
            self._watch.running.discard(choice)
            self._scheduler.release()

    def _decode(self, choice: Choice) -> None:
        """Run a choice to its end, on a thread of its own."""
        clock = choice.clock
        with choice.stream as stream:
            for piece in stream:
                update = _update(choice, piece)
                if not clock.first:
                    clock.first = piece.times_ns[0] if piece.times_ns else time.perf_counter_ns()
                    if choice.echo is not None:
                        update.prompt_logprobs = stream.prompt_logprobs
                clock.add(piece.times_ns)
                self._watch.note()
                self._metrics.drawn(len(piece.times_ns))
                if not self.channel.put(update):
                    self._loop.call_soon_threadsafe(self.cancel, "buffer")
                    return
                if piece.finish_reason is None:
                    time.sleep(_rest(choice, self._scheduler.running))


def _rest(choice: Choice, running: int) -> float:
    """Return the seconds to let tokens gather before the next look; ``running`` sequences decode.

    No client sees a token before the next event, so looking more often gains nothing. It costs
    much: a thread that wakes for each token takes 34 µs of processor time a token at 3,000 tokens/s
    in place of 18, and on a CPU a decoding worker that makes way for it holds up all others. So all
    sequences together are looked at as often as one alone. There is no rest before the last tokens,
    so that the end is told at once, and none where each draw waits for the mask that we work out.
    """
    clock, drawn = choice.clock, choice.drawn
    if choice.guided or drawn < 2:
        return 0.0
    step = (clock.last - clock.first) / (drawn - 1) / 1e9
    rest = min(_REST * running, _LONGEST_REST)
    return min(rest, step * (choice.budget - drawn - 1)) if step < rest else 0.0


def _update(choice: Choice, piece: Piece) -> Update:
    """Return what a piece adds to its choice."""
    reason: str | None = piece.finish_reason
    update = Update(choice, len(piece.token_ids), finish_reason=reason)
    if choice.discard:
        update.finish_reason = reason and "length"
        return update
    update.logprobs = list(piece.logprobs)
    if choice.parser is None:
        update.deltas = [Delta(piece.text)]
        return update
    update.deltas = [choice.parser.push(piece.text)]
    if reason is not None:
        update.deltas.append(choice.parser.finish())
        # A call that was cut off is none to be made: that answer ends with "length".
        if choice.parser.called and reason == "stop":
            update.finish_reason = "tool_calls"
    return update
