"""Replies to a request, as a whole or in chunks, in the two spellings: chat and completion."""

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from monolane._version import __version__
from monolane.engine import TokenLogprob
from monolane.serve._http.writer import count_tokens, json_bytes
from monolane.serve._openai.body import ChatRequest, CompletionRequest
from monolane.serve._openai.legacy import old_message, old_reason
from monolane.serve._openai.logprobs import CompletionLogprobs, chat_logprobs
from monolane.serve._run.channel import Update
from monolane.serve._run.request import ServedRequest
from monolane.serve._run.service import Service
from monolane.serve._tools.calls import Delta, ToolCallDelta
from monolane.text import Tokenizer

Json = dict[str, Any]


class ChatShape:
    """``chat.completion``; one for each request."""

    id_prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    silent = b'"delta":{"role":"assistant","content":null},"logprobs":null'  # no text yet

    def __init__(self, tokenizer: Tokenizer | None, logprobs: bool, old_calls: bool) -> None:
        """``old_calls``: calls are spelled as they were before there were tools."""
        self._tokenizer, self._logprobs, self._old_calls = tokenizer, logprobs, old_calls

    def part(self, update: Update, first: bool) -> Json:
        """Return what a chunk has of a choice; ``first``: it is the first chunk of the choice."""
        delta = Delta.joined(update.deltas)
        message: Json = {"role": "assistant"} if first else {}
        if delta.content or (first and not delta.tool_calls):
            message["content"] = delta.content
        if delta.reasoning:
            message["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            message["tool_calls"] = [_call_part(part) for part in delta.tool_calls]
        return {"delta": self._spelled(message), "logprobs": self._described(update.logprobs)}

    def choice(self, update: Update) -> Json:
        """Return what a whole reply has of a choice."""
        delta = Delta.joined(update.deltas)
        message: Json = {"role": "assistant", "content": delta.content}
        if delta.reasoning:
            message["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            calls = [_call_part(part) for part in delta.tool_calls]
            message |= {"content": delta.content or None, "tool_calls": calls}
            for call in calls:
                del call["index"]
        return {"message": self._spelled(message), "logprobs": self._described(update.logprobs)}

    def finish_reason(self, reason: str | None) -> str | None:
        """Return the reason as this request's client knows it."""
        return old_reason(reason) if self._old_calls else reason

    def _spelled(self, message: Json) -> Json:
        return old_message(message) if self._old_calls else message

    def _described(self, logprobs: Sequence[TokenLogprob]) -> Json | None:
        return chat_logprobs(logprobs, self._tokenizer) if self._logprobs else None


class CompletionShape:
    """``text_completion``; one for each request."""

    id_prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"
    silent = b'"text":"","logprobs":null'  # no text yet

    def __init__(self, tokenizer: Tokenizer | None, logprobs: bool) -> None:
        self._logprobs = logprobs
        self._writers = defaultdict[int, CompletionLogprobs](lambda: CompletionLogprobs(tokenizer))

    def part(self, update: Update, first: bool) -> Json:
        """Return what a chunk has of a choice; an echoed prompt comes with the first text."""
        text = Delta.joined(update.deltas).content
        if update.prompt_logprobs is not None and update.choice.echo is not None:
            text = update.choice.echo + text
        return {"text": text, "logprobs": self._described(update)}

    def choice(self, update: Update) -> Json:
        """Return what a whole reply has of a choice."""
        return self.part(update, first=True)

    def finish_reason(self, reason: str | None) -> str | None:
        """Return the reason as this request's client knows it."""
        return reason

    def _described(self, update: Update) -> Json | None:
        if not self._logprobs:
            return None
        scored = update.prompt_logprobs
        first = None if scored is None else update.choice.prompt_ids[0]
        writer = self._writers[update.choice.index]
        return writer.take(first, [*(scored or ()), *update.logprobs])


class Reply:
    """What all replies to one request have in common."""

    def __init__(
        self, service: Service, request: ChatRequest | CompletionRequest, served: ServedRequest
    ) -> None:
        self.request, self.served, self.timings = request, served, service.timings
        self.is_chat = isinstance(request, ChatRequest)
        self.has_logprobs = request.alternatives is not None
        self.has_ids = bool(request.return_token_ids)
        tokenizer = service.engine.tokenizer
        self.shape: ChatShape | CompletionShape
        if isinstance(request, ChatRequest):
            old_calls = request.functions is not None
            self.shape = ChatShape(tokenizer, self.has_logprobs, old_calls)
        else:
            self.shape = CompletionShape(tokenizer, self.has_logprobs)
        self._common = {
            "created": int(time.time()),
            "model": service.called(request.model),
            "system_fingerprint": f"monolane-{__version__}",
        }
        self._id = self.shape.id_prefix + secrets.token_hex(16)

    def head(self, kind: str) -> Json:
        """Return the fields that come first."""
        return {"id": self._id, "object": kind, **self._common}

    def part(self, update: Update, first: bool) -> Json:
        """Return what a chunk has of a choice; ``first``: it is the first chunk of the choice."""
        return self.shape.part(update, first) | self._ids(update, first)

    def shared_ids(self, update: Update, first: bool) -> Json:
        """Return ``prompt_token_ids`` where they stand beside the choices: of a chat's one prompt.

        As vLLM spells them: in the first chunk, and null in the others.
        """
        if not (self.has_ids and self.is_chat):
            return {}
        return {"prompt_token_ids": list(update.choice.prompt_ids) if first else None}

    def _ids(self, update: Update, first: bool) -> Json:
        if not self.has_ids:
            return {}
        ids: Json = {"token_ids": update.ids}
        if not self.is_chat:
            ids["prompt_token_ids"] = list(update.choice.prompt_ids) if first else None
        return ids

    def usage(self) -> Json:
        """Return the tokens counted so far; each prompt once, however many answers it has."""
        count = count_tokens(self.served, self.request.n or 1)
        usage: Json = {
            "prompt_tokens": count.prompt,
            "completion_tokens": count.drawn,
            "total_tokens": count.prompt + count.drawn,
            "prompt_tokens_details": {"cached_tokens": count.cached},
        }
        if self.is_chat:
            usage["completion_tokens_details"] = {"reasoning_tokens": count.thought}
        return usage

    def whole(self) -> bytes:
        """Return the reply to a request that is over and did not fail, as JSON.

        Choice by choice: one call for megabytes would keep all other threads waiting.
        """
        updates = self.served.channel.take()
        timings = [self.timings(update.choice) for update in updates]
        choices = [
            json_bytes(
                {"index": update.choice.index}
                | self.shape.choice(update)
                | self._ids(update, first=True)
                | {
                    "finish_reason": self.shape.finish_reason(update.finish_reason),
                    "timings": timed,
                }
            )
            for update, timed in zip(updates, timings, strict=True)
        ]
        head = json_bytes(self.head(self.shape.whole))[:-1]
        shared = self.shared_ids(updates[0], first=True)
        tail = json_bytes({**shared, "usage": self.usage(), "timings": timings[0]})[1:]
        return head + b',"choices":[' + b",".join(choices) + b"]," + tail


def _call_part(part: ToolCallDelta) -> Json:
    head: Json = {"index": part.index}
    if part.id is not None:
        head |= {"id": part.id, "type": "custom" if part.custom else "function"}
    name = {} if part.name is None else {"name": part.name}
    if part.custom:
        return head | {"custom": {**name, "input": part.arguments}}
    return head | {"function": {**name, "arguments": part.arguments}}
