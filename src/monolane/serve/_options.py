"""How a server is set up: its options, and its policy of who may decode when."""

import contextlib
import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path

from monolane import _env
from monolane.engine import SamplingDefaults, Speculation, check_speculation
from monolane.errors import RequestError
from monolane.serve._keys import Keys

HEAD_BYTES = 32 << 10  # of a request's first line and headers
HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")  # as a Host header names it
# RFC 6454: also of desktop applications and extensions, such as app://NAME. Not "null", which any
# page can make itself.
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]{0,63})://([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(:[1-9]\d{0,4})?"
)
_ROOT = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")
_USUAL_PORT = {"http": ":80", "https": ":443"}  # browsers leave it out
_SOCKET = "unix:"  # before the path of a socket, in place of a host
MAX_SHARED = 64  # sequences of one engine


@dataclass(frozen=True, slots=True)
class Policy:
    """How many sequences advance together, and in which order the others wait; docs/mixed-load.md.

    ``short_first``: by arrival plus what the answer is expected to take, so that a long one is
    overtaken only by those that would be done before it would have begun. Else first come, first
    served.
    """

    slots: int = 1
    short_first: bool = False

    @staticmethod
    def parse(text: str) -> "Policy":
        """Read "latency", "latency:short-first", "share:K" or "share:K:short-first"."""
        found = re.fullmatch(r"(?:latency|share:(\d{1,3}))(:short-first)?", text)
        slots = int(found[1] or 1) if found else 0
        if not found or not 1 <= slots <= MAX_SHARED:
            raise RequestError(
                f"policy: expected 'latency' or 'share:K' with K from 1 to {MAX_SHARED}, either "
                f"with ':short-first' behind it, got {text!r:.80}"
            )
        return Policy(slots, bool(found[2]))

    def __str__(self) -> str:
        name = "latency" if self.slots == 1 else f"share:{self.slots}"
        return name + ":short-first" * self.short_first


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What ``monolane serve`` was asked for; RequestError on construction for a wrong value.

    host, port        where to listen; port 0 takes a free one. A host may be the path of a Unix
                      socket: "unix:PATH", or one that begins with "/" or ends with ".sock"
    model_name        what the model goes by in the API
    tool_format       how it spells tool calls; "auto": as its chat template shows
    policy            how requests share the engine
    tls_cert          PEM file of the certificate chain: the server speaks HTTPS, and only that
    tls_key           PEM file of its private key, if that is not in the same file
    speculation       of all requests, as SamplingParams.speculation
    defaults          of requests that do not say how to draw; they go before the model's own
    model_defaults    the model's own count, where these say nothing
    any_model         requests may name any model, and get this one
    share_prefixes    prefixes that one key leaves serve the requests of all
    keys              of those who may ask; a host that others can reach needs at least one
    guests            requests without a key that are answered or wait at a time, on the page's own
                      paths; 0: none. Each has one answer, of ``guest_tokens`` at most
    allowed_hosts     names that a Host header may have, besides those of the loopback address
    allowed_origins   web pages of other origins that may ask, such as "https://chat.example"
    queue_limit       sequences that may wait
    buffer_tokens     tokens that a slow client may leave unread before its request ends
    deadline_seconds  from a request's arrival to its end, without those in which its prompt is read
    stall_seconds     without a token of prompt or answer while something runs: /health says 503
    drain_seconds     from SIGTERM until what still runs is ended
    send_seconds      that a client may take to read what was sent
    root_path         what a proxy puts before the paths, such as "/llm", whether it takes it off
                      again or not
    traces            base URL of an OpenTelemetry collector (OTLP over HTTP); "": as the variables
                      OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT say, if any
    max_body_bytes    of a request; max_connections open at once
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str = "demo"
    tool_format: str = "auto"
    policy: Policy = field(default_factory=Policy)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    speculation: Speculation = "auto"
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    model_defaults: bool = True
    any_model: bool = False
    share_prefixes: bool = False
    keys: Keys = field(default_factory=Keys)
    guests: int = 0
    guest_tokens: int = 256
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    queue_limit: int = 64
    buffer_tokens: int = 16_384
    deadline_seconds: float = 600.0
    stall_seconds: float = 120.0
    drain_seconds: float = 30.0
    send_seconds: float = 30.0
    root_path: str = ""
    traces: str = ""
    max_body_bytes: int = 8 << 20
    max_connections: int = 1024

    def __post_init__(self) -> None:
        check_speculation(self.speculation)
        _check("port", self.port, 0, 65_535)
        _check("queue_limit", self.queue_limit, 0, 1 << 20)
        _check("guests", self.guests, 0, 1 << 20)
        _check("guest_tokens", self.guest_tokens, 1, 1 << 20)
        _check("buffer_tokens", self.buffer_tokens, 1, 1 << 30)
        _check("max_body_bytes", self.max_body_bytes, 1, 1 << 40)
        _check("max_connections", self.max_connections, 1, 1 << 20)
        for name in ("deadline_seconds", "stall_seconds", "drain_seconds", "send_seconds"):
            _check(name, getattr(self, name), 0.001, 1e9)
        if not _ROOT.fullmatch(self.root_path):
            raise RequestError(
                "root_path: expected a path such as '/llm', of letters, digits, - . _ and ~, "
                f"without a slash at its end, got {self.root_path!r:.80}"
            )
        if self.traces and not self.traces.startswith(("http://", "https://")):
            raise RequestError(
                "traces: expected the base URL of a collector, such as 'http://127.0.0.1:4318', "
                f"got {self.traces!r:.80}"
            )
        if self.guests and not self.keys:
            raise RequestError(
                "guests: expected keys beside them, got none: then nobody needs a key; make one "
                "with 'monolane key keys.txt' and pass --api-keys keys.txt, or leave guests out"
            )
        if self.tls_key is not None and self.tls_cert is None:
            raise RequestError("tls_key: expected tls_cert with it, the certificate of that key")
        if self.host.startswith("[") and self.host.endswith("]"):  # as it stands in a URL
            object.__setattr__(self, "host", self.host[1:-1])
        for origin in self.allowed_origins:
            found = _ORIGIN.fullmatch(origin)
            if found is None or found[3] == _USUAL_PORT.get(found[1], ""):
                raise RequestError(
                    "allowed_origins: expected origins such as 'https://chat.example', "
                    "'http://127.0.0.1:3000' or 'app://name', as browsers send them, in small "
                    f"letters, without a path or the usual port, got {origin!r:.80}"
                )
        for host in self.allowed_hosts:
            if not HOST.fullmatch(host):
                raise RequestError(
                    "allowed_hosts: expected a name or an address without a port, such as "
                    f"'box.example' or '[fe80::1]', got {host!r:.80}"
                )
        if not self.is_loopback and not self.keys:
            raise RequestError(
                f"host: {self.host} can be reached from other machines: expected a key, got none. "
                "Make one with 'monolane key keys.txt' and pass --api-keys keys.txt, or set "
                f"{_env.API_KEY.name}; or listen on 127.0.0.1"
            )

    @property
    def socket(self) -> Path | None:
        """The path of the Unix socket to listen on, in place of host and port."""
        path = self.host.removeprefix(_SOCKET)
        if path != self.host or path.startswith("/") or path.endswith(".sock"):
            return Path(path)
        return None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.socket is not None:
            return True
        with contextlib.suppress(ValueError):
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        return False


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise RequestError(f"{name}: expected {low:.16g} to {high:.16g}, got {value!r}")
