"""A chat as the token ids that training sees, and which of them the assistant is to say.

An answer of weight 0 is read and not learnt: OpenAI's field, of a message.

The ids are those that the engine would see: both sides come from the same ``ChatTemplate.encode``,
so a user's ``</s>`` is text here as it is there. What the assistant says is found by rendering the
chat up to each answer, once opened for it and once with it: where the ids of the first end, the
answer begins, exactly as when the model answers. Offsets of characters would not do: a token may
hold the end of the prompt and the start of the answer, and then there is no right place to begin.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.errors import TextError
from monolane.text import ChatTemplate, Tokenizer

Chat = Sequence[Mapping[str, Any]]
# Fields of DeepSeek and Qwen, of OpenRouter and vLLM, and of GPT-OSS and Ollama; and what ends
# thoughts within a content.
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_ENDS = ("</think>", "[/THINK]", "</seed:think>")


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """Ids, and a mask of those that the loss counts: answers, each with its end token."""

    ids: npt.NDArray[np.int32]  # [T]
    spoken: npt.NDArray[np.bool_]  # [T]

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, length: int) -> "EncodedChat":
        """Return the first ``length`` tokens."""
        return EncodedChat(self.ids[:length], self.spoken[:length])


class ChatEncoder:
    """Encodes chats for one model; ``end_ids`` are the tokens at which its engine stops."""

    def __init__(
        self, template: ChatTemplate, tokenizer: Tokenizer, end_ids: frozenset[int]
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._end_ids = end_ids

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> EncodedChat:
        """Encode one chat; TextError says which message cannot be trained on, and why."""
        self._check_heard(messages, tools)
        whole = self._ids(messages, tools, False)
        spoken_T = np.zeros(len(whole), dtype=np.bool_)
        for i, message in enumerate(messages):
            _check_weight(i, message)
        if not any(m.get("role") == "assistant" for m in messages):
            raise TextError("expected at least one message of the assistant, got none")
        learnt = [i for i, message in enumerate(messages) if _is_learnt(message)]
        if not learnt:
            raise TextError(
                "expected at least one answer to train on, got weight 0 in all; leave the chat "
                "out, or give an answer weight 1"
            )
        for i in learnt:
            if i == 0:
                raise TextError("message 0: expected a user's message before the first answer")
            begin = self._seam(whole, self._ids(messages[:i], tools, True), i, "before")
            last = i == len(messages) - 1
            after = whole if last else self._ids(messages[: i + 1], tools, False)
            end = self._end(whole, begin, self._seam(whole, after, i, "after"), i)
            spoken_T[begin:end] = True
        return EncodedChat(np.array(whole, dtype=np.int32), spoken_T)

    def _check_heard(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Refuse a chat of which the template leaves something out: it would be learnt without.

        A part is heard if the text is another without it, or if the template insists on it.
        """

        def text(chat: Sequence[Mapping[str, Any]], with_tools: bool = True) -> str | None:
            given = tools if with_tools else None
            try:
                return self._template.render(chat, tools=given, add_generation_prompt=False)
            except TextError:
                return None

        whole = text(messages)
        if whole is None:
            return  # `encode` says why
        for i, message in enumerate(messages):
            for part, less in _parts(message):
                if text([*messages[:i], less, *messages[i + 1 :]]) == whole:
                    raise TextError(
                        f"message {i}: the chat template leaves out the {part} of a message of "
                        f"{message['role']!r}; leave it out of the data, or give the model a "
                        "template that shows it"
                    )
            _check_thoughts(messages, i, text)
        if tools and text(messages, with_tools=False) == whole:
            raise TextError(
                "tools: the chat template leaves them out; leave them out of the data, or give the "
                "model a template that shows them"
            )

    def _ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        opened: bool,
    ) -> list[int]:
        return self._template.encode(
            self._tokenizer, messages, tools=tools, add_generation_prompt=opened
        )

    def _seam(self, whole: list[int], part: list[int], message: int, side: str) -> int:
        """Return where ``part`` ends in the whole chat, if it is the front of it."""
        if whole[: len(part)] == part:
            return len(part)
        same = next((i for i, (a, b) in enumerate(zip(whole, part, strict=False)) if a != b), 0)
        raise TextError(
            f"message {message}: the chat {side} this answer is not how the whole chat begins: "
            f"they part at token {same}, after {self._tokenizer.decode(part[:same])[-40:]!r}. "
            "Either the template rewrites earlier messages when others follow (then give one line "
            "per answer, the earlier ones with weight 0), or the answer's first letters join the "
            "prompt's last token"
        )

    def _end(self, whole: list[int], begin: int, end: int, message: int) -> int:
        """Return the end of the answer, its end token included and white space after it not."""
        for place in range(end - 1, begin - 1, -1):
            if whole[place] in self._end_ids:
                return place + 1
            if self._tokenizer.decode([whole[place]], skip_special_tokens=False).strip():
                break
        shown = self._tokenizer.decode(whole[begin:end][-8:], skip_special_tokens=False)
        raise TextError(
            f"message {message}: expected the template to end an answer with a token that ends "
            f"generation ({', '.join(map(repr, self._spelled()))}), got {shown[-60:]!r}; mend "
            "the chat template, or name its end token as eos_token_id in generation_config.json"
        )

    def _spelled(self) -> list[str]:
        return [
            self._tokenizer.decode([i], skip_special_tokens=False) for i in sorted(self._end_ids)
        ]


def _is_learnt(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant" and message.get("weight") != 0


def _check_weight(i: int, message: Mapping[str, Any]) -> None:
    weight = message.get("weight")
    if weight is None or weight == 0 or (weight == 1 and _is_learnt(message)):
        return
    role = message.get("role")
    some, do = "0 or 1", "training knows no weights between"
    if role != "assistant":
        some, do = "0 or none", "only the assistant's are trained on"
    raise TextError(
        f"message {i}: expected {some} as the weight of a message of {role!r}, got {weight!r:.80}; "
        f"mend it, as {do}"
    )


def _parts(message: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts that a message says something with, and the message without each."""
    content, calls = message.get("content"), message.get("tool_calls")
    said = "".join(map(_text, content)) if isinstance(content, list) else content
    if said and said.strip():
        yield "content", {**message, "content": ""}
    if calls:
        less = {name: value for name, value in message.items() if name != "tool_calls"}
        yield "tool calls", {**less, "content": content or ""}
    if message.get("function_call"):  # OpenAI's older form, which few templates read
        less = {name: value for name, value in message.items() if name != "function_call"}
        yield "function_call", {**less, "content": content or ""}


def _check_thoughts(messages: Chat, i: int, text: Callable[[Chat], str | None]) -> None:
    """Refuse a message of which the template leaves out what was thought.

    Many templates show the thoughts of the last answer alone, by design; but an answer that is
    trained on without its thoughts teaches the model to have none.
    """
    before, message, after = messages[:i], messages[i], messages[i + 1 :]
    whole = text(messages)

    def shown(one: Mapping[str, Any], less: Mapping[str, Any]) -> bool:
        """Whether one's thoughts are seen here, or would be if it were the last message."""
        as_last = text([*before, one])
        return text([*before, one, *after]) not in (None, whole) or (
            as_last not in (None, text([*before, less]))
        )

    for field, thought, less in _thoughts(message):
        if text([*before, less, *after]) != whole:
            continue
        names = (name for name in _THOUGHTS if shown({**less, name: thought}, less))
        if shown(message, less):
            if not _is_learnt(message):
                continue  # as when the model answers
            why = "shows those of the last answer alone, and this one is trained on"
            do = "give one line per answer, the earlier ones with weight 0"
        elif name := next(names, None):
            why, do = f"reads {name}", f"give them as {name}"
        else:
            why = "leaves them out"
            do = "leave them out of the data, or give the model a template that shows them"
        raise TextError(
            f"message {i}: expected thoughts that training sees, got them in {field}, but the "
            f"chat template {why}; {do}"
        )


def _is_text(part: Mapping[str, Any]) -> bool:
    return "text" in part or "refusal" in part


def _text(part: Any) -> str:
    """Return the text of a part of a content."""
    return str(part if isinstance(part, str) else part.get("text") or part.get("refusal") or "")


def _thoughts(message: Mapping[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield where an answer says what was thought, the thought, and the message without it.

    Servers give one thought under two names: a template shows it if it shows one of them.
    """
    if message.get("role") != "assistant":
        return
    given = [name for name in _THOUGHTS if _said(message.get(name))]
    for name in given:
        same = [other for other in given if message[other] == message[name]]
        if name == same[0]:
            less = {key: value for key, value in message.items() if key not in same}
            yield " and ".join(same), message[name], less
    content = message.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and not _is_text(part)]
        if parts:  # other kinds than thoughts are refused when they are rendered
            thought = parts[0].get("thinking") or parts[0].get("reasoning") or ""
            others = [part for part in content if part not in parts]
            yield "parts of the content", thought, {**message, "content": others}
    if not isinstance(content, str):
        return
    for end in _ENDS:
        before, mark, rest = content.rpartition(end)
        thought = before.replace(end.replace("/", ""), "").strip()
        if mark and thought:
            yield f"content before {end}", thought, {**message, "content": rest}


def _said(value: Any) -> bool:
    return bool(value.strip() if isinstance(value, str) else value)
