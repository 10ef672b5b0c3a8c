"""Stands before every route: who may ask, from where, and how much.

Deny by default: a path is open only if it is on a short list, spelled exactly so. Every other path
needs a key, before anything is said about whether it exists. Decisions read the path as it came
over the wire, so no second reading of it ("//v1", "%2e", a Host header with a path in it) can get
past them.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from monolane.serve._errors import ApiError, api_error
from monolane.serve._http.access import log_access
from monolane.serve._http.paths import PathError, Paths
from monolane.serve._http.spans import Spans
from monolane.serve._http.wrong_keys import WrongKeys
from monolane.serve._keys import GUEST, key_hash
from monolane.serve._options import HEAD_BYTES, HOST, ServerOptions

log = logging.getLogger("monolane.serve")

_HOST = re.compile(rf"({HOST.pattern})(:\d{{1,5}})?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MODELS = (b"/v1/models/", b"/models/")  # the name of a model follows
_ABSOLUTE = re.compile(rb"https?://([^/?#@%]*)(/.*)?", re.IGNORECASE)
# What the page asks for, and nothing else.
_OF_GUESTS = (b"/v1/models", b"/v1/chat/completions", b"/v1/completions", b"/tokenize")
_ENCODED = re.compile(rb"%([0-9A-Fa-f]{2})")
_NAMES = re.compile(r"[A-Za-z0-9_-]+(, ?[A-Za-z0-9_-]+)*")  # of headers
_USUAL = "authorization, x-api-key, content-type, x-request-id"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# OpenAI's clients read the first, Anthropic's the other.
_ID_HEADERS = ("x-request-id", "request-id")
_PAUSING = 64  # replies to wrong keys that wait at a time: they hold connections
_RAW_ID_HEADERS = tuple(name.encode() for name in _ID_HEADERS)
_HEADERS = (  # which no route sets
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """The outermost ASGI application."""

    def __init__(
        self,
        app: ASGIApp,
        options: ServerOptions,
        open_paths: Iterable[str],
        note: Callable[[int, str, str], None],
        error_spellings: Mapping[str, Callable[[ApiError], bytes]] | None = None,
        spans: Spans | None = None,
        paths: Paths | None = None,
    ) -> None:
        """``open_paths`` answer without a key.

        ``note`` is told of each error: its status, the request's id, and the message; ``spans`` of
        each request that is over.
        ``error_spellings``: paths whose errors, and those of paths below them, have another body
        than ``ApiError.json``. ``paths`` are told to who asks by another one.
        """
        self._app, self._options, self._note, self._spans = app, options, note, spans
        self._spellings = {p.encode(): spell for p, spell in (error_spellings or {}).items()}
        self._open = frozenset(path.encode() for path in open_paths)
        self._root = options.root_path.encode() or None
        self._paths = paths or Paths(())
        self._wrong_keys, self._pausing = WrongKeys(), 0
        host = options.host
        own = () if host in ("0.0.0.0", "::") else (f"[{host}]" if ":" in host else host,)
        self._hosts = {name.lower() for name in (*_LOOPBACK, *options.allowed_hosts, *own)}
        # DNS rebinding brings no key here. So with keys, and no names set, any name will do.
        # No browser reaches a Unix socket.
        self._any_host = options.socket is not None or (
            bool(options.keys) and not options.is_loopback and not options.allowed_hosts
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then pass it on; answer for an error that comes back."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        began = time.perf_counter_ns()
        scope = _in_origin_form(scope)
        above = scope["raw_path"] == self._root  # the page, without its slash
        scope = self._below_root(scope)
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(16)
        scope["monolane.request_id"] = request_id
        scope["monolane.owner"] = b""
        scope["monolane.answer"], scope["monolane.choices"] = {}, []
        scope["app"] = self  # Starlette's router then raises its 404 and 405
        cross_origin = self._cross_origin(headers)
        started, status = False, 0

        async def answer(message: Message) -> None:
            nonlocal started, status
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
                raw = request_id.encode()
                told = [*message.get("headers", ()), *_HEADERS]
                told += [(name, raw) for name in _RAW_ID_HEADERS]
                told += [(name.encode(), value.encode()) for name, value in cross_origin.items()]
                message = {**message, "headers": told}
            await send(message)

        try:
            preflight = scope["method"] == "OPTIONS" and bool(cross_origin)
            self._check(scope, headers, preflight or above)
            app = Response(status_code=204) if preflight else self._app
            if above:
                app = RedirectResponse(f"{self._options.root_path}/", 308)
            await app(scope, receive, answer)
        except Exception as error:
            reply = self._reply(scope, error)
            if reply.status == 401 and not started:
                await self._back_off(scope, headers)
            noted = reply.noted if isinstance(reply, PathError) else str(reply)
            self._note(reply.status, request_id, noted)
            if reply.status == 500:
                log.error("request %s failed", request_id, exc_info=error)
            if not started:
                spell = self._spelling(scope["raw_path"], reply)
                app = Response(spell(reply), reply.status, reply.headers, "application/json")
                await app(scope, receive, answer)
        finally:
            log_access(scope, status, (time.perf_counter_ns() - began) / 1e9)
            if self._spans is not None:
                self._spans.record(scope, status, began)

    def _below_root(self, scope: Scope) -> Scope:
        """Return a request for a path below ``root_path`` as one for the rest of it."""
        if self._root is None or not scope["raw_path"].startswith(self._root + b"/"):
            return scope
        size = len(self._root)  # also of what was read of it: it has no "%"
        path = {"raw_path": scope["raw_path"][size:], "path": scope["path"][size:]}
        return {**scope, **path, "monolane.below": self._options.root_path}

    async def _back_off(self, scope: Scope, headers: Headers) -> None:
        """Wait before a wrong key is answered, if many came; no key is no wrong one."""
        if "authorization" not in headers and "x-api-key" not in headers:
            return
        client = scope.get("client")
        seconds = self._wrong_keys.pause(client[0] if client else "")
        if seconds and self._pausing < _PAUSING:
            self._pausing += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self._pausing -= 1

    def _reply(self, scope: Scope, error: Exception) -> ApiError:
        if isinstance(error, HTTPException) and error.status_code == 405:
            below, raw_path = scope.get("monolane.below", ""), scope["raw_path"].decode("latin-1")
            return self._paths.not_by(scope["method"], raw_path, scope["path"], below)
        if isinstance(error, HTTPException) and error.status_code == 404:
            return self._unknown(scope)
        return api_error(error)

    def _unknown(self, scope: Scope) -> PathError:
        below = scope.get("monolane.below", "")
        return self._paths.unknown(scope["raw_path"].decode("latin-1"), below)

    def _spelling(self, path: bytes, reply: ApiError) -> Callable[[ApiError], bytes]:
        if isinstance(reply, PathError) and reply.meant is not None:
            path = reply.meant.encode()
        near = (spell for at, spell in self._spellings.items() if path.startswith(at + b"/"))
        return self._spellings.get(path) or next(near, ApiError.json)

    def _check(self, scope: Scope, headers: Headers, is_open: bool) -> None:
        # The parser bounds a head that it waits for, but not one that comes in one piece.
        size = sum(len(name) + len(value) for name, value in headers.raw)
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > HEAD_BYTES:
            raise ApiError(431, f"the head of a request may have {HEAD_BYTES} bytes")
        self._check_host(headers.getlist("host"))
        self._check_origin(headers.getlist("origin"), headers["host"])
        if not is_open and scope["raw_path"] not in self._open:
            scope["monolane.owner"] = self._owner(headers, scope["raw_path"])
        if _read(scope["raw_path"]) != scope["path"]:
            raise self._unknown(scope)
        if scope["method"] == "POST":
            kind = "".join(headers.getlist("content-type")).split(";")[0].strip().lower()
            if kind != "application/json":
                raise ApiError(415, "Content-Type: expected application/json")
            if any(x.lower() != "chunked" for x in headers.getlist("transfer-encoding")):
                raise ApiError(501, "Transfer-Encoding: expected chunked, and no other")
            if (coding := headers.get("content-encoding", "identity")).lower() != "identity":
                raise ApiError(
                    415,
                    f"Content-Encoding: expected none, got {coding!r:.80}; send the body as it is",
                    headers={"Accept-Encoding": "identity"},
                )

    def _check_host(self, values: list[str]) -> None:
        found = _HOST.fullmatch(values[0]) if len(values) == 1 else None
        if not found:
            raise ApiError(400, "Host: expected one header with a name or address, and a port")
        if not self._any_host and found[1].lower() not in self._hosts:
            raise ApiError(
                403,
                f"Host: {found[1]} is no name of this server; start it with --allow-host "
                f"{found[1]} if it is",
            )

    def _check_origin(self, origins: list[str], host: str) -> None:
        allowed = (f"http://{host}", f"https://{host}", *self._options.allowed_origins)
        if len(origins) > 1 or not set(origins).issubset(allowed):
            raise ApiError(
                403,
                "Origin: web pages of other origins may not ask this server; start it with "
                "--allow-origin to let one",
            )

    def _owner(self, headers: Headers, path: bytes) -> bytes:
        """Return whose request it is: a guest's, where such are let in and no key came."""
        keyless = "authorization" not in headers and "x-api-key" not in headers
        if keyless and self._options.guests and path in _OF_GUESTS:
            return GUEST
        return self._check_key(headers)

    def _check_key(self, headers: Headers) -> bytes:
        """Return the hash of the key that came, b"" where none is needed."""
        if not self._options.keys:
            return b""
        # Anthropic's clients send x-api-key; one key in one header, wherever it stands.
        values = [value.partition(" ") for value in headers.getlist("authorization")]
        found = [key.strip() for scheme, _, key in values if scheme.lower() == "bearer"]
        found += [key.strip() for key in headers.getlist("x-api-key")]
        key = found[0].encode("latin-1") if len(found) == 1 else b""
        if not self._options.keys.admit(key) or len(values) > 1:
            raise ApiError(
                401,
                "expected a valid key in one header, 'Authorization: Bearer KEY' or "
                "'x-api-key: KEY'",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return key_hash(key)

    def _cross_origin(self, headers: Headers) -> dict[str, str]:
        """Return the CORS headers for an origin that is allowed, else none.

        It may send any header: those of official clients differ, and only the known ones are read.
        """
        origins = headers.getlist("origin")
        allowed = [origin for origin in origins if origin in self._options.allowed_origins]
        if not allowed:
            return {}
        asked = headers.get("access-control-request-headers", "")
        return {
            "access-control-allow-origin": allowed[0],
            "access-control-allow-headers": asked if _NAMES.fullmatch(asked) else _USUAL,
            "access-control-allow-methods": "DELETE, GET, POST",
            "access-control-expose-headers": "retry-after, " + ", ".join(_ID_HEADERS),
            "vary": "origin, access-control-request-headers",
        }


def _in_origin_form(scope: Scope) -> Scope:
    """Return a request whose target is a whole URL, as proxies send it, as one for its path.

    The URL's host then counts, and not the header's (RFC 9112, 3.2.2).
    """
    found = _ABSOLUTE.fullmatch(scope["raw_path"])
    if found is None:
        return scope
    path = found[2] or b"/"
    read = scope["path"][found.start(2) :] if found[2] else "/"
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    headers = [(b"host", found[1]), *others]
    return {**scope, "raw_path": path, "path": read, "headers": headers}


def _read(raw_path: bytes) -> str | None:
    """Return a path as it is to be read; None for one with "%", but for the name of a model.

    Clients encode the slash in it, and every path under these needs the key of all others.
    """
    if b"%" not in raw_path:
        return raw_path.decode("latin-1")
    return decoded(raw_path) if raw_path.startswith(_MODELS) else None


def decoded(raw_path: bytes) -> str:
    """Return a path with its "%" and two digits as the bytes that they stand for."""
    return _ENCODED.sub(lambda found: bytes.fromhex(found[1].decode()), raw_path).decode(
        errors="replace"
    )
