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

_POSTS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("/v1/chat/completions", ChatRequest, "Continue a conversation"),
    ("/v1/completions", CompletionRequest, "Continue texts or token ids"),
    ("/tokenize", TokenizeRequest, "Token ids of a text or of messages"),
    ("/detokenize", DetokenizeRequest, "Text of token ids"),
)
_GETS = (
    ("/health", "Whether requests can be served", (503,)),
    ("/ping", "As /health", (503,)),
    ("/version", "The server's version", (401,)),
    ("/v1/models", "The model and its limits", (401, 503)),
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


@cache
def openapi() -> dict[str, Any]:
    """Return the document."""
    models = [(model, "validation") for _, model, _ in _POSTS]
    _, schema = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    schemas = schema["$defs"] | {"Error": _error_schema()}
    paths: dict[str, Any] = {path: {"get": _get(what, codes)} for path, what, codes in _GETS}
    paths |= {path: {"post": _post(model, what)} for path, model, what in _POSTS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "monolane", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _get(what: str, codes: tuple[int, ...]) -> dict[str, Any]:
    answers = {"200": {"description": "As it says", "content": {_JSON: {"schema": {}}}}}
    return {"summary": what, "responses": answers | _errors((400, 403, *codes))}


def _post(model: type[BaseModel], what: str) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    whole = {_JSON: {"schema": {"type": "object"}}, "text/event-stream": {"schema": {}}}
    return {
        "summary": what,
        "requestBody": {"required": True, "content": {_JSON: {"schema": reference}}},
        "responses": {"200": {"description": "The answer", "content": whole}}
        | _errors(tuple(_ERRORS)),
    }


def _errors(codes: tuple[int, ...]) -> dict[str, Any]:
    content = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        str(code): {"description": _ERRORS.get(code, "Refused"), "content": content}
        for code in codes
    }


def _error_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": "integer"},
                },
            }
        },
    }
