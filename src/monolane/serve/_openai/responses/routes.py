"""The routes of ``/v1/responses``: make one, read one that is stored, forget it."""

from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from monolane.errors import RequestError
from monolane.serve._errors import ApiError
from monolane.serve._http.handler import Answers
from monolane.serve._http.json_body import parse_body
from monolane.serve._http.openapi import Operation
from monolane.serve._http.post_json import answer_posted
from monolane.serve._http.prepare import read_chat
from monolane.serve._http.request import Asked, ChatAsked
from monolane.serve._http.writer import Writer
from monolane.serve._openai.responses.body import ResponsesRequest
from monolane.serve._openai.responses.conversation import chat_messages
from monolane.serve._openai.responses.input_items import page_of
from monolane.serve._openai.responses.store import ResponseStore, Stored
from monolane.serve._openai.responses.tools import chat_choice, read_offered
from monolane.serve._openai.responses.writer import ResponsesWriter, Turn
from monolane.serve._run.request import ServedRequest
from monolane.serve._run.service import Service

Json = dict[str, Any]
OPERATIONS = (
    Operation("post", "/v1/responses", "Continue a conversation", ResponsesRequest),
    Operation("get", "/v1/responses/{id}", "A stored response", None, (401, 404)),
    Operation("delete", "/v1/responses/{id}", "Forget a stored response", None, (401, 404)),
    Operation(
        "get", "/v1/responses/{id}/input_items", "What it was made from", None, (400, 401, 404)
    ),
    Operation(
        "post",
        "/v1/responses/{id}/cancel",
        "A 400: none runs in the background",
        None,
        (400, 401, 404, 415),
    ),
    Operation("post", "/v1/responses/input_tokens", "Tokens of a conversation", ResponsesRequest),
)


def responses_routes(service: Service) -> list[Route]:
    """Return the routes, with a store of their own."""
    handlers = _Responses(service)
    one = "/v1/responses/{id:str}"
    return [
        Route("/v1/responses", Answers(service, handlers.read), methods=["POST"]),
        Route(one, handlers.get, methods=["GET"]),
        Route(one, handlers.delete, methods=["DELETE"]),
        Route(f"{one}/input_items", handlers.input_items, methods=["GET"]),
        Route(f"{one}/cancel", handlers.cancel, methods=["POST"]),
        Route("/v1/responses/input_tokens", handlers.count, methods=["POST"]),
    ]


class _Responses:
    def __init__(self, service: Service) -> None:
        self._service, self._store = service, ResponseStore()

    async def get(self, request: Request) -> Response:
        found = self._stored(request)
        if request.query_params.get("stream") == "true":
            raise RequestError("stream: only a response made in the background can be streamed")
        return Response(found.response, media_type="application/json")

    async def input_items(self, request: Request) -> Response:
        found = self._stored(request)
        return JSONResponse(page_of(found.items[: found.inputs], request.query_params))

    async def cancel(self, request: Request) -> Response:
        self._stored(request)
        raise ApiError(400, "only a response made in the background can be cancelled")  # OpenAI's

    async def count(self, request: Request) -> Response:
        service, owner = self._service, request.scope["monolane.owner"]

        def work(data: bytes) -> Json:
            asked, _ = self._asked(data, owner)
            tool_format = service.options.tool_format
            _, ids, _ = read_chat(asked, service.engine, tool_format, bounded=False)
            return {"object": "response.input_tokens", "input_tokens": len(ids)}

        # An earlier response that the request names is kept in this process.
        return await answer_posted(service, request, work, by_itself=False)

    def _stored(self, request: Request) -> Stored:
        name = request.path_params["id"]
        found = self._store.get(request.scope["monolane.owner"], name)
        if found is None:
            raise _unknown(request)
        return found

    async def delete(self, request: Request) -> Response:
        name = request.path_params["id"]
        if not self._store.delete(request.scope["monolane.owner"], name):
            raise _unknown(request)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    def read(self, data: bytes, owner: bytes) -> tuple[Asked, Callable[[ServedRequest], Writer]]:
        """Return what a body asks for, and the writer of its answer."""
        asked, turn = self._asked(data, owner)

        def keep(stored: Stored) -> None:
            self._store.put(owner, stored)

        return asked, lambda served: ResponsesWriter(self._service, turn, served, keep)

    def _asked(self, data: bytes, owner: bytes) -> tuple[ChatAsked, Turn]:
        body = parse_body(ResponsesRequest, data)
        self._service.check_model(body.model)
        before = self._before(body.previous_response_id, owner)
        items = (*(before.items if before else ()), *self._resolved(body.items(), owner))
        tools = read_offered(body.tools)
        asked = ChatAsked(
            **body.shared(body.alternatives, self._service.defaults),
            messages=chat_messages(items, body.instructions),
            tools=tools.chat,
            tool_choice=chat_choice(body.tool_choice),
            parallel_tool_calls=body.parallel_tool_calls,
            continue_final_message=False,
            effort=body.reasoning.effort if body.reasoning else None,
            variables=body.chat_template_kwargs or {},
        )
        size = len(data) + (before.size if before else 0)
        return asked, Turn(body, asked.sampling, tools, items, size)

    def _before(self, name: str | None, owner: bytes) -> Stored | None:
        if name is None:
            return None
        if (found := self._store.get(owner, name)) is None:
            raise RequestError(
                f"previous_response_id: no response {name!r:.100} is stored (any more); send the "
                "whole conversation as input"
            )
        return found

    def _resolved(self, items: Sequence[Json], owner: bytes) -> list[Json]:
        """Return the items with those looked up that are named by id alone."""
        return [self._looked_up(i, item, owner) for i, item in enumerate(items)]

    def _looked_up(self, i: int, item: Json, owner: bytes) -> Json:
        if item.get("type") != "item_reference":
            return item
        if (found := self._store.item(owner, str(item.get("id")))) is None:
            raise RequestError(
                f"input: no item {item.get('id')!r:.100} is stored (any more), got it in "
                f"input[{i}]; send the item itself"
            )
        return found


def _unknown(request: Request) -> ApiError:
    return ApiError(404, f"no response {request.path_params['id']!r:.100} is stored (any more)")
