"""What a template shows, the server reads: thoughts as the templates of many families show them."""

import json
from typing import Any, cast

import pytest

from monolane.text import ChatTemplate, Tokenizer, find_thinking
from monolane.text._control_token_search import Spellings

from .template_thoughts import ANSWER, PATH, THOUGHTS

SHOWN: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
# Templates whose thoughts are not told apart, each with the reason.
UNREAD = {
    "Kimi-K3": "its marks are rows of tokens, put together; no such model is read",
    "muse-glimmer": "its thoughts are a message of their own, to itself; no such model is read",
    "upstage-Solar-Open-100B": "its thoughts are a message of their own, which ends as others do",
}
# The template puts the mark together; the vocabulary has it whole.
TOKENS = {"tencent-Hy3": ("<think:opensource>", "</think:opensource>")}


class Vocabulary:
    """As much of a tokenizer as looks for marks, of a prompt that ends with this text."""

    def __init__(self, tail: str, tokens: tuple[str, ...]) -> None:
        self._tail = tail
        self.control_spellings = Spellings(tokens)

    def decode(self, _: Any, *, skip_special_tokens: bool) -> str:
        """Return the end of the prompt."""
        assert not skip_special_tokens
        return self._tail


def told_apart(name: str, size: int) -> tuple[str, str] | None:
    """Return thoughts and content of a template's turn, in pieces of so many characters."""
    shown = SHOWN[name]
    template = ChatTemplate("{# " + " ".join(shown["marks"]) + " #}")
    vocabulary = cast(Tokenizer, Vocabulary(shown["tail"], TOKENS.get(name, ())))
    thinking = find_thinking(template, vocabulary, ())
    if thinking is None:
        return None
    split, turn = thinking.split(), shown["turn"]
    parts = [split.push(turn[i : i + size]) for i in range(0, len(turn), size)]
    parts.append(split.finish())
    return "".join(thought for thought, _ in parts), "".join(content for _, content in parts)


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("name", sorted(SHOWN.keys() - UNREAD.keys()))
def test_what_a_template_shows_is_told_apart(name: str, size: int) -> None:
    thoughts, content = told_apart(name, size) or ("", "")
    assert thoughts == THOUGHTS
    # Behind the answer are tokens that end a turn, which a text leaves out.
    assert content.startswith(ANSWER) or (ANSWER not in content and "probe_tool" in content)
    assert not [mark for mark in ("END_TEXT", "START_TEXT", "think", "THINK") if mark in content]


def test_the_templates_that_show_thoughts_are_known() -> None:
    assert len(SHOWN) == 32


@pytest.mark.parametrize("name", UNREAD)
def test_those_that_are_not_told_apart_are_known(name: str) -> None:
    assert (told_apart(name, 7) or ("", ""))[0] != THOUGHTS
