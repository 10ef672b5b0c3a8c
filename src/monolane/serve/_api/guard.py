"""Stands before every route: who may ask, from where, and how much.

Deny by default: a path is open only if it is on a short list, spelled exactly so. Every other path
needs a key, before anything is said about whether it exists. Decisions read the path as it came
over the wire, so no second reading of it ("//v1", "%2e", a Host header with a path in it) can get
past them.
"""

import logging
import re
import secrets
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from monolane.serve._errors import ApiError, api_error
from monolane.serve._keys import key_hash
from monolane.serve._options import HEAD_BYTES, ServerOptions

log = logging.getLogger("monolane.serve")

_HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """The outermost ASGI application; ``open_paths`` answer without a key."""

    def __init__(self, app: ASGIApp, options: ServerOptions, open_paths: Iterable[str]) -> None:
        self._app, self._options = app, options
        self._open = frozenset(path.encode() for path in open_paths)
        host = options.host
        own = () if host in ("0.0.0.0", "::") else (f"[{host}]" if ":" in host else host,)
        self._hosts = {name.lower() for name in (*_LOOPBACK, *options.allowed_hosts, *own)}
        # DNS rebinding brings no key here. So with keys, and no names set, any name will do.
        self._any_host = (
            bool(options.keys) and not options.is_loopback and not options.allowed_hosts
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then pass it on; answer for an error that comes back."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(16)
        scope["monolane.request_id"] = request_id
        scope["monolane.owner"] = b""
        scope["app"] = self  # Starlette's router then raises its 404 and 405
        cross_origin = self._cross_origin(headers.getlist("origin"))
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message.get("headers", ())]}
                more = {**_HEADERS, "x-request-id": request_id, **cross_origin}
                MutableHeaders(raw=message["headers"]).update(more)
            await send(message)

        try:
            preflight = scope["method"] == "OPTIONS" and bool(cross_origin)
            self._check(scope, headers, preflight)
            app = Response(status_code=204) if preflight else self._app
            await app(scope, receive, answer)
        except Exception as error:
            reply = api_error(error)
            if reply.status == 500:
                log.error("request %s failed", request_id, exc_info=error)
            if not started:
                app = Response(reply.json(), reply.status, reply.headers, "application/json")
                await app(scope, receive, answer)

    def _check(self, scope: Scope, headers: Headers, preflight: bool) -> None:
        # The parser bounds a head that it waits for, but not one that comes in one piece.
        size = sum(len(name) + len(value) for name, value in headers.raw)
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > HEAD_BYTES:
            raise ApiError(431, f"the head of a request may have {HEAD_BYTES} bytes")
        self._check_host(headers.getlist("host"))
        self._check_origin(headers.getlist("origin"), headers["host"])
        if not preflight and scope["raw_path"] not in self._open:
            scope["monolane.owner"] = self._check_key(headers.getlist("authorization"))
        if b"%" in scope["raw_path"] or scope["raw_path"].decode("latin-1") != scope["path"]:
            raise ApiError(404, "no such path; see /openapi.json")
        if scope["method"] == "POST":
            kind = "".join(headers.getlist("content-type")).split(";")[0].strip().lower()
            if kind != "application/json":
                raise ApiError(415, "Content-Type: expected application/json")

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

    def _check_key(self, values: list[str]) -> bytes:
        """Return the hash of the key that came, b"" where none is needed."""
        keys = self._options.keys
        if not keys:
            return b""
        value = values[0].encode("latin-1") if len(values) == 1 else b""
        scheme, _, key = value.partition(b" ")
        if not keys.admit(key.strip()) or scheme.lower() != b"bearer":
            raise ApiError(
                401,
                "expected a valid key in one header 'Authorization: Bearer KEY'",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return key_hash(key.strip())

    def _cross_origin(self, origins: list[str]) -> dict[str, str]:
        """Return the CORS headers for an origin that is allowed, else none."""
        allowed = [origin for origin in origins if origin in self._options.allowed_origins]
        if not allowed:
            return {}
        return {
            "access-control-allow-origin": allowed[0],
            "access-control-allow-headers": "authorization, content-type, x-request-id",
            "access-control-allow-methods": "GET, POST",
            "vary": "origin",
        }
