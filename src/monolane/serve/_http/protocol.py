"""uvicorn's HTTP/1.1 with the limits that it leaves to a proxy.

No client holds a connection open by sending or by reading slowly. A head that is too long gets an
error that says so.
"""

import asyncio
import itertools
import sys
from collections import deque
from typing import Any

import h11
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from monolane.serve._errors import ApiError
from monolane.serve._options import HEAD_BYTES

_HEAD_SECONDS = 10.0  # from a connection, or a request's first byte, to a whole head
# What has come is read in turns of so many events, and then for a moment not at all. A chunk of one
# byte is an event, of 5 to 15 us, and 256 KB of such come at once. Clocks bound no turn: a busy
# machine would make the turns shorter, and not the pauses. An event of a stream takes several turns
# of the loop, and the thread that decodes takes the GIL in between, hence the rest. All connections
# with long bodies have these turns one after another: else 64 of them would make one long one.
_TURN_EVENTS = 64
_REST_SECONDS = 0.002
_FREE_BYTES = 32 << 10  # of a request that are read at once
_HELD_BYTES = 32 << 10  # of a write that is not kept for others
_STEP_BYTES = 4 << 10  # for the parser at a time: it looks at a head's size when it lacks its end


_numbers = itertools.count()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = ApiError(503, "too many connections are open; try again in a moment")
    headers = {**error.headers, "Connection": "close"}
    await Response(error.json(), error.status, headers, "application/json")(scope, receive, send)


class _Connection(h11.Connection):
    """A parser that says it needs data once it has given the events of a turn."""

    left = _TURN_EVENTS  # events of this turn

    def next_event(self) -> Any:
        """Return the next event, ``NEED_DATA`` or ``PAUSED``."""
        if not self.left:
            return h11.NEED_DATA
        self.left -= 1
        return super().next_event()


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

    h11 writes a head, a body and its end one by one. Each write is a system call, around which a
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


class LimitedProtocol(H11Protocol):
    """One connection; a server takes a subclass with values of its own."""

    turns = Turns()
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
        self.conn: _Connection = _Connection(h11.SERVER, HEAD_BYTES)
        self.flow: _Flow = _Flow(transport)
        self._start_timer("head", _HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers, and what is not read yet."""
        self._unread = memoryview(b"")
        self.turns.leave(self)
        for name in list(self._timers):
            self._stop_timer(name)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what has come, unless more came before it."""
        self._unset_keepalive_if_required()
        self._unread = memoryview(bytes(self._unread) + data)
        self._came += len(data)
        self.handle_events()

    def handle_events(self) -> None:
        """Read what is there, unless that goes on by itself when its turn has come."""
        if self.cycle is None or self.cycle.response_complete:
            self._came = 0
        if self._waits:
            return
        if self._came > _FREE_BYTES:
            self._wait()
        else:
            self.read_on()

    def _wait(self) -> None:
        self._waits = True
        self.flow.hold()
        self.turns.wait(self)

    def read_on(self) -> None:
        """Read for a turn; the rest is read when others have had theirs."""
        self._waits = False
        self.conn.left = _TURN_EVENTS
        self._handle()
        while self._unread and self.conn.left and not self.transport.is_closing():
            if self.cycle is not None and self.cycle.response_complete:
                self._start_timer("head", _HEAD_SECONDS)
            step, self._unread = self._unread[:_STEP_BYTES], self._unread[_STEP_BYTES:]
            self.conn.receive_data(bytes(step))
            self._handle()
        if (self._unread or not self.conn.left) and not self.transport.is_closing():
            self._wait()
        else:
            self.flow.release()

    def _handle(self) -> None:
        """Pass the parser's events on; stop the timer once there is a whole head."""
        before = self.cycle
        # uvicorn's own limit answers in plain text, and does not say when to come back.
        full = len(self.connections) > self.max_connections
        self.app = _refuse if full else self.config.loaded_app
        super().handle_events()
        if self.cycle is not before:
            self._stop_timer("head")

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

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP with an error in our form."""
        self._stop_timer("head")
        cause = sys.exc_info()[1]
        status = cause.error_status_hint if isinstance(cause, h11.RemoteProtocolError) else 400
        known = {431: f"the head of a request may have {HEAD_BYTES} bytes"}
        error = ApiError(status, known.get(status, "expected an HTTP/1.1 request"))
        body = error.json()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def _start_timer(self, name: str, seconds: float) -> None:
        """Cut the connection in so many seconds, unless this timer runs already."""
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
