"""DeepSeek-V4's chats: the template that stands in is held to texts of the published program.

deepseek_v4_chats.json has chats, and what ``encode_messages`` of encoding/encoding_dsv4.py
(deepseek-ai/DeepSeek-V4-Flash) makes of them; tools are told to it in the first system message,
an empty one where the chat has none.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import TextError
from monolane.text import ChatTemplate
from monolane.text._deepseek_v4 import TEMPLATE

SAID: dict[str, Any] = json.loads(
    Path(__file__).with_name("deepseek_v4_chats.json").read_text(encoding="utf-8")
)
CHATS: list[dict[str, Any]] = SAID["chats"]


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(TEMPLATE, name="DeepSeek-V4's", found=False)


@pytest.mark.parametrize(
    "said", CHATS, ids=[f"{chat['chat']}-{json.dumps(chat['variables'])}" for chat in CHATS]
)
def test_texts_are_those_of_the_published_program(
    said: dict[str, Any], template: ChatTemplate
) -> None:
    tools = SAID["tools"] if said["tools"] else None
    asked = said["messages"][-1]["role"] != "assistant"
    found = template.render(
        said["messages"], tools=tools, add_generation_prompt=asked, **said["variables"]
    )
    assert found == said["text"]


def test_what_the_program_cannot_say_is_refused(template: ChatTemplate) -> None:
    """The server then puts all system messages at the beginning; a developer's is one."""
    for message in ({"role": "system", "content": "x"}, {"role": "developer", "content": "x"}):
        with pytest.raises(TextError, match="refuses these messages: expected"):
            template.render([{"role": "user", "content": "Hi"}, message])


def test_an_answer_is_continued(template: ChatTemplate) -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well "}]
    assert template.render(chat, continue_final=True).endswith("<｜Assistant｜></think>Well ")
