"""Short answers to a posted body, which are made on a thread: tokens, rendered chats, counts."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from monolane.serve._http.limits import LARGE_BODY, disconnected, read_body
from monolane.serve._run.service import Service


async def answer_posted(
    service: Service, request: Request, answer: Callable[[bytes], Any]
) -> Response:
    """Return what ``answer`` makes of the body; its work is dropped where the client has gone."""
    data = await read_body(request, service.options.max_body_bytes)
    gone = asyncio.create_task(disconnected(request.receive))
    try:
        return JSONResponse(await service.prepare(lambda: answer(data), gone))
    finally:
        gone.cancel()
        if len(data) > LARGE_BODY:
            service.tidy()
