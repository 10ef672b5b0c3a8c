"""Errors in Anthropic's shape."""

import json

from pydantic import BaseModel

from monolane.serve._errors import ApiError, ContextError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessagesErrorDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str


class MessagesError(BaseModel):
    """The body of a reply that is an error."""

    type: str
    error: MessagesErrorDetail


def error_json(error: ApiError) -> bytes:
    """Return the body of a reply, or the data of an event, that tells of an error."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    message = json.loads(error.json())["error"]["message"]
    if isinstance(error, ContextError):  # Claude Code looks for these words before it compacts
        most = error.context
        message = f"prompt is too long: {error.tokens} tokens > {most} maximum ({message})"
    told = MessagesErrorDetail(type=_TYPES.get(error.status, other), message=message)
    return MessagesError(type="error", error=told).model_dump_json().encode()
