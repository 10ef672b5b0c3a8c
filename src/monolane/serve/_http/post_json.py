"""Short answers to a posted body, which are made on a thread: tokens, rendered chats, counts."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from monolane.serve._http.limits import LARGE_BODY, disconnected, read_body
from monolane.serve._http.writer import long_json
from monolane.serve._run.service import Service


async def answer_posted(
    service: Service,
    request: Request,
    answer: Callable[[bytes], Any],
    *,
    by_itself: bool = True,
) -> Response:
    """Return what ``answer`` makes of the body; its work is dropped where the client has gone.

    ``by_itself``: the answer follows from the body and the model's files, so that another process
    may make it; False where it needs what this server keeps.
    """
    with await read_body(request, service.bodies, service.options.max_body_bytes) as body:
        gone = asyncio.create_task(disconnected(request.receive))
        try:
            path: str = request.scope["path"]
            where = service.reader_of(body) if by_itself else service.here
            reply = await service.prepare(
                lambda: where.answer(path, body.take(), lambda data: long_json(answer(data))),
                gone,
                body,
                where.preparers,
            )
            return Response(reply, media_type="application/json")
        finally:
            gone.cancel()
            if body.size > LARGE_BODY:
                service.tidy()
