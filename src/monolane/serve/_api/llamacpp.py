"""Small routes of llama.cpp's server that its clients ask: what is served, and what is rendered."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from monolane._version import __version__
from monolane.serve._api.body import parse_body
from monolane.serve._api.legacy import modern
from monolane.serve._api.openapi import Operation
from monolane.serve._api.posted import answer_posted
from monolane.serve._api.prepare import read_chat
from monolane.serve._api.wire import ChatRequest
from monolane.serve._run.service import Service

OPERATIONS = (
    Operation("get", "/props", "The model, as llama.cpp's server tells it", None, (401, 503)),
    Operation("get", "/slots", "Sequences that may run, and which do", None, (401, 503)),
    Operation("post", "/apply-template", "A chat as the text that the model reads", ChatRequest),
)


def llamacpp_routes(service: Service) -> list[Route]:
    """Return the routes."""
    handlers = _LlamaCpp(service)
    return [
        Route("/props", handlers.props, methods=["GET"]),
        Route("/slots", handlers.slots, methods=["GET"]),
        Route("/apply-template", handlers.apply_template, methods=["POST"]),
    ]


class _LlamaCpp:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def props(self, _: Request) -> Response:
        engine, options = self._service.engine, self._service.options
        return JSONResponse(
            {
                "default_generation_settings": {"n_ctx": engine.backend.context},
                "total_slots": options.policy.slots,
                "model_alias": options.model_name,
                "model_path": options.model_name,  # where it lies is nobody's business
                "chat_template": engine.chat_template.source,
                "build_info": f"monolane-{__version__}",
            }
        )

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
        service, engine = self._service, self._service.engine

        def work(data: bytes) -> dict[str, Any]:
            body = parse_body(ChatRequest, data)
            service.check_model(body.model)
            asked = modern(body).asked()
            _, ids, _ = read_chat(asked, engine, service.options.tool_format)
            assert engine.tokenizer is not None  # messages were rendered
            return {"prompt": engine.tokenizer.decode(ids, skip_special_tokens=False)}

        return await answer_posted(service, request, work)
