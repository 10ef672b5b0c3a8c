"""The connections of a load: new ones, or kept for one request after the other.

Most clients keep theirs, and some faults of a server show on no other: one that leaves Nagle's
algorithm on answers every request but the first of a connection 40 ms later.
"""

import asyncio
import ssl
import time

import h11

from monolane.measure._load_exchange import MAX_BYTES, Exchange, LoadTarget
from monolane.measure._load_http import parse_reads

_LAST_CHUNK = b"0\r\n\r\n"


class Connections:
    """Connections to one server, on one event loop; ``keep``: they are used again."""

    def __init__(self, target: LoadTarget, *, keep: bool) -> None:
        self._target, self._tls = target, target.tls
        self.keep = keep
        self._idle: list[_Connection] = []

    async def exchange(self, request: bytes, seconds: float) -> Exchange:
        """Send a request and read its answer, within ``seconds``. Raises nothing.

        A connection that the server has closed while it was idle is replaced by another.
        """
        made = Exchange()
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(seconds):
                while not made.reads:
                    connection = await self._take(self._tls)
                    used = connection.used
                    await connection.carry(made, request)
                    if not used or made.fault is not None:
                        break
        except TimeoutError:
            made.fault = ("timeout", f"not over after {seconds:g} s")
        except OSError as error:  # ssl.SSLError is one
            made.fault = ("connect", str(error))
        if connection is not None:
            if connection.free:
                self._idle.append(connection)
            else:
                connection.close()
        return made

    def close(self) -> None:
        """Close what is kept."""
        while self._idle:
            self._idle.pop().close()

    async def _take(self, tls: ssl.SSLContext | None) -> "_Connection":
        while self._idle:
            connection = self._idle.pop()
            if connection.free:
                return connection
        target = self._target
        _, made = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self.keep), target.host, target.port, ssl=tls
        )
        return made


class _Connection(asyncio.Protocol):
    """One connection; ``free``: it may carry the next exchange."""

    def __init__(self, keep: bool) -> None:
        self.free, self.used = False, False
        self._keep = keep
        self._exchange = Exchange()
        self._left, self._tail = 0, b""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    async def carry(self, exchange: Exchange, request: bytes) -> None:
        """Send a request and read until its answer is whole, or the server closes."""
        assert self._transport is not None
        self.free, self.used = False, True
        self._exchange, self._left, self._tail = exchange, MAX_BYTES, b""
        self._over = asyncio.get_running_loop().create_future()
        exchange.sent_ns = time.perf_counter_ns()
        self._transport.write(request)
        await self._over

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._exchange.reads.append((time.perf_counter_ns(), data))
        self._left -= len(data)
        if self._left < 0:
            self._exchange.fault = ("too_large", f"more than {MAX_BYTES >> 20} MB")
            self.close()
        elif self._keep and self._may_be_whole(data):
            self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self.free = False
        if exc is not None and not self._over.done() and not self._is_stale():
            self._exchange.fault = ("broken", f"the connection broke: {exc}")
        self._end()

    def _is_stale(self) -> bool:
        """Whether the server may have closed it before the request was there."""
        return self._keep and not self._exchange.reads

    def _may_be_whole(self, data: bytes) -> bool:
        """Spare the parsing of a stream before its end."""
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        chunked = b"transfer-encoding: chunked" in self._exchange.reads[0][1].lower()
        return not chunked or self._tail == _LAST_CHUNK

    def _look(self) -> None:
        try:
            found = parse_reads(self._exchange.reads, ended=False)
        except h11.RemoteProtocolError:
            return  # no HTTP: it ends with the connection
        if found.whole:
            self.free = found.kept
            self._end()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
