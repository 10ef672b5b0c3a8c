"""This API as OpenAPI 3.1, from the models that check the requests."""

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from monolane._version import __version__
from monolane.serve._api.wire import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

# Method, path, what it does, the type of its body, the errors besides those of every route.
_OPERATIONS: tuple[tuple[str, str, str, type[BaseModel] | None, tuple[int, ...]], ...] = (
    ("get", "/health", "Whether requests can be served", None, (503,)),
    ("get", "/ping", "As /health", None, (503,)),
    ("get", "/version", "The server's version", None, (401,)),
    ("get", "/v1/models", "The model and its limits", None, (401, 503)),
    ("post", "/v1/chat/completions", "Continue a conversation", ChatRequest, ()),
    ("post", "/v1/completions", "Continue texts or token ids", CompletionRequest, ()),
    ("post", "/tokenize", "Token ids of a text or of messages", TokenizeRequest, ()),
    ("post", "/detokenize", "Text of token ids", DetokenizeRequest, ()),
)
_ERRORS = {
    400: "Not what the schema or the model allows",
    401: "No valid key",
    404: "Another model is served",
    413: "The body is too large",
    415: "Content-Type is not application/json",
    429: "The queue is full; Retry-After says when to come back",
    500: "The server's fault",
    503: "Loading, or shutting down",
    504: "The deadline has passed",
}
_JSON = "application/json"


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: int | str


class Error(BaseModel):
    """The body of every reply that is an error."""

    error: ErrorDetail


@cache
def openapi() -> dict[str, Any]:
    """Return the document."""
    bodies = [body for _, _, _, body, _ in _OPERATIONS if body is not None]
    models = [(model, "validation") for model in (Error, *bodies)]
    _, schema = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    return {
        "openapi": "3.1.0",
        "info": {"title": "monolane", "version": __version__},
        "paths": {
            path: {method: _operation(what, body, codes)}
            for method, path, what, body, codes in _OPERATIONS
        },
        "components": {
            "schemas": schema["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _operation(what: str, body: type[BaseModel] | None, codes: tuple[int, ...]) -> dict[str, Any]:
    if body is None:
        answer: dict[str, Any] = {_JSON: {"schema": {}}}
        more = {}
        codes = (400, 403, *codes)
    else:
        answer = {_JSON: {"schema": {"type": "object"}}, "text/event-stream": {"schema": {}}}
        more = {"requestBody": {"required": True, "content": _reference(body.__name__)}}
        codes = tuple(_ERRORS)
    errors = {
        str(code): {"description": _ERRORS.get(code, "Refused"), "content": _reference("Error")}
        for code in codes
    }
    return {
        "summary": what,
        **more,
        "responses": {"200": {"description": "The answer", "content": answer}, **errors},
    }


def _reference(name: str) -> dict[str, Any]:
    return {_JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
