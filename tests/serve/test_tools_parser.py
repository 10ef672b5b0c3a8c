"""Tool calls in the text of an answer: what is one, what is none, and that cuts change nothing."""

import json
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane.serve._tools.calls import Delta, ToolCallDelta, call_id, short_id
from monolane.serve._tools.format import ToolFormat
from monolane.serve._tools.formats import (
    DEEPSEEK,
    FUNCTIONARY,
    GEMMA,
    GENERIC,
    GLM,
    HERMES,
    KIMI,
    LFM2,
    LLAMA,
    MINIMAX,
    MISTRAL,
    SEED,
    XML,
)
from monolane.serve._tools.parser import ToolParser
from monolane.serve._tools.request import Tool, ToolUse

WEATHER = {"city": {"type": "string"}, "days": {"type": "integer"}, "where": {"enum": ["7", 7]}}
OPTIONAL = {
    "listed": {"type": ["string", "null"]},
    "branch": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "reference": {"$ref": "#/$defs/Text"},
    "number": {"anyOf": [{"type": "string"}, {"type": "number"}]},
    "whole": {"type": ["integer", "null"]},
    "open": {"description": "anything"},
}
SCHEMAS = {
    "f": {"type": "object"},
    "get_weather": {"properties": WEATHER},
    "optional": {"properties": OPTIONAL, "$defs": {"Text": {"type": "string"}}},
}
F = '{"name": "f", "arguments": {"a": [1, "}", "\\"{"]}}'
G = '{"arguments":{"city":"Zürich"},"name":"get_weather"}'
XML_CALL = "<function=get_weather>\n<parameter=days>\n2\n</parameter>\n</function>"
FA, GA = '{"a": [1, "}", "\\"{"]}', '{"city":"Zürich"}'


def tool_use(tool_format: ToolFormat, many: bool = True) -> ToolUse:
    tools = tuple(Tool(name, "", schema) for name, schema in SCHEMAS.items())
    return ToolUse(tools, tools, required=False, parallel=many, format=tool_format, marks={})


def read(tool_format: ToolFormat, *texts: str, many: bool = True) -> tuple[str, list[list[str]]]:
    """Return (content, [[name, arguments], ...]) of an answer, checking the shape of its deltas."""
    numbers = count()
    parser = ToolParser(tool_use(tool_format, many), ids=lambda: f"id{next(numbers)}")
    deltas = [*(parser.push(text) for text in texts), parser.finish()]
    calls: list[list[str]] = []
    for delta in deltas:
        for part in delta.tool_calls:
            if part.index == len(calls):
                assert part.id == f"id{part.index}"
                calls.append([part.name or "", ""])
            else:
                assert part.index == len(calls) - 1
                assert part.id is part.name is None
                assert part.arguments
            calls[part.index][1] += part.arguments
    assert parser.called == bool(calls)
    assert not any(delta.reasoning for delta in deltas)
    return "".join(delta.content for delta in deltas), calls


CASES: list[tuple[ToolFormat, str, str, list[list[str]]]] = [
    (HERMES, "no call", "no call", []),
    (HERMES, "  spaces stay \n", "  spaces stay \n", []),
    (HERMES, f"<tool_call>\n{F}\n</tool_call>", "", [["f", FA]]),
    (HERMES, f"Let me see.\n\n<tool_call>{F}</tool_call>\n", "Let me see.", [["f", FA]]),
    (
        HERMES,
        f"<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{G}\n</tool_call>",
        "",
        [["f", FA], ["get_weather", GA]],
    ),
    (HERMES, f"<tool_call>{F}</tool_call> Done.", "Done.", [["f", FA]]),
    (HERMES, f"<tool_call>[{F}, {G}]</tool_call>", "", [["f", FA], ["get_weather", GA]]),
    (HERMES, f"<tool_call>{F}\n{G}</tool_call>", "", [["f", FA], ["get_weather", GA]]),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', "", [["f", "{}"]]),
    (HERMES, '<tool_call>{"name": "f", "arguments": null}', "", [["f", "{}"]]),
    (HERMES, '<tool_call>{"name": "x.y", "arguments": {}}', "", [["x.y", "{}"]]),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\u00fc\\"}"}</tool_call>',
        "",
        [["f", '{"a": "ü"}']],
    ),
    (
        HERMES,
        f'<tool_call>{{"id": "1", "type": "function", "function": {F}}}</tool_call>',
        "",
        [["f", FA]],
    ),
    # In XML, where the schema tells numbers from texts.
    (
        HERMES,
        (
            "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\n5 <b>\n'Zürich'\n"
            "</parameter>\n<parameter=days>\n 2 \n</parameter>\n</function>\n</tool_call>"
        ),
        "Sure.",
        [["get_weather", '{"city": "5 <b>\\n\'Zürich\'", "days": 2}']],
    ),
    (
        GENERIC,
        (
            "<tool_call><function=get_weather><parameter=days>two</parameter><parameter=where>7"
            "</parameter><parameter=new>7</parameter></function></tool_call>"
            "<tool_call><function=f></function></tool_call>"
        ),
        "",
        [["get_weather", '{"days": "two", "where": "7", "new": "7"}'], ["f", "{}"]],
    ),
    (
        HERMES,
        (
            "<tool_call><function=get_weather><parameter=days>True</parameter><parameter=where>[1]"
            "</parameter></function></tool_call>"
        ),
        "",
        [["get_weather", '{"days": true, "where": "[1]"}']],
    ),
    (HERMES, "<tool_call><function=f>\n<parameter=a>\n1", "", [["f", '{"a": "1']]),
    (HERMES, "<tool_call><function=f><parameter=a>1</parameter>", "", [["f", '{"a": "1']]),
    # A value ends where another tag may follow, and with one line break.
    (
        XML,
        (
            "<tool_call><function=get_weather><parameter=city>\na </parameter> b\n\n</parameter>\n"
            "<parameter=days>\n3</parameter> x\n</parameter>\n</function></tool_call>"
        ),
        "",
        [["get_weather", '{"city": "a </parameter> b\\n", "days": "3</parameter> x"}']],
    ),
    # Without the mark that begins it: whole, and of a tool.
    (XML, f"Now.\n\n{XML_CALL}\n</tool_call>", "Now.", [["get_weather", '{"days": 2}']]),
    (XML, XML_CALL, "", [["get_weather", '{"days": 2}']]),
    (XML, f"{XML_CALL}\nand {XML_CALL}", "and", [["get_weather", '{"days": 2}']] * 2),
    (XML, XML_CALL.replace("get_weather", "g"), XML_CALL.replace("get_weather", "g"), []),
    (XML, XML_CALL[:-3], XML_CALL[:-3], []),
    (XML, "Write <function=f> and so on.", "Write <function=f> and so on.", []),
    (HERMES, f"Well:\n{F}\n</tool_call>", "Well:", [["f", FA]]),
    (HERMES, f"{F}\n</tool_call> {F}</tool_call>", "", [["f", FA]] * 2),
    (HERMES, f"Well: {F}</tool_call>", f"Well: {F}</tool_call>", []),
    (
        HERMES,
        '{"name": "g", "arguments": {}}</tool_call>',
        '{"name": "g", "arguments": {}}</tool_call>',
        [],
    ),
    # What has one reading is mended.
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": "1\n\t\x01", "b": [True, None,],}}',
        "",
        [["f", '{"a": "1\\n\\t\\u0001", "b": [true, null]}']],
    ),
    *(
        (HERMES, f'<tool_call>{{"name": "f", "arguments": {text}}}</tool_call>', "", [["f", "{}"]])
        for text in ('""', '" "', "null")
    ),
    # What has none is no call where nothing of it has left, and else never whole.
    *(
        (HERMES, text, text, [])
        for text in (
            f'<tool_call>{{"name": "f", "arguments": {value}}}</tool_call>'
            for value in ('"x"', '"[1]"', "[1]", "5", "nil", "{a: 1}"[1:])
        )
    ),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": x}}', "x}}", [["f", '{"a": ']]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {\'a\'}}', "}}", [["f", '{"a"']]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 01}}', "}}", [["f", '{"a": 01']]),
    # White space between text and calls stays.
    (
        HERMES,
        f"One. <tool_call>{F}</tool_call> Two\n<tool_call>{G}</tool_call> three. ",
        "One.  Two\n three.",
        [["f", FA], ["get_weather", GA]],
    ),
    # Other families.
    (
        DEEPSEEK,
        (
            "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
            '{"a": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>'
            "get_weather"
            "\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        "Sure.",
        [["f", '{"a": 1}'], ["get_weather", "{}"]],
    ),
    (
        DEEPSEEK,
        '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [["f", '{"a": 1}']],
    ),
    (
        KIMI,
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            '<|tool_call_argument_begin|>{"days": 2}<|tool_call_end|><|tool_call_begin|>'
            "functions.f:1"
            "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
        ),
        "",
        [["get_weather", '{"days": 2}'], ["f", "{}"]],
    ),
    # Without both marks that begin it.
    (
        KIMI,
        'So: functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>',
        "So:",
        [["f", '{"a": 1}']],
    ),
    (KIMI, "Use functions.f: it is good.", "Use functions.f: it is good.", []),
    (
        DEEPSEEK,
        'function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>',
        "",
        [["f", '{"a": 1}']],
    ),
    (
        GLM,
        (
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>a</arg_value> b"
            "</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>f\n"
            "</tool_call>"
        ),
        "",
        [["get_weather", '{"city": "a</arg_value> b", "days": 2}'], ["f", "{}"]],
    ),
    (
        MINIMAX,
        (
            '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">\nx\n'
            '</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>'
        ),
        "",
        [["get_weather", '{"city": "\\nx\\n", "days": 2}']],
    ),
    (
        SEED,
        (
            "<seed:tool_call>\n<function=get_weather>\n<parameter=city>x</parameter>\n</function>\n"
            "</seed:tool_call>"
        ),
        "",
        [["get_weather", '{"city": "x"}']],
    ),
    (
        GEMMA,
        '<|tool_call>call:get_weather{city:<|"|>a "b"<|"|>,days:2,where:{x:[true]}}<tool_call|>',
        "",
        [["get_weather", '{"city":"a \\"b\\"","days":2,"where":{"x":[true]}}']],
    ),
    (
        LFM2,
        "<|tool_call_start|>[get_weather(city='it's \\'so\\'', days=2), f()]<|tool_call_end|>ok",
        "ok",
        [["get_weather", '{"city": "it\'s \'so\'", "days": 2}'], ["f", "{}"]],
    ),
    (LLAMA, '[f(a={"b": (1, None)}, c="x")]', "", [["f", '{"a": {"b": [1, null]}, "c": "x"}']]),
    (LLAMA, "[g(a=1)]", "[g(a=1)]", []),
    (
        FUNCTIONARY,
        'all\nHello.>>>f\n{"a": 1}>>>get_weather\n{}',
        "Hello.",
        [["f", '{"a": 1}'], ["get_weather", "{}"]],
    ),
    (FUNCTIONARY, 'f\n{"a": 1}', "", [["f", '{"a": 1}']]),
    (HERMES, "<tool_call><function=f", "<tool_call><function=f", []),
    (HERMES, "<tool_call><func>x</func>", "<tool_call><func>x</func>", []),
    (HERMES, "<tool_call><function=a b></function>", "<tool_call><function=a b></function>", []),
    (MISTRAL, "[TOOL_CALLS]<function=f></function>", "[TOOL_CALLS]<function=f></function>", []),
    # What is no call is content, letter for letter.
    (HERMES, "a < b <tool_cal and <tool_call>", "a < b <tool_cal and <tool_call>", []),
    (HERMES, "x <tool_call> is a mark", "x <tool_call> is a mark", []),
    (HERMES, '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
    (HERMES, f"<tool_call><tool_call>{F}</tool_call>", "", [["f", FA]]),
    (HERMES, f"<tool_call>{F}</tool_cabbage>", "</tool_cabbage>", [["f", FA]]),
    (HERMES, f"Said: {F}", f"Said: {F}", []),
    (HERMES, "<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", []),
    # Cut off: as far as it goes, and never as if it were whole.
    (HERMES, '<tool_call>\n{"name": "f', '<tool_call>\n{"name": "f', []),
    (HERMES, '<tool_call>{"name": "f"', '<tool_call>{"name": "f"', []),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "b', "", [["f", '{"a": "b']]),
    (HERMES, f"<tool_call>{F}\n</tool_c", "", [["f", FA]]),
    (HERMES, f'<tool_call>{F}</tool_call><tool_call>{{"na', "", [["f", FA]]),
    (HERMES, f"<tool_call>{F}</tool_call>\n<tool_ca", "", [["f", FA]]),
    (HERMES, f"<tool_call>{F}</tool_call>\na <", "a <", [["f", FA]]),
    (MISTRAL, f'[TOOL_CALLS][{F}, {{"na', "", [["f", FA]]),
    (LLAMA, '{"name": "f", "parameters": {"a": 1}}', "", [["f", '{"a": 1}']]),
    (LLAMA, '\n{"type": "function", "name": "f", "parameters": {}}', "", [["f", "{}"]]),
    (LLAMA, f"<|python_tag|>{F}; {G}", "", [["f", FA], ["get_weather", GA]]),
    (LLAMA, '<|python_tag|>search.call(q="x")', '<|python_tag|>search.call(q="x")', []),
    (LLAMA, '{"name": "Ada", "arguments": {}}', '{"name": "Ada", "arguments": {}}', []),
    (LLAMA, '{"answer": 42}', '{"answer": 42}', []),
    (LLAMA, '{"name": "f", "arguments": {}} and more', "and more", [["f", "{}"]]),
    (LLAMA, f"Sure: {F}", f"Sure: {F}", []),
    (MISTRAL, f"[TOOL_CALLS] [{F}, {G}]", "", [["f", FA], ["get_weather", GA]]),
    (MISTRAL, '[TOOL_CALLS]f[ARGS]{"a": {"b": "}"}}', "", [["f", '{"a": {"b": "}"}}']]),
    (
        MISTRAL,
        '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}[TOOL_CALLS]get_weather {}',
        "",
        [["f", '{"a": 1}'], ["get_weather", "{}"]],
    ),
    (MISTRAL, "text [TOOL_CALLS]!", "text [TOOL_CALLS]!", []),
    (MISTRAL, "[1, 2]", "[1, 2]", []),
    (GENERIC, f"[{F}, {G}]", "", [["f", FA], ["get_weather", GA]]),
    (GENERIC, f" {G} ", "", [["get_weather", GA]]),
    (GENERIC, "[1, 2]", "[1, 2]", []),
    (GENERIC, "[]", "[]", []),
    (GENERIC, "{}", "{}", []),
    (GENERIC, f"<tool_call>{F}</tool_call>", "", [["f", FA]]),
    (GENERIC, f"[{F}, 7]", ", 7]", [["f", FA]]),
]


@pytest.mark.parametrize(("tool_format", "text", "content", "calls"), CASES)
def test_what_is_a_call_and_what_is_content(
    tool_format: ToolFormat, text: str, content: str, calls: list[list[str]]
) -> None:
    assert read(tool_format, text) == (content, calls)
    assert read(tool_format, *text) == (content, calls)  # one character at a time


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        *((name, "123", "123") for name in ("listed", "branch", "reference")),
        *((name, "true", "true") for name in ("listed", "branch", "reference", "number")),
        *((name, '{"a": 1}', '{"a": 1}') for name in ("listed", "branch", "reference")),
        *((name, "null", None) for name in ("listed", "branch", "whole", "open")),
        *((name, "None", None) for name in ("listed", "branch", "whole")),
        ("reference", "null", "null"),
        ("number", "1.5", 1.5),
        ("number", "12", 12),
        ("number", "[1]", "[1]"),
        ("whole", "2.0", 2.0),
        ("whole", "2.5", 2.5),  # no text is allowed either: the client says what is wrong
        ("open", "[1]", [1]),
        ("open", "x", "x"),
    ],
)
def test_a_value_in_xml_has_a_type_that_its_schema_allows(
    name: str, text: str, value: object
) -> None:
    call = f"<function=optional>\n<parameter={name}>\n{text}\n</parameter>\n</function>"
    _, ((_, arguments),) = read(HERMES, f"<tool_call>\n{call}\n</tool_call>")
    assert json.loads(arguments) == {name: value}


PARTS = (
    *(text for _, text, _, _ in CASES),
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", "f", F, G, ";"),
    *(" ", "\n", "{", "}", "[", "]", ",", '"', '"name"', ":", "arguments", "\\", "<", "text"),
    *("<function=f>", "</function>", "<parameter=days>", "2</parameter>", "</"),
)


@settings(max_examples=400, deadline=None)
@given(
    tool_format=st.sampled_from(
        [
            DEEPSEEK,
            FUNCTIONARY,
            GEMMA,
            GENERIC,
            GLM,
            HERMES,
            KIMI,
            LFM2,
            LLAMA,
            MINIMAX,
            MISTRAL,
            XML,
        ]
    ),
    text=st.lists(st.sampled_from(PARTS), max_size=8).map("".join),
    cuts=st.lists(st.integers(0, 300), max_size=12),
    many=st.booleans(),
)
def test_cuts_change_nothing(
    tool_format: ToolFormat, text: str, cuts: list[int], many: bool
) -> None:
    """Whatever the text: streamed in any pieces it gives what it gives as a whole."""
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert read(tool_format, *pieces, many=many) == read(tool_format, text, many=many)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@settings(max_examples=50, deadline=None)
@given(
    tool_format=st.sampled_from([HERMES, LLAMA, GENERIC]),
    arguments=st.lists(st.dictionaries(st.text(), json_values), min_size=1, max_size=3),
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
    size=st.integers(1, 9),
)
def test_arguments_arrive_as_they_were_meant(
    tool_format: ToolFormat, arguments: list[object], indent: int, ascii_only: bool, size: int
) -> None:
    texts = [
        json.dumps({"name": "f", "arguments": a}, indent=indent, ensure_ascii=ascii_only)
        for a in arguments
    ]
    text = f"{tool_format.begin}{';'.join(texts)}{''.join(tool_format.ends)}"
    content, calls = read(tool_format, *(text[i : i + size] for i in range(0, len(text), size)))
    assert content == ""
    assert [json.loads(call[1]) for call in calls] == arguments


def test_without_parallel_calls_the_first_alone_is_told() -> None:
    text = f"<tool_call>{F}</tool_call><tool_call>{G}</tool_call>"
    assert read(HERMES, text, many=False) == ("", [["f", FA]])


def test_arguments_leave_while_they_are_written() -> None:
    parser = ToolParser(tool_use(HERMES))
    assert parser.push('<tool_call>{"name": "f", "arguments": ').tool_calls == ()
    (first,) = parser.push('{"a').tool_calls
    assert (first.name, first.arguments) == ("f", '{"a')
    assert parser.push('": 1') == Delta(tool_calls=(ToolCallDelta(0, '": 1'),))
    assert parser.push("23").tool_calls[0].arguments == "23"


def test_content_leaves_at_once_but_for_what_may_be_a_mark() -> None:
    parser = ToolParser(tool_use(HERMES))
    assert parser.push("Hello <").content == "Hello"
    assert parser.push("b>").content == " <b>"


def test_ids_are_new_and_of_the_families_length() -> None:
    assert len({call_id() for _ in range(100)}) == len({short_id() for _ in range(100)}) == 100
    parser = ToolParser(tool_use(MISTRAL))
    assert len(parser.push(f"[TOOL_CALLS][{F}]").tool_calls[0].id or "") == 9


def test_long_answers_take_linear_time() -> None:
    # Quadratic work on a megabyte would take minutes.
    for text in (
        "<tool_call" * 100_000,
        "<tool_call>" * 90_000,
        "<tool_call><function=f>" * 40_000,
        "<tool_call><function=f><parameter=a>" + "x>" * 500_000,
        '{"id": "' + "x" * 1_000_000,
    ):
        read(GENERIC, *(text[i : i + 50_000] for i in range(0, len(text), 50_000)))
