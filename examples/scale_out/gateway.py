"""What clients talk to: reads a request, and hands it to the replica that has its beginning.

Ray's proxy in front routes before a body has come, so it cannot know the prompt. This stands
between: one small deployment that makes a key of the prompt and lets Ray's own consistent-hash
router find the replica of that key.
"""

from collections.abc import AsyncIterator
from typing import Any

from affinity import prefix_key
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

_MAX_BODY = 8 << 20  # bytes, as in 'monolane serve'
_TRIES = 3  # replicas that may be found dead before a request is given up
_LOST = (RayActorError, ReplicaUnavailableError)
_METHODS = ["GET", "POST", "OPTIONS"]


class Gateway:
    """Sends each request to a replica and its answer back; which routes there are, those know."""

    def __init__(self, engines: DeploymentHandle) -> None:
        self._engines = engines.options(method_name="answer", stream=True)

    def __serve_build_asgi_app__(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self.forward, methods=_METHODS)])

    async def forward(self, request: Request) -> Response:
        """Answer a request; one whose replica is lost before it began goes to another."""
        body = await _read(request)
        if body is None:
            return _error(413, f"the body is larger than {_MAX_BODY >> 20} MB")
        engines = self._engines.options(session_id=prefix_key(body))
        for _ in range(_TRIES):
            parts = engines.remote(_scope(request), body)
            try:
                status, headers = await anext(parts)
            except _LOST:
                continue
            streamed = any(v.startswith(b"text/event-stream") for k, v in headers)
            reply = StreamingResponse(_rest(parts, streamed), status)
            reply.raw_headers = headers
            return reply
        return _error(503, "the replica of this request was lost; send it again")


def _scope(request: Request) -> dict[str, Any]:
    names = ("http_version", "method", "scheme", "path", "raw_path", "query_string", "headers")
    return {name: request.scope.get(name) for name in (*names, "client", "server")}


async def _read(request: Request) -> bytes | None:
    """Return the body, or None if it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY:
            return None
    return bytes(body)


async def _rest(parts: AsyncIterator[bytes], streamed: bool) -> AsyncIterator[bytes]:
    """Yield the body; a stream whose replica dies ends as ours end, with an error event."""
    try:
        async for part in parts:
            yield part
    except (*_LOST, RayTaskError):
        if not streamed:
            raise
        yield b"data: " + _error(500, "the replica was lost amid the answer").body + b"\n\n"
        yield b"data: [DONE]\n\n"


def _error(status: int, message: str) -> JSONResponse:
    kind = {413: "BadRequestError", 503: "unavailable_error"}.get(status, "InternalServerError")
    told = {"message": message, "type": kind, "param": None, "code": status}
    return JSONResponse({"error": told}, status)
