"""The APIs as OpenAPI 3.1, from the models that check the requests."""

import re
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from monolane._version import __version__


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: int | str


class Error(BaseModel):
    """The body of every reply that is an error."""

    error: ErrorDetail


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    what: str
    body: type[BaseModel] | None
    errors: tuple[int, ...] = ()  # besides those of every route
    error: type[BaseModel] = Error  # the body of each
    lists: bool = False  # whether the answer may be a list, one value for each input


_ERRORS = {
    400: "Not what the schema or the model allows",
    401: "No valid key",
    404: "Another model is served",
    413: "The body is too large",
    415: "Content-Type is not application/json",
    429: "The queue is full; Retry-After says when to come back",
    500: "The server's fault",
    501: "This model or its backend cannot do it",
    503: "Loading, or shutting down",
    504: "The deadline has passed",
}
_JSON = "application/json"


@cache
def openapi(operations: tuple[Operation, ...]) -> dict[str, Any]:
    """Return the document."""
    bodies = [operation.body for operation in operations if operation.body is not None]
    errors = [operation.error for operation in operations]
    models = [(model, "validation") for model in dict.fromkeys((*errors, *bodies))]
    _, schema = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "monolane", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schema["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _described(operation: Operation) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if operation.body is None:
        answer: dict[str, Any] = {_JSON: {"schema": {}}}
        codes = (400, 403, *operation.errors)
    else:
        kinds = ["object", "array"] if operation.lists else "object"
        answer = {_JSON: {"schema": {"type": kinds}}, "text/event-stream": {"schema": {}}}
        content = _reference(operation.body.__name__)
        more = {"requestBody": {"required": True, "content": content}}
        codes = tuple(_ERRORS)
    if names := re.findall(r"{(\w+)}", operation.path):
        more["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    errors = {
        str(code): {
            "description": _ERRORS.get(code, "Refused"),
            "content": _reference(operation.error.__name__),
        }
        for code in codes
    }
    return {
        "summary": operation.what,
        **more,
        "responses": {"200": {"description": "The answer", "content": answer}, **errors},
    }


def _reference(name: str) -> dict[str, Any]:
    return {_JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
