"""Roles as clients send them, for templates that take them in one order alone."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monolane import Engine
from monolane.errors import TextError
from monolane.serve._anthropic.conversation import chat_messages as from_messages
from monolane.serve._http.prepare import chat_prompt
from monolane.serve._openai.body import ChatRequest
from monolane.serve._openai.responses.conversation import chat_messages as from_responses
from monolane.serve._tools.turns import alternating, with_system, with_texts_in_results

from .families import FAMILIES, write_family

Json = dict[str, Any]
FUNCTION = {"name": "get", "description": "Gets", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """``shown(family, messages)`` is the text that a model of this family reads."""
    engines: dict[str, Engine] = {}

    def show(name: str, messages: list[Json], **fields: Any) -> str:
        if name not in engines:
            folder = write_family(tmp_path_factory.mktemp("family"), FAMILIES[name])
            engines[name] = Engine.load(folder)
        ids, _ = chat_prompt(ChatRequest(messages=messages, **fields).asked(), None, engines[name])
        assert engines[name].tokenizer is not None
        return engines[name].tokenizer.decode(ids, skip_special_tokens=False)

    yield show
    for engine in engines.values():
        engine.close()


@pytest.mark.parametrize("name", ["nemo", "mistral-small", "qwen3.5"])
def test_messages_of_one_role_in_a_row(shown: Callable[..., str], name: str) -> None:
    """Codex sends its surroundings before the prompt, and Anthropic's API joins such messages."""
    for chat in (
        from_messages([user("one"), user("two")], None),
        from_responses([user("one"), user("two")], None),
    ):
        text = shown(name, chat)
        assert ("one\n\ntwo" in text) == (name != "qwen3.5")
        assert text.index("one") < text.index("two")
    said: Json = {"role": "assistant", "content": "three"}
    text = shown(name, [user("one"), said, said | {"content": "four"}, user("five")])
    assert text.index("three") < text.index("four") < text.index("five")


@pytest.mark.parametrize("name", ["nemo", "mistral-small", "qwen3.5"])
def test_a_text_behind_a_result(shown: Callable[..., str], name: str) -> None:
    """As Claude Code sends it: a result, and beside it what the user is reminded of."""
    blocks = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"},
        {"type": "text", "text": "So?"},
    ]
    call = {"type": "tool_use", "id": "toolu_1", "name": "get", "input": {}}
    asked = [user("one"), {"role": "assistant", "content": [call]}, user(blocks)]
    text = shown(name, from_messages(asked, None), tools=TOOLS)
    assert ("42\n\nSo?" in text) == (name != "qwen3.5")
    assert text.index("42") < text.index("So?")


# That of Hermes here is for chats with tools alone.
@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"hermes"}))
def test_a_developer_is_heard(shown: Callable[..., str], name: str) -> None:
    text = shown(name, [{"role": "developer", "content": "Be kind."}, user("one")])
    assert "Be kind." in text
    if name != "gpt-oss":  # whose template has a place for each
        both = [{"role": "system", "content": "Be kind."}, user("one")]
        assert shown(name, both) == text
        also: Json = {"role": "developer", "content": "Be brief."}
        text = shown(name, [both[0], also, both[1]])
        assert "Be kind.\n\nBe brief." in text


def test_contents_are_joined_whatever_their_form() -> None:
    part = {"type": "text", "text": "b"}
    gap = {"type": "text", "text": "\n\n"}
    assert alternating([user("a"), user([part])]) == [
        user([{"type": "text", "text": "a"}, gap, part])
    ]
    assert alternating([user(""), user("a")]) == [user("a")]
    call: Json = {"role": "assistant", "content": "x", "tool_calls": [{}]}
    kept = [user(None), user("a"), call, call, {"role": "tool", "content": "b"}]
    assert alternating(kept) == kept
    assert with_texts_in_results([kept[-1], user("c"), user("d")]) == [
        {"role": "tool", "content": "b\n\nc\n\nd"}
    ]
    assert with_system(kept) is kept


def test_what_is_no_content_is_still_refused(shown: Callable[..., str]) -> None:
    with pytest.raises(TextError, match="expected content"):
        shown("nemo", [user("a"), user(5)])
