"""Places messages so that a template shows each of them, or refuses the chat.

What a client says must be in the prompt. Templates lose messages in silence: some show the last
system message alone, some none, some refuse one amid the turns, and some leave out calls that have
a text beside them. So a chat is tried first, with a word of its own in place of each content and
each call's name. Where one is missing, the messages are joined or parted as far as it takes:
neighbours of one role as one, calls behind their text, all system messages at the beginning, or
these with the user's first. What assistants thought is not looked for, and what they said beside
calls may be missing where no way shows it: templates leave these out on purpose.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from monolane.errors import RequestError, TextError
from monolane.serve._tools.template_probe import PROBE_TOOL
from monolane.serve._tools.turns import (
    Message,
    alternating,
    with_calls_apart,
    with_one_system,
    with_system_as_user,
)
from monolane.text import ChatTemplate


@dataclass(frozen=True, slots=True)
class _Outline:
    """What a template can tell of a message without its texts."""

    role: str
    content: bool | None  # it has a text; False: an empty one, None: none
    calls: tuple[tuple[str, bool], ...]  # the id of each, and whether its arguments are a text
    answers: str  # the id of the call that it answers

    def filled(self, word: str) -> Message:
        """Return a message with a word in place of each text."""
        content = None if self.content is None else word if self.content else ""
        message: Message = {"role": self.role, "content": content}
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": one,
                    "type": "function",
                    "function": {
                        "name": f"{word}-call-{i}",
                        "arguments": '{"at": "x"}' if text else {"at": "x"},
                    },
                }
                for i, (one, text) in enumerate(self.calls)
            ]
        if self.answers:
            message["tool_call_id"] = self.answers
        return message


def placed(chat: list[Message], template: ChatTemplate, tools: bool) -> list[Message]:
    """Return the messages as the template shows them all; RequestError for one that it leaves out.

    ``tools``: the chat is rendered with tools.
    """
    lost: int | None = None
    near: list[Message] | None = None  # a way that leaves out texts beside calls alone
    for tried in _ways(chat):
        found = _missing(template, tuple(map(_outline, tried)), tools)
        if found is None:
            continue
        messages, beside = found
        if not messages and not beside:
            return tried
        if not messages:
            near = near or tried
        elif lost is None:
            lost = messages[0] if tried is chat else -1
    if near is not None:
        return near
    if lost is None:  # it refuses the chat, and says why when it is rendered
        return chat
    where = f"messages[{lost}]" if lost >= 0 else "messages"
    role = f"{chat[lost].get('role')!r:.80}" if lost >= 0 else "one role"
    raise RequestError(
        f"{where}: this model's chat template leaves out a message of {role} at this place; say it "
        "in a user's message"
    )


def _ways(chat: list[Message]) -> Iterator[list[Message]]:
    for one in (chat, with_one_system(chat), with_system_as_user(chat)):
        yield one
        yield alternating(one)
        yield with_calls_apart(one)


def _outline(message: Mapping[str, Any]) -> _Outline:
    content, calls = message.get("content"), message.get("tool_calls") or ()
    texts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in texts]
    said = any(isinstance(text, str) and text.strip() for text in texts)
    return _Outline(
        str(message.get("role")),
        None if content is None else said,
        tuple((str(x.get("id")), isinstance(x["function"]["arguments"], str)) for x in calls),
        str(message.get("tool_call_id") or ""),
    )


@lru_cache(maxsize=256)
def _missing(
    template: ChatTemplate, outlines: Sequence[_Outline], tools: bool
) -> tuple[list[int], list[int]] | None:
    """Return the places of messages that are not shown, and of texts beside calls that are not.

    None: the template refuses them all.
    """
    words = [f"placed-{i}-word" for i in range(len(outlines))]
    chat = [one.filled(word) for one, word in zip(outlines, words, strict=True)]
    try:
        text = template.render(chat, tools=[PROBE_TOOL] if tools else None)
    except TextError:
        return None
    messages, beside = [], []
    for i, (one, word) in enumerate(zip(outlines, words, strict=True)):
        named = all(f"{word}-call-{j}" in text for j in range(len(one.calls)))
        shown = word in text.replace(f"{word}-call-", "")
        if not named or (one.content and not one.calls and word not in text):
            messages.append(i)
        elif one.content and one.calls and not shown:
            beside.append(i)
    return messages, beside
