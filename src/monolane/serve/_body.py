"""Reads the body of a request, up to a size and within a time."""

import asyncio

from starlette.types import Receive, Scope

from monolane.serve._errors import ApiError

_SECONDS = 30.0  # for a whole body


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the body; ApiError 413 past ``limit`` bytes, 408 where it comes too slowly."""
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value) > limit):
            raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ApiError(400, "the client closed the connection amid its request")
                part = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise ApiError(
            408, f"expected the body within {_SECONDS:.0f} s", headers={"Connection": "close"}
        ) from None


def _too_large(limit: int) -> ApiError:
    # The rest of the body is never read, so the connection cannot be used again.
    return ApiError(
        413,
        f"expected a body of at most {limit} bytes; send less, or start the server with a larger "
        "--max-body",
        headers={"Connection": "close"},
    )
