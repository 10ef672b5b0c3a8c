"""Small routes of llama.cpp's server that its clients ask: what is served, and what is rendered."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from monolane._version import __version__
from monolane.engine import SamplingParams
from monolane.serve._http.json_body import parse_body
from monolane.serve._http.openapi import Operation
from monolane.serve._http.post_json import answer_posted
from monolane.serve._http.prepare import read_chat
from monolane.serve._llamacpp.settings import generation_settings
from monolane.serve._openai.body import ChatRequest
from monolane.serve._openai.legacy import modern
from monolane.serve._run.service import Service

COUNT = "/v1/chat/completions/input_tokens"
SMALL_OPERATIONS = (
    Operation("get", "/props", "The model, as llama.cpp's server tells it", None, (401, 503)),
    Operation("get", "/slots", "Sequences that may run, and which do", None, (401, 503)),
    Operation("post", COUNT, "Tokens of a chat", ChatRequest),
    Operation("post", "/apply-template", "A chat as the text that the model reads", ChatRequest),
)


def small_routes(service: Service) -> list[Route]:
    """Return the routes."""
    handlers = _LlamaCpp(service)
    return [
        Route("/props", handlers.props, methods=["GET"]),
        Route("/slots", handlers.slots, methods=["GET"]),
        Route(COUNT, handlers.count, methods=["POST"]),
        Route(COUNT.removeprefix("/v1"), handlers.count, methods=["POST"]),
        Route("/apply-template", handlers.apply_template, methods=["POST"]),
    ]


class _LlamaCpp:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def props(self, _: Request) -> Response:
        engine, options = self._service.engine, self._service.options
        return JSONResponse(
            {
                "default_generation_settings": {
                    "n_ctx": engine.backend.context,
                    "params": self._defaults(),
                },
                "total_slots": options.policy.slots,
                "model_alias": options.model_name,
                "model_path": options.model_name,  # where it lies is nobody's business
                "chat_template": engine.chat_template.source,
                "build_info": f"monolane-{__version__}",
            }
        )

    def _defaults(self) -> dict[str, Any]:
        """Return how an answer is drawn where a request does not say; seed -1: each anew."""
        said = self._service.defaults.said()
        limit = said.pop("max_tokens", None)
        params = SamplingParams(**{"temperature": 1.0, **said})
        told = generation_settings(params, self._service.engine, limit)
        return told | {"seed": said.get("seed", -1)}

    async def slots(self, _: Request) -> Response:
        service = self._service
        context, running = service.engine.backend.context, service.scheduler.running
        return JSONResponse(
            [
                {"id": i, "n_ctx": context, "is_processing": i < running}
                for i in range(service.options.policy.slots)
            ]
        )

    async def apply_template(self, request: Request) -> Response:
        tokenizer = self._service.engine.tokenizer

        def work(data: bytes) -> dict[str, Any]:
            ids = self._chat_ids(data)
            assert tokenizer is not None  # messages were rendered
            return {"prompt": tokenizer.decode(ids, skip_special_tokens=False)}

        return await answer_posted(self._service, request, work)

    async def count(self, request: Request) -> Response:
        def work(data: bytes) -> dict[str, Any]:
            return {"object": "response.input_tokens", "input_tokens": len(self._chat_ids(data))}

        return await answer_posted(self._service, request, work)

    def _chat_ids(self, data: bytes) -> tuple[int, ...]:
        service = self._service
        body = parse_body(ChatRequest, data)
        service.check_model(body.model)
        asked = modern(body).asked(service.defaults)
        tool_format = service.options.tool_format
        _, ids, _ = read_chat(asked, service.engine, tool_format, bounded=False)
        return ids
