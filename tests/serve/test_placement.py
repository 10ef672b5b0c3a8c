"""Every message is in the prompt, joined where a template wants it so, or refused."""

from typing import Any

import pytest

from monolane.errors import RequestError, TextError
from monolane.serve._tools.placement import placed
from monolane.text import ChatTemplate

Json = dict[str, Any]
TURN = "<{{ m.role }}>{{ m.content }}"
LOOP = "{% for m in messages %}BODY{% endfor %}"
TEMPLATES = {
    "all": LOOP.replace("BODY", TURN),
    "first": LOOP.replace(
        "BODY",
        "{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
        + TURN,
    ),
    "last": "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.s = m.content %}{% endif %}{% endfor %}{{ ns.s }}"
    + LOOP.replace("BODY", "{% if m.role != 'system' %}" + TURN + "{% endif %}"),
    "only the first": LOOP.replace(
        "BODY", "{% if m.role != 'system' or loop.first %}" + TURN + "{% endif %}"
    ),
    "none": LOOP.replace("BODY", "{% if m.role != 'system' %}" + TURN + "{% endif %}"),
    "refused": LOOP.replace(
        "BODY", "{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}" + TURN
    ),
    "turns": LOOP.replace(
        "BODY",
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
        "{% endif %}" + TURN,
    ),
}
CHATS = {
    "two": [("system", "RULE-A"), ("system", "RULE-B"), ("user", "ASK-U")],
    "amid": [
        *(("system", "RULE-A"), ("user", "ASK-U"), ("assistant", "SAID-X")),
        *(("system", "RULE-B"), ("user", "ASK-V")),
    ],
    "developer": [
        ("developer", "RULE-A"),
        ("system", "RULE-B"),
        ("user", "ASK-U"),
        ("user", "ASK-V"),
    ],
}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_message_is_shown(name: str, chat: str) -> None:
    messages: list[Json] = [{"role": role, "content": text} for role, text in CHATS[chat]]
    template = ChatTemplate(TEMPLATES[name])
    told = placed(messages, template, tools=False)
    text = template.render(told)
    for _, content in CHATS[chat]:
        assert text.count(content) == 1, text
    if (name, chat) != ("last", "developer"):
        assert text.index("RULE-A") < text.index("RULE-B")
    if name == "all":
        assert told == messages


def calls(content: str | None, *names: str) -> Json:
    """Return a message with calls of these tools."""
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {"id": name, "type": "function", "function": {"name": name, "arguments": {}}}
            for name in names
        ],
    }


CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{% endfor %}"


def test_calls_with_a_text_beside_them() -> None:
    """As in DeepSeek R1's template, which shows either."""
    either = "{% if m.content is none %}" + CALLS + "{% else %}" + TURN + "{% endif %}"
    chat = [{"role": "user", "content": "u"}, calls("SAID", "one", "two")]
    template = ChatTemplate(LOOP.replace("BODY", either))
    text = template.render(placed(chat, template, tools=False))
    assert text == "<user>u<assistant>SAID<call>one<call>two"
    # Where no way shows the text, the template leaves it out on purpose.
    never = (
        "{% if m.role == 'assistant' and not m.tool_calls %}{{ raise_exception('x') }}{% endif %}"
    )
    template = ChatTemplate(
        LOOP.replace(
            "BODY", never + "{% if m.tool_calls %}" + CALLS + "{% else %}" + TURN + "{% endif %}"
        )
    )
    assert placed(chat, template, tools=False) == chat
    with pytest.raises(RequestError, match=r"messages\[1\]: .* leaves out .* 'assistant'"):
        placed(chat, ChatTemplate(LOOP.replace("BODY", TURN)), tools=False)


def test_what_is_left_out_all_the_same_is_refused() -> None:
    source = LOOP.replace("BODY", "{% if m.role in ('user', 'assistant') %}" + TURN + "{% endif %}")
    messages: list[Json] = [
        {"role": "user", "content": "u"},
        {"role": "critic", "content": [{"type": "text", "text": "c"}]},
    ]
    with pytest.raises(RequestError, match=r"messages\[1\]: .* leaves out .* 'critic'"):
        placed(messages, ChatTemplate(source), tools=False)


def test_a_template_that_refuses_the_chat_says_why() -> None:
    template = ChatTemplate("{{ raise_exception('no') }}")
    messages: list[Json] = [{"role": "user", "content": "u"}]
    assert placed(messages, template, tools=False) == messages
    with pytest.raises(TextError, match="refuses these messages: no"):
        template.render(messages)


def test_what_says_nothing_need_not_be_shown() -> None:
    template = ChatTemplate(TEMPLATES["none"])
    messages: list[Json] = [{"role": "system", "content": " "}, {"role": "user", "content": "u"}]
    assert placed(messages, template, tools=False) == messages
