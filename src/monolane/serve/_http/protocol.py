"""uvicorn's HTTP/1.1 with the limits that it leaves to a proxy.

No client holds a connection open by sending or by reading slowly. A head that is too long gets an
error that says so.
"""

import asyncio
import itertools
from collections import deque
from typing import Any

import httptools
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from monolane.serve._errors import ApiError
from monolane.serve._http.admission import Admission
from monolane.serve._http.guard import decoded
from monolane.serve._options import HEAD_BYTES

_HEAD_SECONDS = 10.0  # from a connection, or a request's first byte, to a whole head
# What has come is read in steps, and by turns of so many events, and then for a moment not at all.
# A chunk of one byte is an event, and 256 KB of such come at once. Clocks bound no turn: a busy
# machine would make the turns shorter, and not the pauses. An event of a stream takes several turns
# of the loop, and the thread that decodes takes the GIL in between, hence the rest. All connections
# with long bodies have these turns one after another: else 64 of them would make one long one.
_TURN_EVENTS = 64
_REST_SECONDS = 0.002
_FREE_BYTES = 32 << 10  # of a request that are read at once
_HELD_BYTES = 32 << 10  # of a write that is not kept for others
_STEP_BYTES = 4 << 10  # for the parser at a time: at most 683 chunks, of some 1 us each
_BODY_BYTES = 64 << 10  # and of a body whose length is known, which is one event


_numbers = itertools.count()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = ApiError(503, "too many connections are open; try again in a moment")
    headers = {**error.headers, "Connection": "close"}
    await Response(error.json(), error.status, headers, "application/json")(scope, receive, send)


class _Flow(FlowControl):
    """Reading pauses for two reasons: the application has enough, or what has come is unread."""

    _held = False

    def hold(self) -> None:
        """Take nothing more from the client until ``release``."""
        self._held = True
        self._transport.pause_reading()

    def release(self) -> None:
        """Take more, unless the application has enough."""
        if self._held:
            self._held = False
            if not self.read_paused:
                self._transport.resume_reading()

    def resume_reading(self) -> None:
        """The application wants more."""
        if self.read_paused:
            self.read_paused = False
            if not self._held:
                self._transport.resume_reading()


class Turns:
    """One connection at a time reads of its long body; the next one after a rest."""

    def __init__(self) -> None:
        self._waiting: deque[LimitedProtocol] = deque()
        self._resting = False

    def wait(self, connection: "LimitedProtocol") -> None:
        """Call the connection's ``read_on`` when its turn has come."""
        self._waiting.append(connection)
        if not self._resting:
            self._rest()

    def leave(self, connection: "LimitedProtocol") -> None:
        """Forget a connection that is no more; harmless for one that does not wait."""
        if connection in self._waiting:
            self._waiting.remove(connection)

    def _rest(self) -> None:
        self._resting = True
        asyncio.get_running_loop().call_later(_REST_SECONDS, self._next)

    def _next(self) -> None:
        self._resting = False
        if not self._waiting:
            return
        connection = self._waiting.popleft()
        if self._waiting:
            self._rest()
        connection.read_on()


class _Joined:
    """A transport that writes once what one turn of the event loop has to say.

    uvicorn writes a head and a body one by one. Each write is a system call, around which a
    thread that decodes may take the GIL and keep it for a while.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.is_closing, self.abort = transport.is_closing, transport.abort
        self.get_extra_info = transport.get_extra_info

    def write(self, data: bytes) -> None:
        """Write this before the loop's next turn; at once where there is much of it."""
        if not data:
            return
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        if len(data) > _HELD_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is left, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held and not self._transport.is_closing():
            self._transport.write(b"".join(held))


class LimitedProtocol(HttpToolsProtocol):
    """One connection; a server takes a subclass with values of its own."""

    turns = Turns()
    admission = Admission()
    send_seconds = 30.0  # that a client may leave unread what fills the buffers
    max_connections = 1024  # open at once; requests on more are told to come back

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        self.transport: Any = _Joined(transport, self.loop)
        # Clients of a Unix socket have no address, but are told apart all the same.
        self.client = self.client or ("", next(_numbers))
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unread = memoryview(b"")
        self._waits = False  # for its turn to read on
        self._came = 0  # bytes of this request, but for those that came with its head
        self._events = 0  # of this turn
        self._quiet = 0  # bytes since the last event
        self._left = 0  # bytes of a body whose length is known that have not been read
        self._in_head = False
        self._ended = False  # no more is read
        self._running: Any = None  # the cycle of the request that is answered, or was last
        self._lost: Exception | None = None  # why the connection was lost
        self.flow: _Flow = _Flow(transport)
        self._start_timer("head", _HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers, and what is not read yet; tell who answers when its turn has come."""
        self._unread, self._lost = memoryview(b""), exc
        self.turns.leave(self)
        self.connections.discard(self)
        for name in list(self._timers):
            self._stop_timer(name)
        if self._is_answering:
            self.admission.go(self)
        else:
            self.admission.forget(self)
            self.leave()

    def leave(self) -> None:
        """End with a client who has left, and tell who answers."""
        if self._is_answering:  # uvicorn tells the last request alone, which may not have begun
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(self._lost)

    @property
    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def data_received(self, data: bytes) -> None:
        """Read what has come, unless more came before it."""
        self._unset_keepalive_if_required()
        self._unread = memoryview(bytes(self._unread) + data)
        self._came = self._came + len(data) if self._is_answering else 0
        if self._waits:
            return
        if self._came > _FREE_BYTES:
            self._wait()
        elif self._is_answering or self._in_head:
            self.read_on()
        elif self.admission.come(self, data):
            self._waits = True
            self.flow.hold()

    def _wait(self) -> None:
        self._waits = True
        self.flow.hold()
        self.turns.wait(self)

    def read_on(self) -> None:
        """Read for a turn; the rest is read when others have had theirs."""
        self._waits = False
        self._events = 0
        while self._unread and self._events < _TURN_EVENTS and self._may_read():
            self._unset_keepalive_if_required()
            if not self._is_answering and not self._in_head:
                self._start_timer("head", _HEAD_SECONDS)
            size = max(_STEP_BYTES, min(self._left, _BODY_BYTES))
            step, self._unread = self._unread[:size], self._unread[size:]
            self._read(step)
        if self.transport.is_closing() or self._ended:
            return
        if not self._unread:
            self.flow.release()
        elif self.pipeline:
            self.flow.hold()  # until the requests before are answered
        else:
            self._wait()

    def _may_read(self) -> bool:
        return not (self.pipeline or self._ended or self.transport.is_closing())

    def _read(self, step: memoryview) -> None:
        self._quiet += len(step)
        try:
            self.parser.feed_data(step)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(bytes(step[upgrade.args[0] :]))
        except httptools.HttpParserError:
            self._end(ApiError(400, "expected an HTTP/1.1 request"))
        else:
            if self._quiet > HEAD_BYTES + _STEP_BYTES:
                message = f"the head of a request may have {HEAD_BYTES} bytes"
                self._end(ApiError(431, message))

    def _decline_upgrade(self, rest: bytes) -> None:
        """Read a head again without its offer of another protocol: none is spoken here.

        The parser reads no body behind such a head, and nothing more at all.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":  # is one without saying so
            self._end(ApiError(405, "CONNECT is for proxies, and this is none"))
            return
        lines = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        head = b"".join(line + b"\r\n" for line in [*lines, b""])
        self._unread, self._quiet = memoryview(head + rest + bytes(self._unread)), 0

    # ---- What the parser finds ----

    def on_message_begin(self) -> None:
        """A request's first line begins."""
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those behind a body in chunks say nothing here."""
        if self._in_head:
            super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """Begin to answer, if nothing before is being answered."""
        if self.parser.should_upgrade():
            return
        self._in_head = False
        self._note_event()
        self._stop_timer("head")
        # uvicorn's own limit answers in plain text, and does not say when to come back.
        full = len(self.connections) > self.max_connections
        self.app = _refuse if full else self.config.loaded_app
        target, self.url = self.url, b"/"
        if not target.isascii():
            raise ValueError("expected a target in ASCII")
        super().on_headers_complete()
        raw_path, _, query = target.partition(b"?")  # the whole of it: uvicorn drops a host
        self.scope["path"] = decoded(raw_path)
        self.scope["raw_path"] = raw_path
        self.scope["query_string"] = query
        self._left = int(dict(self.headers).get(b"content-length", b"0"))
        if not self._is_answering:
            self._running = self.cycle

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._left -= len(body)
        self._note_event()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole."""
        if self.parser.should_upgrade():
            return
        self._note_event()
        super().on_message_complete()

    def _note_event(self) -> None:
        self._events += 1
        self._quiet = 0

    # ---- What is sent ----

    def on_response_complete(self) -> None:
        """Go on with what came meanwhile."""
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()
        if self._unread and not self._waits and not self.transport.is_closing():
            self.read_on()

    def pause_writing(self) -> None:
        """Begin to wait for a client that has stopped reading."""
        super().pause_writing()
        self._start_timer("send", self.send_seconds)

    def resume_writing(self) -> None:
        """Go on: the client reads again."""
        self._stop_timer("send")
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also one whose client never reads the end of its answer."""
        super().timeout_keep_alive_handler()
        self._stop_timer("send")
        self._start_timer("send", self.send_seconds)

    def _end(self, error: ApiError) -> None:
        """Answer what is no HTTP with an error in our form, and close."""
        self._stop_timer("head")
        self._unread, self._ended = memoryview(b""), True
        if self._is_answering and not self._running.more_body:
            last = self._running if self.cycle.more_body else self.cycle
            last.keep_alive = False  # it came whole before this, and is answered to its end
            self.flow.hold()
            return
        if not self._is_answering or not self._running.response_started:
            body = error.json()
            head = f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\n"
            head += f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _start_timer(self, name: str, seconds: float) -> None:
        """Cut the connection in so many seconds, unless this timer runs already."""
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
