"""Calls that models write otherwise than they were taught, and that have one reading alone."""

import json
from typing import Any

import pytest

from monolane.serve._tools.format import ToolFormat
from monolane.serve._tools.formats import (
    DEEPSEEK,
    DEEPSEEK_V3_1,
    FUNCTIONARY_TAG,
    GENERIC,
    HARMONY,
    HERMES,
    KIMI,
    LFM2,
    LLAMA,
    MINIMAX,
    MISTRAL,
    MISTRAL_NAMED,
    XML,
)

from .test_tools_parser import read

Calls = list[tuple[str, Any]]
F: Calls = [("f", {})]
A: Calls = [("f", {"a": "b"})]
_SEP, _END = "<｜tool▁sep｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
_DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"


def hermes(arguments: str) -> str:
    return f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'


def kimi(arguments: str, section: str = "<|tool_calls_section_{}|>") -> str:
    call = f"<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{arguments}"
    return f"{section.format('begin')}{call}<|tool_call_end|>{section.format('end')}"


def xml(values: str) -> str:
    return f"<tool_call>\n<function=get_weather>\n{values}</function>\n</tool_call>"


def minimax(values: str) -> str:
    call = f'<invoke name="get_weather">\n{values}</invoke>'
    return f"<minimax:tool_call>\n{call}\n</minimax:tool_call>"


CASES: list[tuple[ToolFormat, str, Calls]] = [
    # A backslash that begins no escape of JSON stands for itself; a single quote needs none.
    (HERMES, hermes(r'{"a": "it\'s"}'), [("f", {"a": "it's"})]),
    (HERMES, hermes(r'{"a": "\d+\$ \(x\)"}'), [("f", {"a": r"\d+\$ \(x\)"})]),
    (HERMES, hermes(r'{"a": "C:\users\\"}'), [("f", {"a": "C:\\users\\"})]),
    (HERMES, hermes(r'{"a": "\u12"}'), [("f", {"a": r"\u12"})]),
    (HERMES, hermes(r'{"a": "\u00fc\u"}'), [("f", {"a": "ü\\u"})]),
    (HERMES, hermes('{"a": "b\\\nc"}'), [("f", {"a": "b\\\nc"})]),
    # Objects as Python prints them.
    (HERMES, "<tool_call>{'name': 'f', 'arguments': {'a': 'b'}}</tool_call>", A),
    (HERMES, "<tool_call>{'name' : 'f' , 'arguments' : {'a' : 'b'} }</tool_call>", A),
    (HERMES, hermes("{'a': [\"it's\", 'q\"', True]}"), [("f", {"a": ["it's", 'q"', True]})]),
    (HERMES, hermes("\"{'a': 'b'}\""), A),
    (HERMES, "<tool_call>{'id': 'x', 'name': 'f', 'arguments': '{\"a\": \"b\"}'}</tool_call>", A),
    (MISTRAL, "[TOOL_CALLS][{'name': 'f', 'arguments': {'a': 'b'}}]", A),
    # Braces doubled, as a template of Qwen2.5-Coder shows them, or one too many; marks doubled.
    (HERMES, '<tool_call>{{"name": "f", "arguments": {"a": "b"}}}</tool_call>', A),
    (HERMES, hermes('{"a": "b"}}'), A),
    (HERMES, f"<tool_call>\n{hermes('{}')}", F),
    # Qwen2.5-Coder's marks, and an answer without any that is a call and nothing else.
    (HERMES, '<tools>\n{"name": "f", "arguments": {"a": "b"}}\n</tools>', A),
    (HERMES, '{"name": "f", "arguments": {"a": "b"}}\n', A),
    # Behind a name and its mark: nothing, null, or an object in a text.
    (KIMI, kimi(""), F),
    (KIMI, kimi(" null"), F),
    (KIMI, kimi('"{\\"a\\": \\"b\\"}"'), A),
    (KIMI, kimi("{}", "<|tool_call_section_{}|>"), F),
    (MISTRAL_NAMED, "[TOOL_CALLS]f[ARGS][TOOL_CALLS]f[ARGS]null", F * 2),
    (DEEPSEEK, f"{_DEEPSEEK}function{_SEP}f\n```json\n\n```{_END}", F),
    (DEEPSEEK_V3_1, f"{_DEEPSEEK}f{_SEP}{_END}", F),
    (HARMONY, "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>null", F),
    (FUNCTIONARY_TAG, "<function=f></function>", F),
    # Llama's own spelling of tools that a client brings, also without its bracket.
    (LLAMA, '<function=f>{"a": "b"}</function>', A),
    (LLAMA, '<function=f{"a": "b"}</function>', A),
    # The last tag left out.
    (XML, "<tool_call>\n<function=f>\n<parameter=a>\nb\n</parameter>\n</tool_call>", A),
    # The last value's end tag left out, where nothing but the end or another call follows.
    (XML, xml("<parameter=city>\nb\n"), [("get_weather", {"city": "b"})]),
    (XML, xml("<parameter=city>b") + "\n", [("get_weather", {"city": "b"})]),
    (XML, xml("<parameter=city>\na</function> b\n"), [("get_weather", {"city": "a</function> b"})]),
    (XML, xml("<parameter=days>\n2\n") * 2, [("get_weather", {"days": 2})] * 2),
    (XML, xml("<parameter=days>2").removeprefix("<tool_call>\n"), [("get_weather", {"days": 2})]),
    (MINIMAX, minimax('<parameter name="city">b\n'), [("get_weather", {"city": "b\n"})]),
    # A call in a fence that is all of the answer.
    (HERMES, '```json\n{"name": "f", "arguments": {"a": "b"}}\n```', A),
    (HERMES, ' ```json\n{\n  "arguments": {"a": "b"},\n  "name": "f"\n}\n```\n', A),
    (GENERIC, '```\n{"name": "f", "arguments": {"a": "b"}}\n```', A),
    # Python's long texts and codes.
    (LFM2, '<|tool_call_start|>[f(a="""b\n"c\'""")]<|tool_call_end|>', [("f", {"a": "b\n\"c'"})]),
    (LFM2, "<|tool_call_start|>[f(a='', b=\"\")]<|tool_call_end|>", [("f", {"a": "", "b": ""})]),
    (LFM2, r"<|tool_call_start|>[f(a='\U0001F600\x41')]<|tool_call_end|>", [("f", {"a": "😀A"})]),
]  # fmt: skip


@pytest.mark.parametrize(("tool_format", "text", "calls"), CASES)
def test_one_reading(tool_format: ToolFormat, text: str, calls: Calls) -> None:
    for size in (1, 2, 3, 5, len(text)):
        content, found = read(tool_format, *(text[i : i + size] for i in range(0, len(text), size)))
        assert (content, [(name, json.loads(told)) for name, told in found]) == ("", calls)


@pytest.mark.parametrize(
    "text",
    [
        'For example:\n{"name": "f", "arguments": {}}',  # the text is the answer
        '{"name": "unknown", "arguments": {}}',
        '{"name": "f", "arguments": {}',
        '{"name": "f", "arguments": {}} is how',
        "{{ f }}",
        "See <tools> for them.",
        # In a fence: of another tool, without arguments, with text around it, or twice.
        '```json\n{"name": "unknown", "arguments": {}}\n```',
        '```json\n{"name": "f"}\n```',
        '```json\n{"name": "f", "arguments": {}}\n```\nis how to call it.',
        'Like this:\n```json\n{"name": "f", "arguments": {}}\n```',
        '```json\n{"name": "f", "arguments": {}}\n{"name": "f", "arguments": {}}\n```',
        '```json\n{"a": 1}\n```',
        "```python\nf()\n```",
        "``",
        " ```json\n",
    ],
)
def test_text_stays_text(text: str) -> None:
    assert read(HERMES, *text) == (text, [])


@pytest.mark.parametrize(
    "values",
    [
        "<parameter=unknown>\nb\n",  # of no parameter that is known
        "<parameter=city>\n</function>\n</tool_call>\nis how a call ends\n",
        "<parameter=city>\n</function>\n</tool_call>\n<tool_call>\n<function=unknown>\n",
    ],
)
def test_a_value_without_its_end_stays_unfinished(values: str) -> None:
    """It may hold what ends a call, and be cut off behind that."""
    text = "<tool_call>\n<function=get_weather>\n" + values
    ((name, arguments),) = read(XML, *text)[1]
    assert name == "get_weather"
    with pytest.raises(ValueError, match="Unterminated|Expecting"):
        json.loads(arguments)
    closed = f"{text}</parameter>\n</function>\n</tool_call>"
    ((_, arguments),) = read(XML, *closed)[1]
    value = values.partition(">")[2].removeprefix("\n").removesuffix("\n")
    assert next(iter(json.loads(arguments).values())) == value
