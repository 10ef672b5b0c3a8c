"""One request to an OpenAI-compatible server: whom it goes to, what came back, and when.

While a load runs, the client shares cores with what it measures. So it does nothing for a read but
note time and bytes; HTTP, events and JSON are parsed when the load is over. A client library that
parses on the way costs a multiple of that for each event: docs/benchmarks.md has the figures.
A connection is opened before the clock of a request starts.
"""

import ipaddress
import json
import ssl
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

    def request(
        self, route: str, body: dict[str, Any] | None = None, *, keep: bool = False
    ) -> bytes:
        """Return a GET, or a POST of JSON, with its headers; ``keep``: of a connection to keep."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = [("Host", self.authority), ("Accept", "*/*")]
        headers.append(("Connection", "keep-alive" if keep else "close"))
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
