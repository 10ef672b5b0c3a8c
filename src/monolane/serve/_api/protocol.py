"""uvicorn's HTTP/1.1 with the limits that it leaves to a proxy.

No client holds a connection open by sending or by reading slowly. A head that is too long gets an
error that says so.
"""

import asyncio
import sys
from typing import Any

import h11
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from monolane.serve._errors import ApiError
from monolane.serve._options import HEAD_BYTES

_HEAD_SECONDS = 10.0  # from a connection, or a request's first byte, to a whole head
# What has come is read in steps, and then for a moment not at all: a body in chunks of one byte
# takes 15 us for each, and 256 KB of such come at once. An event of a stream takes several turns of
# the loop, and the thread that decodes takes the GIL in between, so one turn would not do.
_STEP_BYTES = 2048
_STEP_SECONDS = 0.002
_REST_SECONDS = 0.003


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


class LimitedProtocol(H11Protocol):
    """One connection; a server takes a subclass with values of its own."""

    send_seconds = 30.0  # that a client may leave unread what fills the buffers
    max_connections = 1024  # open at once; requests on more are told to come back

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unread = memoryview(b"")
        self.flow: _Flow = _Flow(transport)
        self._start_timer("head", _HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers, and what is not read yet."""
        self._unread = memoryview(b"")
        for name in list(self._timers):
            self._stop_timer(name)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Read what has come; stop the timer once that is a whole head."""
        before = self.cycle
        # uvicorn's own limit answers in plain text, and does not say when to come back.
        full = len(self.connections) > self.max_connections
        self.app = _refuse if full else self.config.loaded_app
        super().handle_events()
        if self.cycle is not before:
            self._stop_timer("head")

    def data_received(self, data: bytes) -> None:
        """Read what has come, and begin to wait for a further head with its first byte."""
        waits = bool(self._unread)
        self._unread = memoryview(bytes(self._unread) + data)
        if not waits:
            self._read_on()

    def _read_on(self) -> None:
        """Read for a moment; the rest is read when others have had their turn."""
        end = self.loop.time() + _STEP_SECONDS
        while self._unread and not self.transport.is_closing():
            if self.cycle is not None and self.cycle.response_complete:
                self._start_timer("head", _HEAD_SECONDS)
            step, self._unread = self._unread[:_STEP_BYTES], self._unread[_STEP_BYTES:]
            super().data_received(bytes(step))
            if self._unread and self.loop.time() >= end:
                self.flow.hold()
                self.loop.call_later(_REST_SECONDS, self._read_on)
                return
        self.flow.release()

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
