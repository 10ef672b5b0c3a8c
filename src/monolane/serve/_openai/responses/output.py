"""The items of a response as they grow: reasoning, text, calls; each step tells its events."""

import secrets
from collections.abc import Iterator
from typing import Any

from monolane.serve._openai.responses.conversation import SEALED
from monolane.serve._openai.responses.tools import OfferedTools, parted_name
from monolane.serve._tools.calls import Delta, ToolCallDelta, whole_arguments

Json = dict[str, Any]
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
# Of an item that is a call: its field, and what its events are called.
_CALLS = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


class Output:
    """The items; at most the last is open, and what comes next may close it."""

    def __init__(self, tools: OfferedTools, sealed: bool) -> None:
        """``sealed``: reasoning goes out in ``encrypted_content``, too."""
        self.items: list[Json] = []
        self._tools, self._sealed = tools, sealed
        self._open = False
        self._texts: list[str] = []  # of the open item
        self._logprobs: list[Json] = []

    def add(self, delta: Delta, logprobs: list[Json]) -> Iterator[Json]:
        """Take what comes next; yield the events that tell of it, without their numbers."""
        if delta.reasoning:
            yield from self._grow("reasoning", delta.reasoning, [])
        if delta.content:
            yield from self._grow("message", delta.content, logprobs)
        for part in delta.tool_calls:
            yield from self._call(part)

    def close(self, status: str) -> Iterator[Json]:
        """End the open item; ``status`` is completed or incomplete."""
        if not self._open:
            return
        item, self._open = self.items[-1], False
        text, self._texts = "".join(self._texts), []
        kind = item["type"]
        if kind in _CALLS:
            field, event = _CALLS[kind]
            item[field] = text
            if kind == "function_call" and whole_arguments(text) is None:
                status = "incomplete"
            # The names are those of OpenAI's events: a custom call's has none.
            keys = ("name", "namespace") if kind == "function_call" else ()
            named = {key: item[key] for key in keys if key in item}
            yield self._event(f"response.{event}.done", **{field: text}, **named)
        else:
            part = self._part(kind, text)
            item["content"] = [part]
            logprobs = {"logprobs": self._logprobs} if kind == "message" else {}
            done = f"response.{_PARTS[kind]}.done"
            yield self._event(done, content_index=0, text=text, **logprobs)
            yield self._event("response.content_part.done", content_index=0, part=part)
        item["status"] = status
        if kind == "reasoning" and self._sealed:
            item["encrypted_content"] = SEALED + text
        self._logprobs = []
        yield self._event("response.output_item.done", item=dict(item))

    def begin(self, kind: str, **more: Any) -> Iterator[Json]:
        """End the open item and begin another."""
        yield from self.close("completed")
        head = {"id": f"{_PREFIXES[kind]}_{secrets.token_hex(16)}", "type": kind}
        item: Json = {**head, "status": "in_progress", **more}
        if kind not in _CALLS:
            item |= {"content": []}
        self.items.append(item)
        self._open = True
        yield self._event("response.output_item.added", item=dict(item))
        if kind not in _CALLS:
            part = self._part(kind, "")
            yield self._event("response.content_part.added", content_index=0, part=part)

    def _grow(self, kind: str, text: str, logprobs: list[Json]) -> Iterator[Json]:
        if not self._open or self.items[-1]["type"] != kind:
            more: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self.begin(kind, **more)
        self._texts.append(text)
        self._logprobs += logprobs
        scored = {"logprobs": logprobs} if kind == "message" else {}
        yield self._event(f"response.{_PARTS[kind]}.delta", content_index=0, delta=text, **scored)

    def _call(self, part: ToolCallDelta) -> Iterator[Json]:
        kind = "custom_tool_call" if part.custom else "function_call"
        field, event = _CALLS[kind]
        if part.name is not None:
            named = parted_name(part.name, self._tools)
            yield from self.begin(kind, call_id=part.id, **named, **{field: ""})
        if part.arguments:
            self._texts.append(part.arguments)
            yield self._event(f"response.{event}.delta", delta=part.arguments)

    def _part(self, kind: str, text: str) -> Json:
        part: Json = {"type": _PARTS[kind], "text": text}
        if kind == "message":
            part |= {"annotations": [], "logprobs": [*self._logprobs]}
        return part

    def _event(self, kind: str, **more: Any) -> Json:
        place = {"output_index": len(self.items) - 1}
        if "item" not in more:
            place["item_id"] = self.items[-1]["id"]
        return {"type": kind, **place, **more}
