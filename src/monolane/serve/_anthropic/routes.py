"""The routes of ``/v1/messages``."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from monolane.serve._anthropic.body import CountRequest, MessagesRequest
from monolane.serve._anthropic.conversation import chat_choice, chat_messages, chat_tools
from monolane.serve._anthropic.errors import MessagesError
from monolane.serve._anthropic.writer import MessagesWriter
from monolane.serve._http.handler import Answers
from monolane.serve._http.json_body import parse_body
from monolane.serve._http.openapi import Operation
from monolane.serve._http.post_json import answer_posted
from monolane.serve._http.prepare import read_chat
from monolane.serve._http.request import Asked, ChatAsked
from monolane.serve._http.writer import Writer
from monolane.serve._run.request import ServedRequest
from monolane.serve._run.service import Service

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
OPERATIONS = (
    Operation("post", PATHS[0], "Answer a chat", MessagesRequest, error=MessagesError),
    Operation("post", PATHS[1], "Tokens of a chat", CountRequest, error=MessagesError),
)


def messages_routes(service: Service) -> list[Route]:
    """Return the routes."""
    handlers = _Messages(service)
    return [
        Route(PATHS[0], Answers(service, handlers.read), methods=["POST"]),
        Route(PATHS[1], handlers.count, methods=["POST"]),
    ]


class _Messages:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def count(self, request: Request) -> Response:
        service = self._service
        engine, tool_format = service.engine, service.options.tool_format

        def work(data: bytes) -> dict[str, int]:
            asked = self._asked(CountRequest, data)
            _, ids, _ = read_chat(asked, engine, tool_format, bounded=False)
            return {"input_tokens": len(ids)}

        return await answer_posted(service, request, work)

    def read(self, data: bytes, owner: bytes) -> tuple[Asked, Callable[[ServedRequest], Writer]]:
        """Return what a body asks for, and the writer of its answer."""
        asked = self._asked(MessagesRequest, data)
        return asked, lambda served: MessagesWriter(self._service, asked.model, served)

    def _asked(self, kind: type[MessagesRequest], data: bytes) -> ChatAsked:
        body = parse_body(kind, data)
        self._service.check_model(body.model)
        if body.stop_sequences is not None:
            body = body.model_copy(update={"stop": body.stop_sequences})
        choice, parallel = chat_choice(body.tool_choice)
        return ChatAsked(
            **body.shared(None, self._service.defaults),
            messages=chat_messages(body.messages, body.system),
            tools=chat_tools(body.tools),
            tool_choice=choice,
            parallel_tool_calls=parallel,
            effort=_effort(body),
        )


def _effort(body: MessagesRequest) -> Any:
    """Return how much to think."""
    if body.thinking is not None and body.thinking.type == "disabled":
        return "none"  # whatever the effort, which bounds more than thinking there
    wanted = body.output_config and body.output_config.effort
    return wanted or (None if body.thinking is None else "high")
