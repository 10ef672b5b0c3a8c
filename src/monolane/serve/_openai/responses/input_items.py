"""``GET /v1/responses/ID/input_items``: what a stored response was made from, a page at a time."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monolane.errors import RequestError

Json = dict[str, Any]
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_MOST = 100  # items of a page


def with_ids(items: Iterable[Json]) -> list[Json]:
    """Return items of which each has an id: one of its own, or one made here."""
    return [item if item.get("id") else {**item, "id": _new_id(item)} for item in items]


def page_of(items: Sequence[Json], query: Mapping[str, str]) -> Json:
    """Return the page that a query asks for; RequestError for one that is none.

    ``order`` asc or desc (the last first, by default), ``limit`` 1 to 100, ``after`` an id.
    """
    order, limit, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in ("asc", "desc"):
        raise RequestError(f"order: expected asc or desc, got {order!r:.80}")
    if not limit.isdecimal() or len(limit) > 3 or not 1 <= int(limit) <= _MOST:
        raise RequestError(f"limit: expected 1 to {_MOST}, got {limit!r:.80}")
    left = list(items if order == "asc" else reversed(items))
    if after is not None:
        places = [i for i, item in enumerate(left) if item["id"] == after]
        if not places:
            raise RequestError(f"after: no item {after!r:.100} is among those of this response")
        left = left[places[0] + 1 :]
    page = [_told(item) for item in left[: int(limit)]]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(left) > len(page),
    }


def _new_id(item: Json) -> str:
    return f"{_PREFIXES.get(item.get('type', 'message'), 'item')}_{secrets.token_hex(16)}"


def _told(item: Json) -> Json:
    """Return an item as OpenAI's server tells it: messages with their texts as parts."""
    if item.get("type", "message") != "message":
        return item
    content = item.get("content")
    if isinstance(content, str):
        part: Json = {"type": "input_text", "text": content}
        if item.get("role") == "assistant":
            part = {"type": "output_text", "text": content, "annotations": []}
        content = [part]
    return {**item, "type": "message", "status": "completed", "content": content}
