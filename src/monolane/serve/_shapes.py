"""The two spellings of an answer: a chat's message and a completion's text."""

from collections.abc import Sequence
from typing import Any, Protocol

from monolane.engine import TokenLogprob
from monolane.serve._delta import ToolCallDelta
from monolane.serve._gather import Gathered
from monolane.serve._logprobs import CompletionLogprobs, chat_logprobs, joined
from monolane.serve._prepare import Choice
from monolane.text import Tokenizer

Json = dict[str, Any]


class Shape(Protocol):
    """How a kind of request spells its answers; one for each request."""

    id_prefix: str
    whole: str  # "object" of a reply in one piece
    chunk: str  # "object" of a chunk

    def part(self, got: Gathered, first: bool) -> Json:
        """Return what a chunk says of a choice; ``first``: nothing was said of it before."""

    def choice(self, got: Gathered) -> Json:
        """Return what a whole reply says of a choice."""


class ChatShape:
    """``chat.completion``."""

    id_prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer | None, logprobs: bool) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs

    def part(self, got: Gathered, first: bool) -> Json:
        """Return delta and logprobs."""
        delta = got.delta
        said: Json = {"role": "assistant"} if first else {}
        if delta.content or (first and not delta.tool_calls):
            said["content"] = delta.content
        if delta.reasoning:
            said["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            said["tool_calls"] = [_call_part(part) for part in delta.tool_calls]
        return {"delta": said, "logprobs": self._described(got.logprobs)}

    def choice(self, got: Gathered) -> Json:
        """Return message and logprobs."""
        delta = got.delta
        calls = _calls(delta.tool_calls)
        said: Json = {"role": "assistant", "content": delta.content}
        if delta.reasoning:
            said["reasoning_content"] = delta.reasoning
        if calls:
            said |= {"content": delta.content or None, "tool_calls": calls}
        return {"message": said, "logprobs": self._described(got.logprobs)}

    def _described(self, logprobs: Sequence[TokenLogprob]) -> Json | None:
        if not self._logprobs:
            return None
        return chat_logprobs(logprobs, self._tokenizer)


class CompletionShape:
    """``text_completion``."""

    id_prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"

    def __init__(
        self, tokenizer: Tokenizer | None, logprobs: bool, choices: Sequence[Choice]
    ) -> None:
        wanted = range(len(choices)) if logprobs else ()
        self._logprobs = {index: CompletionLogprobs(tokenizer) for index in wanted}

    def part(self, got: Gathered, first: bool) -> Json:
        """Return text and logprobs; the echoed prompt comes with the first text."""
        text = got.delta.content
        if got.scored is not None and got.choice.echo is not None:
            text = got.choice.echo + text
        return {"text": text, "logprobs": self._described(got)}

    def choice(self, got: Gathered) -> Json:
        """Return text and logprobs."""
        return self.part(got, first=True)

    def _described(self, got: Gathered) -> Json | None:
        writer = self._logprobs.get(got.choice.index)
        if writer is None:
            return None
        parts = []
        if got.scored is not None:
            parts += [writer.first(got.choice.prompt_ids[0]), writer.take(got.scored)]
        return joined([*parts, writer.take(got.logprobs)])


def _call_part(part: ToolCallDelta) -> Json:
    said: Json = {"index": part.index}
    if part.id is not None:
        said |= {"id": part.id, "type": "function"}
    name = {} if part.name is None else {"name": part.name}
    return said | {"function": {**name, "arguments": part.arguments}}


def _calls(parts: Sequence[ToolCallDelta]) -> list[Json]:
    found: dict[int, Json] = {}
    for part in parts:
        call = found.setdefault(
            part.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = part.id or call["id"]
        call["function"]["name"] = part.name or call["function"]["name"]
        call["function"]["arguments"] += part.arguments
    return [found[index] for index in sorted(found)]
