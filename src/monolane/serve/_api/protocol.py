"""uvicorn's HTTP/1.1 with the limits that it leaves to a proxy.

No client holds a connection open by sending or by reading slowly. A head that is too long gets an
error that says so.
"""

import asyncio
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from monolane.serve._errors import ApiError
from monolane.serve._options import HEAD_BYTES

_HEAD_SECONDS = 10.0  # from a connection, or a request's first byte, to a whole head


class LimitedProtocol(H11Protocol):
    """One connection; ``send_seconds`` is how long its client may leave unread what fills buffers.

    ``with_limit`` makes the class that a server uses.
    """

    send_seconds = 30.0

    _head_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None

    @classmethod
    def with_limit(cls, send_seconds: float) -> "type[LimitedProtocol]":
        """Return this class with another limit; uvicorn makes its instances."""
        return type("LimitedProtocol", (cls,), {"send_seconds": send_seconds})

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(_HEAD_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._stop_head_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Read what has come; stop the timer once that is a whole head."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_head_timer()

    def data_received(self, data: bytes) -> None:
        """Begin to wait for a further head with its first byte."""
        idle = self.cycle is not None and self.cycle.response_complete
        if idle and self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_SECONDS, self._too_slow)
        super().data_received(data)

    def pause_writing(self) -> None:
        """Begin to wait for a client that has stopped reading."""
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client reads again."""
        self._stop_send_timer()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also one whose client never reads the end of its answer."""
        super().timeout_keep_alive_handler()
        self._stop_send_timer()
        self._send_timer = self.loop.call_later(self.send_seconds, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP with an error in our form."""
        self._stop_head_timer()
        cause = sys.exc_info()[1]
        status = cause.error_status_hint if isinstance(cause, h11.RemoteProtocolError) else 400
        known = {431: f"the head of a request may have {HEAD_BYTES} bytes"}
        error = ApiError(status, known.get(status, "expected an HTTP/1.1 request"))
        body = error.json()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def _too_slow(self) -> None:
        self._head_timer = None
        self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
