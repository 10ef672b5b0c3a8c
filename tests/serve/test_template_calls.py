"""What a template shows, the server reads: calls as the templates of many families show them."""

import json
from typing import Any

import pytest

from monolane.serve._tools.calls import Delta
from monolane.serve._tools.formats import FORMATS, GENERIC, HARMONY
from monolane.serve._tools.parser import ToolParser
from monolane.serve._tools.request import Tool, ToolUse

from .template_calls import CALLS, PATH, TOOLS

SHOWN: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
# Templates whose calls are not read, each with the reason.
UNREAD = {
    "Kimi-K3": "values in nested tags of tokens; no such model is read",
    "MiniMax-M3": "values in nested tags of tokens; no such model is read",
}
# Templates that render no call here, each with the reason.
WITHOUT = {
    "HuggingFaceTB-SmolLM3-3B": "it has no calls in its history",
    "Kimi-K2-Instruct": "it changes a list, which no sandbox lets it",
    "Kimi-K2-Thinking": "it changes a list, which no sandbox lets it",
    "LFM2-8B-A1B": "it has no calls in its history",
    "LFM2.5-Instruct": "it has no calls in its history",
    "fireworks-ai-llama-3-firefunction-v2": "it reads a variable that no API has",
    "google-gemma-2-2b-it": "it knows no tools",
    "ibm-granite-granite-3.3-2B-Instruct": "it has no calls in its history",
    "llama-cpp-deepseek-r1": "it makes JSON of a generator",
    "llama-cpp-rwkv-world": "it knows no tools",
    "microsoft-Phi-3.5-mini-instruct": "it knows no tools",
}
TURNS = sorted(SHOWN.keys() - UNREAD.keys() - WITHOUT.keys())
TOLD = tuple(Tool(tool["function"]["name"], "", tool["function"]["parameters"]) for tool in TOOLS)


def format_shown(marks: list[str]) -> Any:
    """Return the format that a template with these marks shows."""
    for one in FORMATS:
        if one.shown and {*one.shown} <= {*marks} and not {*one.lacks} & {*marks}:
            return one
    return GENERIC


def read(name: str, size: int) -> Delta:
    """Return what is read of a template's turn, cut into pieces of so many characters."""
    form, turn = format_shown(SHOWN[name]["marks"]), SHOWN[name]["turn"]
    if form is HARMONY:  # text/_harmony.py puts the beginning of a header before a call
        turn = f"<|start|>assistant{turn}"
    use = ToolUse(TOLD, TOLD, required=False, parallel=True, format=form, marks={})
    parser = ToolParser(use)
    pieces = [parser.push(turn[i : i + size]) for i in range(0, len(turn), size)]
    return Delta.joined([*pieces, parser.finish()])


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("name", TURNS)
def test_what_a_template_shows_is_read(name: str, size: int) -> None:
    delta = read(name, size)
    calls = [(call.name, json.loads(call.arguments)) for call in delta.tool_calls]
    assert calls == [*CALLS[: 1 + ("three" in SHOWN[name]["turn"])]]


def test_the_templates_without_calls_are_known() -> None:
    assert len(SHOWN) == 70
    assert {name for name, one in SHOWN.items() if "turn" not in one} == WITHOUT.keys()


@pytest.mark.parametrize("name", UNREAD)
def test_a_call_that_is_not_read_is_content(name: str) -> None:
    assert not read(name, 7).tool_calls
