"""One request over the wire: what came, and when. What that means is worked out afterwards.

While a load runs, the client shares cores with what it measures. So it does nothing for a read but
note time and bytes; HTTP, events and JSON are parsed when the load is over. A client library that
parses on the way costs a multiple of that for each event: docs/benchmarks.md has the figures.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass, field

from monolane.measure._load_target import LoadTarget

MAX_BYTES = 64 << 20  # of one answer


@dataclass(slots=True)
class Exchange:
    """Times are time.perf_counter_ns(); ``fault`` says why it ended before the server's own end."""

    sent_ns: int = 0
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    fault: tuple[str, str] | None = None  # kind, message

    @property
    def size(self) -> int:
        """Bytes that came."""
        return sum(len(data) for _, data in self.reads)


class _Reader(asyncio.Protocol):
    def __init__(self, exchange: Exchange) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._exchange, self._left = exchange, MAX_BYTES
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._exchange.reads.append((time.perf_counter_ns(), data))
        self._left -= len(data)
        if self._left < 0 and self._transport is not None:
            self._exchange.fault = ("too_large", f"more than {MAX_BYTES >> 20} MB")
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._exchange.fault = ("broken", f"the connection broke: {exc}")
        if not self.over.done():
            self.over.set_result(None)


async def exchange(
    target: LoadTarget, tls: ssl.SSLContext | None, request: bytes, seconds: float
) -> Exchange:
    """Connect, send, and read until the server closes or ``seconds`` are over. Raises nothing."""
    made = Exchange()
    loop = asyncio.get_running_loop()
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(seconds):
            transport, reader = await loop.create_connection(
                lambda: _Reader(made), target.host, target.port, ssl=tls
            )
            made.sent_ns = time.perf_counter_ns()
            transport.write(request)
            await reader.over
    except TimeoutError:
        made.fault = ("timeout", f"not over after {seconds:g} s")
    except OSError as error:  # ssl.SSLError is one
        made.fault = ("connect", str(error))
    finally:
        if transport is not None:
            transport.abort()
    return made
