"""Errors as clients see them: one table from our exceptions to HTTP, in vLLM's shape.

A reply is ``{"error": {"message", "type", "param", "code"}}``. ``code`` is the HTTP status, or a
word of OpenAI's that clients look for. The official clients read it, and so do those made for vLLM.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from monolane.errors import (
    BackendError,
    EngineClosedError,
    MonolaneError,
    RequestError,
    TextError,
)

_TYPES = {
    400: "BadRequestError",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFoundError",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    413: "RequestTooLarge",
    415: "UnsupportedMediaType",
    429: "RateLimitError",
    431: "HeaderFieldsTooLarge",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "unavailable_error",  # as llama-server says: clients wait on it while a model loads
    504: "DeadlineExceededError",
}
# Errors whose message the client sees. Of any other it sees only that there was one: 500.
_STATUSES: dict[type[MonolaneError], int] = {
    RequestError: 400,
    TextError: 400,
    EngineClosedError: 503,
    BackendError: 500,
}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LONGEST = 2000  # characters of a message
_PASSING = (429, 503)  # what is worth another try; these always say when
TOO_LONG = "context_length_exceeded"  # OpenAI's own code, for what no context of ours holds
RETRY_SECONDS = "1"  # where nothing better is known
# "temperature: expected ...", "tools[0].function: expected ..."
_FIELD = re.compile(r"([a-z_]{1,40})(?:[.\[][^: ]{0,200})?: ")


class ApiError(Exception):
    """An HTTP error with a body; ``headers`` go out with it, ``code`` in place of the status."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {"Retry-After": RETRY_SECONDS} if status in _PASSING else {}
        self.headers |= headers or {}

    def json(self) -> bytes:
        """Return the body of the reply."""
        message = _ADDRESS.sub("", str(self))[:_LONGEST]
        kind = _TYPES.get(self.status, "BadRequestError" if self.status < 500 else _TYPES[500])
        error: dict[str, Any] = {"message": message, "type": kind, "param": self.param}
        error["code"] = self.code or self.status
        return json.dumps({"error": error}, ensure_ascii=False).encode()


class ContextError(ApiError):
    """A prompt that is longer than the context, in words that clients search for.

    LiteLLM and agents look for "maximum context length", OpenAI's own for the code; then they
    shorten the conversation and try again.
    """

    def __init__(self, name: str, context: int, got: str, tokens: int) -> None:
        """``name`` is the field at fault, ``got`` its size, ``tokens`` at least so many."""
        super().__init__(
            400,
            f"{name}: expected at most {context} tokens, got {got}: this model's maximum context "
            f"length is {context} tokens; shorten it",
            name,
            code=TOO_LONG,
        )
        self.context, self.got, self.tokens = context, got, tokens


def api_error(error: BaseException) -> ApiError:
    """Return an error as the client sees it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):  # Starlette's own: no such path, or not by this method
        return ApiError(error.status_code, error.detail, headers=error.headers)
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            field = _FIELD.match(str(error)) if status == 400 else None
            return ApiError(status, str(error), field and field[1])
    return ApiError(500, "the server failed at this request; its log tells why")


def _invalid(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if not first["loc"]:
        return ApiError(400, f"the body is no JSON object of this route: {first['msg']}")
    place = ".".join(str(part) for part in first["loc"])
    return ApiError(400, f"{place}: {first['msg']}", str(first["loc"][0]))
