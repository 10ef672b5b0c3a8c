"""``/v1/chat/completions`` and ``/v1/completions``: from a request to the last byte of its reply.

Where the client goes away before that, the request ends.
"""

import asyncio
import logging
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from monolane.engine import Engine
from monolane.serve._api.limits import read_body
from monolane.serve._api.prepare import prepare_chat, prepare_completion
from monolane.serve._api.reply import Reply
from monolane.serve._api.sse import KEEP_ALIVE, EventWriter, failed
from monolane.serve._api.wire import ChatRequest, CompletionRequest
from monolane.serve._run.choice import Choice
from monolane.serve._run.request import ServedRequest
from monolane.serve._run.service import Service

log = logging.getLogger("monolane.serve")

_QUIET_SECONDS = 15.0  # after which a comment keeps the connection open
_MANY = 4096  # tokens of a whole reply that is written on a thread of its own
_QUEUE_SECONDS = 0.5  # between two comments about the queue, to a client that asked for them
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
        engine, options = service.engine, service.options
        body = await read_body(Request(scope, receive), options.max_body_bytes)
        service.scheduler.check_room()
        request, choices = await service.prepare(lambda: self._prepare(body, engine))
        for choice in choices:
            choice.stream.namespace = service.namespace(scope["monolane.owner"])
        seconds = min(request.deadline or 1e9, options.deadline_seconds)
        served = ServedRequest(service, choices, arrived, streamed=bool(request.stream))
        reply = Reply(service, request, served)
        served.start(seconds)
        gone = asyncio.create_task(_watch(receive, served))
        try:
            if request.stream:
                await _stream(reply, send)
            else:
                await (await _whole(reply))(scope, receive, send)
        finally:
            gone.cancel()
            served.cancel("client")
            _log(scope, served)

    def _prepare(
        self, body: bytes, engine: Engine
    ) -> tuple[ChatRequest | CompletionRequest, list[Choice]]:
        """Parse, check, render and encode; on a thread."""
        request = self._kind.model_validate_json(body)
        self._service.check_model(request.model)
        if isinstance(request, ChatRequest):
            return request, prepare_chat(request, engine, self._service.options.tool_format)
        return request, prepare_completion(request, engine)


async def _stream(reply: Reply, send: Send) -> None:
    """Send the answer as it comes; an error after the start is its last event."""
    writer = EventWriter(reply)
    await send({"type": "http.response.start", "status": 200, "headers": [*_SSE]})
    try:
        await _send_parts(reply, writer, send)
        data = writer.text(reply.served.channel.take()) + writer.end()
    except Exception as error:
        log.error("a stream failed", exc_info=error)
        data = failed(error)
    await send({"type": "http.response.body", "body": data})


async def _send_parts(reply: Reply, writer: EventWriter, send: Send) -> None:
    """Send what comes until nothing more does; the last of it is left in the channel."""
    served, channel = reply.served, reply.served.channel
    live, sent = reply.request.timings_per_token, time.monotonic()
    queue_due = 0.0  # time.monotonic() of the next comment about the queue
    while not channel.closed:
        data = b""
        if live and served.turns and time.monotonic() >= queue_due:
            queue_due = time.monotonic() + _QUEUE_SECONDS
            data = b"".join([writer.queued(i, served.ahead(i)) for i in served.turns])
        data += writer.text(channel.take())
        if not data and time.monotonic() - sent >= _QUIET_SECONDS:
            data = KEEP_ALIVE
        if data:
            sent = time.monotonic()
            # Waits where the client does not read; the protocol ends the connection after a while.
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await channel.wait(_QUEUE_SECONDS if live and served.turns else _QUIET_SECONDS)


async def _whole(reply: Reply) -> Response:
    await reply.served.channel.wait_closed()
    if reply.served.failure is not None:
        raise reply.served.failure
    # Log-probabilities of many tokens make megabytes of JSON, a second of work.
    many = reply.usage()["total_tokens"] >= _MANY
    body = await asyncio.to_thread(reply.whole) if many else reply.whole()
    return Response(body, media_type="application/json")


async def _watch(receive: Receive, served: ServedRequest) -> None:
    """Cancel the request when its client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    served.cancel("client")


def _log(scope: Scope, served: ServedRequest) -> None:
    """Log one line, without any text of prompt or answer."""
    first = served.choices[0]
    log.info(
        "%s %s %s: %s, %d choices, %d + %d tokens, first after %.1f ms, %.1f tokens/s",
        scope["monolane.request_id"],
        scope["method"],
        scope["raw_path"].decode("latin-1"),
        served.reason or ("failed" if served.error else "done"),
        len(served.choices),
        len(first.prompt_ids),
        sum(choice.drawn for choice in served.choices),
        max(0, first.first - first.arrived) / 1e6,
        first.tokens_per_second,
    )
