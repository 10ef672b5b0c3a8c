"""The routes of llama.cpp's server that answer, beside its small ones."""

from collections.abc import Callable

from starlette.routing import Route

from monolane.serve._http.handler import Answers
from monolane.serve._http.json_body import parse_body
from monolane.serve._http.openapi import Operation
from monolane.serve._http.request import Asked
from monolane.serve._http.writer import Read, Writer
from monolane.serve._llamacpp.body import InfillRequest, NativeCompletion
from monolane.serve._llamacpp.props import SMALL_OPERATIONS, small_routes
from monolane.serve._llamacpp.writer import NativeWriter
from monolane.serve._run.request import ServedRequest
from monolane.serve._run.service import Service

OPERATIONS = (
    Operation("post", "/completion", "Continue texts or token ids", NativeCompletion, lists=True),
    Operation("post", "/infill", "Fill the gap between two texts", InfillRequest),
    *SMALL_OPERATIONS,
)


def llamacpp_routes(service: Service) -> list[Route]:
    """Return the routes; ``/completions`` is llama.cpp's, since OpenAI's begin with /v1."""
    completion = Answers(service, _reader(service, NativeCompletion))
    infill = Answers(service, _reader(service, InfillRequest))
    return [
        Route("/completion", completion, methods=["POST"]),
        Route("/completions", completion, methods=["POST"]),
        Route("/infill", infill, methods=["POST"]),
        *small_routes(service),
    ]


def _reader(service: Service, kind: type[NativeCompletion] | type[InfillRequest]) -> Read:
    """Return the reader of one of the routes."""

    def read(data: bytes, owner: bytes) -> tuple[Asked, Callable[[ServedRequest], Writer]]:
        body = parse_body(kind, data)
        service.check_model(body.model)
        asked = body.asked(service.engine, service.defaults)
        return asked, lambda served: NativeWriter(service, body, asked, served)

    return read
