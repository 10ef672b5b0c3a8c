"""The routes that answer, of every API: from a request to the last byte of its reply.

Where the client goes away before that, the request ends.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from monolane.serve._errors import ApiError
from monolane.serve._http.limits import LARGE_BODY, disconnected, read_body
from monolane.serve._http.prepare import prepare
from monolane.serve._http.request import Asked, TextAsked
from monolane.serve._http.writer import Read, Writer
from monolane.serve._keys import GUEST
from monolane.serve._run.bodies import Body
from monolane.serve._run.choice import Choice
from monolane.serve._run.request import ServedRequest, log_failure
from monolane.serve._run.service import Service

_QUIET_SECONDS = 15.0  # after which a comment keeps the connection open
_MANY = 4096  # tokens of a whole reply that is written when its turn has been given back
_PROGRESS_SECONDS = 0.05  # between two looks at how much of a prompt is read
_QUEUE_SECONDS = 0.5  # between two comments about the queue, to a client that asked for them
_SSE = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the stream
)


class Answers:
    """An ASGI application for one route that answers."""

    def __init__(self, service: Service, read: Read) -> None:
        self._service, self._read = service, read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        service, arrived = self._service, time.perf_counter_ns()
        options = service.options
        assert service.engine  # else a 503, before the body is read
        service.scheduler.check_room()
        request = Request(scope, receive)
        with (
            service.place(scope["monolane.owner"]),
            await read_body(request, service.bodies, options.max_body_bytes) as body,
        ):
            service.scheduler.check_room()
            gone = asyncio.create_task(disconnected(receive))
            try:
                await self._answer(body, arrived, gone, scope, receive, send)
            finally:
                gone.cancel()
                if body.size > LARGE_BODY:
                    service.tidy()

    async def _answer(
        self,
        body: Body,
        arrived: int,
        gone: "asyncio.Task[None]",
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a body; ``gone`` is done when its client has left."""
        service = self._service
        engine, options = service.engine, service.options
        owner = scope["monolane.owner"]

        def work() -> tuple[Asked, Callable[[ServedRequest], Writer], list[Choice]]:
            asked, writer_of = self._read(body.take(), owner)
            sampling = replace(asked.sampling, speculation=options.speculation)
            aside = partial(service.preparers.lend, body.sender)
            asked = replace(asked, sampling=sampling, aside=aside)
            if owner == GUEST:
                asked = _of_guest(asked, min(options.guest_tokens, engine.backend.context))
            return asked, writer_of, prepare(asked, engine, options.tool_format)

        asked, writer_of, choices = await service.prepare(work, gone, body)
        body.free()
        for choice in choices:
            choice.stream.namespace = service.namespace(owner)
        served = ServedRequest(service, choices, arrived, asked.stream, service.ahead(owner))
        writer = writer_of(served)
        if not asked.stream:
            served.at_end = lambda: None if _is_long(served) else writer.whole()
        served.start(asked.deadline)
        gone.add_done_callback(lambda _: served.cancel("client"))
        try:
            if asked.stream:
                await _stream(writer, served, send)
            else:
                await (await _whole(writer, served))(scope, receive, send)
        finally:
            served.cancel("client")
            scope["monolane.answer"].update(_told(served))
            scope["monolane.choices"] += served.choices


def _of_guest(asked: Asked, most: int) -> Asked:
    """Return what somebody without a key gets: one answer of so many tokens at most."""
    prompts = len(asked.prompts) if isinstance(asked, TextAsked) else 1
    if prompts * asked.choices > 1:
        raise ApiError(
            403, f"expected one answer without a key, got {prompts * asked.choices}; send a key"
        )
    return replace(
        asked, max_tokens=most if asked.max_tokens is None else min(asked.max_tokens, most)
    )


async def _stream(writer: Writer, served: ServedRequest, send: Send) -> None:
    """Send the answer as it comes; an error after the start is its last event."""
    await send({"type": "http.response.start", "status": 200, "headers": [*_SSE]})
    try:
        await _send_parts(writer, served, send)
        data = writer.text(served.channel.take()) + writer.end()
    except Exception as error:
        log_failure("a stream", error)
        data = writer.failed(error)
    await send({"type": "http.response.body", "body": data})


async def _send_parts(writer: Writer, served: ServedRequest, send: Send) -> None:
    """Send what comes until nothing more does; the last of it is left in the channel."""
    channel, sent = served.channel, time.monotonic()
    queue_due = 0.0  # time.monotonic() of the next comment about the queue
    data = writer.begin()
    while not channel.closed:
        if writer.live and served.turns and time.monotonic() >= queue_due:
            queue_due = time.monotonic() + _QUEUE_SECONDS
            data += b"".join([writer.queued(i, served.ahead(i)) for i in served.turns])
        updates = channel.take()
        reading = _reading(writer, served)
        data += b"".join([writer.progress(choice) for choice in reading])
        data += writer.text(updates)
        if not data and time.monotonic() - sent >= _QUIET_SECONDS:
            data = writer.keep_alive
        if data:
            sent = time.monotonic()
            # Waits where the client does not read; the protocol ends the connection after a while.
            await send({"type": "http.response.body", "body": data, "more_body": True})
        data = b""
        queued = writer.live and served.turns
        rest = _QUEUE_SECONDS if queued else _QUIET_SECONDS
        await channel.wait(_PROGRESS_SECONDS if reading else rest)


def _reading(writer: Writer, served: ServedRequest) -> list[Choice]:
    """Return the choices whose prompt is being read, where the client is to be told."""
    if not writer.watches:
        return []
    return [choice for choice in served.choices if choice.admitted and not choice.first]


async def _whole(writer: Writer, served: ServedRequest) -> Response:
    await served.channel.wait_closed()
    if served.failure is not None:
        raise served.failure
    body = served.made
    if body is None:  # of several choices, or long
        body = await asyncio.to_thread(writer.whole) if _is_long(served) else writer.whole()
    return Response(body, media_type="application/json")


def _is_long(served: ServedRequest) -> bool:
    """Tell of log-probabilities of many tokens, which make megabytes of JSON, a second of work."""
    return sum(len(choice.prompt_ids) + choice.drawn for choice in served.choices) >= _MANY


def _told(served: ServedRequest) -> dict[str, str | int | float]:
    """Return what the log says of an answer: no text of it, nor of its prompt."""
    first = served.choices[0]
    return {
        "end": served.reason or ("failed" if served.error else "done"),
        "choices": len(served.choices),
        "prompt_tokens": len(first.prompt_ids),
        "generated_tokens": sum(choice.drawn for choice in served.choices),
        "first_ms": round(max(0, first.first - first.arrived) / 1e6, 1),
        "tokens_per_second": round(first.tokens_per_second, 1),
    }
