"""Errors in llama.cpp's words, for the routes that only its clients ask: those without /v1."""

import json
from typing import Any

from monolane.serve._errors import ApiError, ContextError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


def error_json(error: ApiError) -> bytes:
    """Return the body of a reply, or the data of an event, that tells of an error.

    It has the fields of ``ApiError.json``; only their words differ.
    """
    told: dict[str, Any] = json.loads(error.json())["error"]
    other = "invalid_request_error" if error.status < 500 else "server_error"
    told |= {"type": _TYPES.get(error.status, other), "code": error.status}
    if isinstance(error, ContextError):
        told |= {
            "type": "exceed_context_size_error",
            "message": f"the request exceeds the available context size: {told['message']}",
            "n_prompt_tokens": error.tokens,
            "n_ctx": error.context,
        }
    return json.dumps({"error": told}, ensure_ascii=False).encode()
