"""Spells an answer as a message of Anthropic's: one object, or the events that build it up."""

import json
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from monolane.serve._anthropic.errors import error_json
from monolane.serve._errors import api_error
from monolane.serve._http.writer import Writer, count_tokens, json_bytes
from monolane.serve._run.channel import Update
from monolane.serve._run.request import ServedRequest
from monolane.serve._run.service import Service
from monolane.serve._tools.calls import Delta, whole_arguments

Json = dict[str, Any]
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
# Of a block: the type of its deltas, and the field of them that holds the text.
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class MessagesWriter(Writer):
    """Writes one message."""

    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, service: Service, model: str | None, served: ServedRequest) -> None:
        self._served = served
        self._head = {
            "id": f"msg_{secrets.token_hex(16)}",
            "type": "message",
            "role": "assistant",
            "model": service.called(model),
        }
        self._blocks: list[Json] = []  # at most the last is open
        self._texts: list[str] = []  # of the open one
        self._reason: str | None = None

    def whole(self) -> bytes:
        """Return the message."""
        for update in self._served.channel.take():
            for _ in self._events(update):
                pass
        for _ in self._close():
            pass
        message = {**self._head, "content": self._blocks, **self._stop(), "usage": self._usage()}
        return json_bytes(message)

    def begin(self) -> bytes:
        """Return the event that comes before any token."""
        none: Json = {"content": [], "stop_reason": None, "stop_sequence": None}
        message = {**self._head, **none, "usage": self._usage()}
        return _event({"type": "message_start", "message": message}) + self.keep_alive

    def text(self, updates: Iterable[Update]) -> bytes:
        """Return the events of what has come."""
        return b"".join([_event(e) for update in updates for e in self._events(update)])

    def end(self) -> bytes:
        """Return the events behind the last text."""
        if self._served.failure is not None:
            return self.failed(self._served.failure)
        delta = {"type": "message_delta", "delta": self._stop(), "usage": self._usage()}
        last = (*self._close(), delta, {"type": "message_stop"})
        return b"".join([_event(event) for event in last])

    def failed(self, error: BaseException) -> bytes:
        """Return the event that ends a stream which went wrong."""
        return b"event: error\ndata: " + error_json(api_error(error)) + b"\n\n"

    def _events(self, update: Update) -> Iterator[Json]:
        self._reason = update.finish_reason or self._reason
        deltas = update.deltas
        if not any(delta.tool_calls for delta in deltas):
            deltas = [Delta.joined(deltas)]
        for delta in deltas:
            if delta.reasoning:
                yield from self._grow("thinking", delta.reasoning, thinking="", signature="")
            if delta.content:
                yield from self._grow("text", delta.content, text="")
            for part in delta.tool_calls:
                if part.name is not None:
                    yield from self._open("tool_use", id=part.id, name=part.name, input={})
                if part.arguments:
                    yield from self._grow("tool_use", part.arguments)

    def _grow(self, kind: str, new: str, **empty: Any) -> Iterator[Json]:
        if not self._blocks or self._blocks[-1]["type"] != kind:
            yield from self._open(kind, **empty)
        self._texts.append(new)
        name, field = _DELTAS[kind]
        yield self._told("content_block_delta", delta={"type": name, field: new})

    def _open(self, kind: str, **fields: Any) -> Iterator[Json]:
        yield from self._close()
        self._blocks.append({"type": kind, **fields})
        yield self._told("content_block_start", content_block=dict(self._blocks[-1]))

    def _close(self) -> Iterator[Json]:
        if not self._blocks:
            return
        block, text = self._blocks[-1], "".join(self._texts)
        self._texts = []
        if block["type"] == "tool_use":
            found = whole_arguments(text)
            if found is None:  # an empty input would make a call of it
                head = f'{{"name": {json.dumps(block["name"])}, "input": '
                self._blocks[-1] = {"type": "text", "text": head + text}
            else:
                block["input"] = found
        else:
            block[block["type"]] = text
        yield self._told("content_block_stop")

    def _told(self, kind: str, **more: Any) -> Json:
        return {"type": kind, "index": len(self._blocks) - 1, **more}

    def _stop(self) -> Json:
        """Return why the message ended."""
        stop = self._served.choices[0].stream.stop_text if self._reason == "stop" else None
        plain = "end_turn" if stop is None else "stop_sequence"
        return {"stop_reason": _REASONS.get(self._reason or "", plain), "stop_sequence": stop}

    def _usage(self) -> Json:
        count = count_tokens(self._served, 1)
        return {
            "input_tokens": count.prompt - count.cached,
            "output_tokens": count.drawn,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": count.cached,
        }


def _event(event: Json) -> bytes:
    return f"event: {event['type']}\ndata: ".encode() + json_bytes(event) + b"\n\n"
