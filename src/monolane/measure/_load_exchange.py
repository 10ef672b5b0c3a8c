"""One request to an OpenAI-compatible server: whom it goes to, what came back, and when.

While a load runs, the client shares cores with what it measures. So it does nothing for a read but
note time and bytes; HTTP, events and JSON are parsed when the load is over. A client library that
parses on the way costs a multiple of that for each event: docs/benchmarks.md has the figures.
Every request has a connection of its own, opened before its clock starts and closed by the server
at the end of the answer, so that the reading side need not understand HTTP while it takes times.
"""

import asyncio
import ipaddress
import json
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11

from monolane.errors import RequestError

MAX_BYTES = 64 << 20  # of one answer
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """A server; ``path`` stands before /v1/..., ``key`` is never shown."""

    scheme: str
    host: str
    port: int
    path: str = ""
    key: str = field(default="", repr=False)

    @staticmethod
    def parse(url: str, key: str = "") -> "LoadTarget":
        """Read a base URL, with or without /v1 at its end; RequestError if it is none."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise RequestError(f"url: {error}, got {url!r:.200}") from None
        plain = not (parts.query or parts.fragment or parts.username or parts.password)
        if parts.scheme not in _PORTS or not parts.hostname or not plain:
            raise RequestError(
                "url: expected the base of an OpenAI-compatible server, such as "
                f"http://127.0.0.1:8000, with nothing behind its path, got {url!r:.200}"
            )
        if not (key.isascii() and key.isprintable()):
            raise RequestError("key: expected printable ASCII, as a header can carry it")
        path = parts.path.rstrip("/").removesuffix("/v1")
        return LoadTarget(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path, key)

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine, by its name alone: other names may lead anywhere."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def authority(self) -> str:
        """Host and port, as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The base, without /v1."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def tls(self) -> ssl.SSLContext | None:
        """What checks the server's certificate; None for http."""
        return ssl.create_default_context() if self.scheme == "https" else None

    def request(self, route: str, body: dict[str, Any] | None = None) -> bytes:
        """Return a GET, or a POST of JSON, with its headers."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = [("Host", self.authority), ("Connection", "close"), ("Accept", "*/*")]
        if self.key:
            headers.append(("Authorization", f"Bearer {self.key}"))
        if body is not None:
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
        wire = h11.Connection(h11.CLIENT)
        method = "GET" if body is None else "POST"
        head = h11.Request(method=method, target=self.path + route, headers=headers)
        return (wire.send(head) or b"") + data


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
