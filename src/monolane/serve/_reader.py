"""The process that answers long bodies for a server; see ``_run/reading_process.py``.

    python -m monolane.serve._reader FD

FD is the number of a socket, over which the server says what to read, and asks.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from typing import Any

from starlette.types import ASGIApp

from monolane.engine import Engine
from monolane.serve._errors import api_error
from monolane.serve._options import ServerOptions
from monolane.serve._run.memory import give_back
from monolane.serve._run.reading_process import Setup, receive, send, told
from monolane.serve._run.service import Service
from monolane.serve._server import build_router

log = logging.getLogger("monolane.serve")

_NICE = 10  # below the server, and below what decodes
_LARGE = 1 << 20  # bytes of a body after which memory is given back


async def read_on(link: socket.socket) -> None:
    """Answer what is asked until the server closes the link."""
    setup = Setup(**receive(link)[0])
    engine = Engine.for_reading(setup.model, setup.context, setup.adapters)
    options = ServerOptions(
        model_name=setup.model_name,
        any_model=setup.any_model,
        tool_format=setup.tool_format,
        max_body_bytes=setup.max_body_bytes,
    )
    service = Service(lambda: engine, options)
    await service.start()
    if service.failure is not None:
        raise service.failure
    router = build_router(service)
    send(link, {}, b"")
    while True:
        try:
            head, body = receive(link)
        except (OSError, EOFError):
            break
        send(link, *await _answer(router, head["path"], body))
        if len(body) > _LARGE:
            del body
            give_back()
    await service.close()


async def _answer(router: ASGIApp, path: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the head and the body of the answer to a body that was posted to a path."""
    coming = iter([{"type": "http.request", "body": body, "more_body": False}])
    parts: list[bytes] = []

    async def from_client() -> Any:
        return next(coming, None) or await asyncio.Event().wait()

    async def to_client(message: Any) -> None:
        parts.append(message.get("body", b""))

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "app": router,  # Starlette's router then raises its 404 and 405
    }
    try:
        await router(scope, from_client, to_client)
        return {}, b"".join(parts)
    except Exception as error:
        found = api_error(error)
        if found.status == 500:
            log.error("a body that was read apart failed", exc_info=error)
        return told(found), b""


def main() -> None:
    """Read until the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the server ends this one
    os.nice(_NICE)
    with socket.socket(fileno=int(sys.argv[1])) as link:
        asyncio.run(read_on(link))


if __name__ == "__main__":
    main()
