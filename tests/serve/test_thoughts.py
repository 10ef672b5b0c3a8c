"""Thoughts that a client sends back, under any API's name, are shown as a template shows them."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from monolane import Engine
from monolane.errors import TextError
from monolane.serve._anthropic.conversation import chat_messages as from_anthropic
from monolane.serve._openai.responses.conversation import chat_messages as from_responses
from monolane.serve._tools.formats import GENERIC
from monolane.serve._tools.prompt import tool_prompt
from monolane.serve._tools.request import Tool, ToolUse
from monolane.text import ChatTemplate, spoken_messages

from .families import TEMPLATES

THOUGHTS, SAID = "I should look at the clock.", "Let me see."
USER = {"role": "user", "content": "How late is it?"}
CALL = {"id": "call00001", "type": "function", "function": {"name": "now", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "now", "content": "noon"}
TOOLS = [{"type": "function", "function": {"name": "now", "description": "It", "parameters": {}}}]
TEXT_PART = {"type": "text", "text": SAID}
# By who sends it: what an assistant's message has for its thoughts.
FIELDS: dict[str, dict[str, Any]] = {
    "DeepSeek": {"reasoning_content": THOUGHTS},
    "vLLM": {"reasoning": THOUGHTS},
    "both": {"reasoning": THOUGHTS, "reasoning_content": THOUGHTS},
    "Ollama": {"thinking": THOUGHTS, "reasoning_content": None},
    "OpenRouter": {"reasoning_details": [{"type": "reasoning.text", "text": THOUGHTS}]},
    "OpenRouter's summary": {
        "reasoning_details": [
            {"type": "reasoning.summary", "summary": THOUGHTS},
            {"type": "reasoning.encrypted", "data": "?"},
        ]
    },
}
PARTS: dict[str, dict[str, Any]] = {
    "part": {"type": "thinking", "thinking": THOUGHTS, "signature": ""},
    "Mistral": {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHTS}]},
    "reasoning part": {"type": "reasoning", "text": THOUGHTS},
    "summary": {"type": "reasoning", "summary": [{"type": "summary_text", "text": THOUGHTS}]},
}
# By the template: how it shows thoughts, in the field of this name, and what it writes before them.
SHOWN = {
    "Qwen-Qwen3-0.6B": "<think>\n",  # reasoning_content
    "LFM2.5-8B-A1B": "<think>",  # thinking
    "upstage-Solar-Open-100B": "<|begin|>assistant<|think|>",  # reasoning
    "mistralai-Ministral-3-14B-Reasoning-2512": "[THINK]",  # a part
    "openai-gpt-oss-120b": "<|channel|>analysis<|message|>",  # thinking, and no text beside it
}


def template_of(name: str) -> ChatTemplate:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})


def sent(client: str, text: bool) -> list[dict[str, Any]]:
    """Return a chat as a client sends it: thoughts, a text or none, a call, and its result."""
    said = SAID if text else None
    if client in FIELDS:
        told = {"role": "assistant", "content": said, "tool_calls": [CALL], **FIELDS[client]}
        return [USER, told, RESULT]
    if client in PARTS:
        content = [PARTS[client], TEXT_PART] if text else [PARTS[client]]
        return [USER, {"role": "assistant", "content": content, "tool_calls": [CALL]}, RESULT]
    if client == "Anthropic":
        blocks = [{"type": "thinking", "thinking": THOUGHTS}, *([TEXT_PART] if text else [])]
        blocks.append({"type": "tool_use", "id": CALL["id"], "name": "now", "input": {}})
        answer = {"type": "tool_result", "tool_use_id": CALL["id"], "content": "noon"}
        asked = {"role": "user", "content": [answer]}
        return from_anthropic([USER, {"role": "assistant", "content": blocks}, asked], None)
    assert client == "Responses"
    items: list[dict[str, Any]] = [
        USER,
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": THOUGHTS}]},
        *([{"role": "assistant", "content": SAID}] if text else []),
        {"type": "function_call", "call_id": CALL["id"], "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": CALL["id"], "output": "noon"},
    ]
    return from_responses(items, None)


def shown(template: ChatTemplate, chat: list[dict[str, Any]]) -> str:
    """Return the prompt of a chat with tools."""
    told = (Tool("now", "It", {}),)
    use = ToolUse(told, told, required=False, parallel=True, format=GENERIC, marks={})
    engine = cast(Engine, SimpleNamespace(chat_template=template))
    messages, tools = tool_prompt(spoken_messages(chat), TOOLS, use, engine)
    return template.render(messages, tools=tools)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("template", SHOWN)
@pytest.mark.parametrize("client", [*FIELDS, *PARTS, "Anthropic", "Responses"])
def test_thoughts_before_a_call_are_shown(client: str, template: str, text: bool) -> None:
    prompt = shown(template_of(template), sent(client, text))
    assert prompt.count(THOUGHTS) == 1
    assert prompt.count(SAID) == text
    assert SHOWN[template] + THOUGHTS in prompt
    assert "noon" in prompt[prompt.index(THOUGHTS) :]


@pytest.mark.parametrize("client", [*FIELDS, *PARTS])
def test_templates_that_show_none_get_the_rest(client: str) -> None:
    for name in ("Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.1-8B-Instruct"):
        prompt = shown(template_of(name), sent(client, text=True))
        assert THOUGHTS not in prompt
        assert "noon" in prompt


def test_thoughts_of_an_earlier_turn_are_the_templates_to_drop() -> None:
    told = {"role": "assistant", "content": "Noon.", "reasoning": THOUGHTS}
    chat = [USER, told, {"role": "user", "content": "Thanks."}]
    for name, count in (("Qwen-Qwen3-0.6B", 0), ("mistralai-Ministral-3-14B-Reasoning-2512", 1)):
        prompt = shown(template_of(name), chat)
        assert prompt.count(THOUGHTS) == count
        assert "Noon." in prompt


def test_thoughts_go_with_the_calls_where_a_template_wants_these_apart() -> None:
    source = """{% for m in messages %}{% if m.tool_calls %}({{ m.reasoning }})\
{{ m.tool_calls[0].function }} {{ tools[0].x }}{% else %}{{ m.content }} {% endif %}\
{% endfor %}"""
    prompt = shown(ChatTemplate(source), sent("DeepSeek", text=True))
    assert f"How late is it? {SAID} ({THOUGHTS}){{'name': 'now'" in prompt


def test_joined_messages_keep_the_thoughts_of_both() -> None:
    source = """{% for m in messages %}{% if m.role == 'assistant' and messages[loop.index0 - 1]\
.role == 'assistant' %}{{ raise_exception('alternate') }}{% endif %}[{{ m.thinking }}]\
{{ m.content }}{% endfor %}"""
    thinks = [{"role": "assistant", "content": x, "reasoning": f"Of {x}."} for x in "AB"]
    assert shown(ChatTemplate(source), [USER, *thinks]).endswith("[Of A.\n\nOf B.]A\n\nB")


def test_what_is_no_thought_stays_what_it_was() -> None:
    template = template_of("LFM2.5-8B-A1B")
    odd = [5, {"text": "x"}, [{"type": "image"}], [[["x"]]], "", None]
    for value in odd:
        chat = sent("DeepSeek", text=True)
        chat[1] |= {"reasoning_content": value, "reasoning": THOUGHTS}
        assert f"<think>{THOUGHTS}</think>" in shown(template, chat)
    with pytest.raises(TextError, match=r"message 0, part 0: expected .*'thinking'"):
        shown(template, [{"role": "user", "content": [PARTS["part"]]}])
    with pytest.raises(TextError, match="expected an assistant's text to continue"):
        template_of("mistralai-Ministral-3-14B-Reasoning-2512").render(
            [USER, {"role": "assistant", "content": [PARTS["part"]]}], continue_final=True
        )
