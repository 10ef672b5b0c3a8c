"""Errors as clients see them: one table from our exceptions to HTTP, in vLLM's shape.

A reply is ``{"error": {"message", "type", "param", "code"}}`` with the HTTP status as ``code``. The
official clients read it, and so do those written for vLLM.
"""

import json
import re
from collections.abc import Mapping

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


class ApiError(Exception):
    """An HTTP error with a body; ``headers`` go out with it."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param = status, param
        self.headers = dict(headers or {})

    def json(self) -> bytes:
        """Return the body of the reply."""
        message = _ADDRESS.sub("", str(self))[:_LONGEST]
        kind = _TYPES.get(self.status, "BadRequestError" if self.status < 500 else _TYPES[500])
        error = {"message": message, "type": kind, "param": self.param, "code": self.status}
        return json.dumps({"error": error}, ensure_ascii=False).encode()


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
            # A message about a field begins with it: "temperature: expected ...".
            field = re.match(r"([a-z_]{1,40}): ", str(error)) if status == 400 else None
            return ApiError(status, str(error), field and field[1])
    return ApiError(500, "the server failed at this request; its log tells why")


def _invalid(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if not first["loc"]:
        return ApiError(400, f"the body is no JSON object of this route: {first['msg']}")
    place = ".".join(str(part) for part in first["loc"])
    return ApiError(400, f"{place}: {first['msg']}", str(first["loc"][0]))
