"""``/v1/chat/completions`` and ``/v1/completions``: from a request to its reply, and to its end
where the client goes away before that.
"""

import asyncio
import time

from starlette.types import Receive, Scope, Send

from monolane.serve._body import read_body
from monolane.serve._gather import gather
from monolane.serve._prepare import Choice, prepare_chat, prepare_completion
from monolane.serve._reply import Reply
from monolane.serve._requests import ChatRequest, CompletionRequest
from monolane.serve._run import Run
from monolane.serve._service import Service, log
from monolane.serve._shapes import ChatShape, CompletionShape, Shape
from monolane.serve._sse import KEEP_ALIVE, EventWriter, failed

_QUIET_SECONDS = 15.0  # after which a comment keeps the connection open
_MANY = 4096  # tokens of a whole reply that is written on a thread of its own
_QUEUE_SECONDS = 0.5  # between two words about the queue, to a live client
_SSE = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the stream
)


class Answers:
    """An ASGI application for one of the two routes."""

    def __init__(self, service: Service, kind: type[ChatRequest] | type[CompletionRequest]) -> None:
        self._service, self._kind = service, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        service, arrived = self._service, time.perf_counter_ns()
        engine = service.engine
        body = await read_body(scope, receive, service.options.max_body_bytes)
        service.scheduler.check_room()
        request, choices = await service.preparer.run(lambda: self._prepare(body))
        wanted = request.alternatives is not None
        shape: Shape
        if isinstance(request, ChatRequest):
            shape = ChatShape(engine.tokenizer, wanted)
        else:
            shape = CompletionShape(engine.tokenizer, wanted, choices)
        run = Run(service, choices, arrived, streamed=bool(request.stream))
        reply = Reply(service, request, run, shape, wanted)
        run.start(min(request.deadline or 1e9, service.options.deadline_seconds))
        gone = asyncio.create_task(_watch(receive, run))
        try:
            await (_stream(reply, send) if request.stream else _whole(reply, send))
        finally:
            gone.cancel()
            run.cancel("client")
            _note(scope, run)

    def _prepare(self, body: bytes) -> tuple[ChatRequest | CompletionRequest, list[Choice]]:
        """Parse, check, render and encode; on a thread."""
        engine = self._service.engine
        request = self._kind.model_validate_json(body)
        self._service.check_model(request.model)
        if isinstance(request, ChatRequest):
            return request, prepare_chat(request, engine)
        return request, prepare_completion(request, engine)


async def _stream(reply: Reply, send: Send) -> None:
    """Send the answer as it comes; whatever goes wrong then is its last event."""
    writer = EventWriter(reply)
    await send({"type": "http.response.start", "status": 200, "headers": [*_SSE]})
    try:
        await _send_parts(reply, writer, send)
        data = writer.text(gather(reply.run.channel.take(), reply.run.choices)) + writer.end()
    except Exception as error:
        log.error("a stream failed", exc_info=error)
        data = failed(error)
    await send({"type": "http.response.body", "body": data})


async def _send_parts(reply: Reply, writer: EventWriter, send: Send) -> None:
    """Send what comes until nothing more does; the last of it is left in the channel."""
    run, channel = reply.run, reply.run.channel
    word = _QueueWord(reply, writer)
    spoken = time.monotonic()
    while not channel.closed:
        data = word.due() + writer.text(gather(channel.take(), run.choices))
        if not data and time.monotonic() - spoken >= _QUIET_SECONDS:
            data = KEEP_ALIVE
        if data:
            spoken = time.monotonic()
            # Waits where the client does not read; the protocol ends the connection after a while.
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await channel.wait(_QUEUE_SECONDS if word.wanted else _QUIET_SECONDS)


class _QueueWord:
    """Tells a live client twice a second how many are before it, for each choice that waits."""

    def __init__(self, reply: Reply, writer: EventWriter) -> None:
        self._run, self._writer = reply.run, writer
        self._live = bool(reply.request.timings_per_token)
        self._next = 0.0

    @property
    def wanted(self) -> bool:
        """Whether there is something to tell."""
        return self._live and bool(self._run.turns)

    def due(self) -> bytes:
        """Return the comments, if it is time."""
        now = time.monotonic()
        if not self.wanted or now < self._next:
            return b""
        self._next = now + _QUEUE_SECONDS
        return b"".join([self._writer.queued(i, self._run.ahead(i)) for i in self._run.turns])


async def _whole(reply: Reply, send: Send) -> None:
    await reply.run.channel.wait_closed()
    if reply.run.failure is not None:
        raise reply.run.failure
    drawn = reply.usage()["total_tokens"]
    # Log-probabilities of many tokens make megabytes of JSON, a second of work.
    body = reply.whole() if drawn < _MANY else await asyncio.to_thread(reply.whole)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _watch(receive: Receive, run: Run) -> None:
    """Cancel the run when its client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    run.cancel("client")


def _note(scope: Scope, run: Run) -> None:
    """Log one line; never a word of prompt or answer."""
    clock = run.clocks[0]
    log.info(
        "%s %s %s: %s, %d choices, %d + %d tokens, first after %.1f ms, %.1f tokens/s",
        scope["monolane.request_id"],
        scope["method"],
        scope["raw_path"].decode("latin-1"),
        run.reason or ("failed" if run.error else "done"),
        len(run.choices),
        clock.prompt_n,
        sum(clock.drawn for clock in run.clocks),
        max(0, clock.first - clock.arrived) / 1e6,
        clock.tokens_per_second,
    )
