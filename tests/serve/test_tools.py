"""Tools from the request to the message: what the model is told, what it must write, what comes."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from monolane import Engine, SamplingParams
from monolane.engine import Constraint
from monolane.errors import RequestError
from monolane.serve._grammar.compiler import Grammar, compiler_of
from monolane.serve._http.prepare import chat_prompt, constraint_of, prepare_chat
from monolane.serve._http.request import ChatAsked
from monolane.serve._openai.body import ChatRequest
from monolane.serve._tools.format import ToolFormat
from monolane.serve._tools.formats import FORMATS, format_of, mark_ids
from monolane.serve._tools.grammar import answer_grammar, strict_grammar
from monolane.serve._tools.parser import ToolParser
from monolane.serve._tools.prompt import tool_prompt
from monolane.serve._tools.request import ToolUse, read_tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bern", "Zürich"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, TIME]
NAMED = {"type": "function", "function": {"name": "now"}}

TOOL_LINES = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls or '' }}\n{% endfor %}"
TEMPLATES = {
    "hermes": TOOL_LINES + "{# <tool_call> #}" + TURNS,
    "llama": TOOL_LINES + "{{ '' if true else '<|python_tag|>' }}" + TURNS,
    "mistral": TOOL_LINES + "{{ '' if true else '[TOOL_CALLS]' }}" + TURNS,
    "generic": TURNS,
}


def request(**fields: Any) -> ChatAsked:
    fields = {"messages": [{"role": "user", "content": "How is it?"}], "tools": TOOLS} | fields
    return ChatRequest(**fields).asked()


def tools_of(asked: ChatAsked, engine: Engine) -> ToolUse | None:
    return read_tools(asked.tools, asked.tool_choice, asked.parallel_tool_calls, engine)


def constraint(asked: ChatAsked, engine: Engine) -> Constraint | None:
    grammar = answer_grammar(asked.structured, tools_of(asked, engine))
    return constraint_of(asked, grammar, engine)


@pytest.fixture(scope="module", params=TEMPLATES)
def family(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Engine]]:
    """An engine with random weights whose folder is of one family."""
    folder = tmp_path_factory.mktemp("family")
    for name in ("model.safetensors", "tokenizer_config.json"):
        (folder / name).symlink_to(tiny_model / name)
    config = json.loads((tiny_model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1000}))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]"]
    plain = ["<tool_call>", "</tool_call>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=316,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    if request.param == "hermes":  # the others spell these marks letter by letter
        tokenizer.add_tokens([tokenizers.AddedToken(one, normalized=False) for one in plain])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATES[request.param])
    with Engine.load(folder) as engine:
        yield request.param, engine


def answers(engine: Engine, asked: ChatAsked, seed: int) -> tuple[str, list[list[str]], str]:
    """Return (content, [[name, arguments], ...], finish_reason), parsed as it streams."""
    tools = tools_of(asked, engine)
    assert tools is not None
    visible = sorted(tools.marks.values())
    params = SamplingParams(max_tokens=300, temperature=1.0, seed=seed, visible_ids=visible)
    parser = ToolParser(tools)
    content, calls = "", []
    stream = engine.stream([5, 6], params, constraint(asked, engine))
    for piece in stream:
        deltas = [parser.push(piece.text)]
        if piece.finish_reason:
            deltas.append(parser.finish())
        content += "".join(delta.content for delta in deltas)
        for part in (part for delta in deltas for part in delta.tool_calls):
            if part.name is not None:
                assert part.id
                calls.append([part.name, ""])
            calls[-1][1] += part.arguments
    return content, calls, str(stream.finish_reason)


def test_the_family_is_found(family: tuple[str, Engine]) -> None:
    name, engine = family
    assert format_of(engine).name == name


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_made_and_meets_its_schema(
    family: tuple[str, Engine], choice: Any, parallel: bool
) -> None:
    _, engine = family
    asked = request(tool_choice=choice, parallel_tool_calls=parallel)
    seen = set()
    for seed in range(12):
        content, calls, reason = answers(engine, asked, seed)
        assert content == ""
        assert calls
        seen.update(name for name, _ in calls)
        if reason == "length":  # many calls in a row: all but the last are whole
            assert parallel
            calls.pop()
        else:
            assert parallel or len(calls) == 1
        for name, arguments in calls:
            value = json.loads(arguments)
            if name == "get_weather":
                assert value["city"] in ("Bern", "Zürich")
                assert value["days"] in (1, 2)
            else:
                assert (name, type(value)) == ("now", dict)
    assert seen == ({"now"} if choice == NAMED else {"now", "get_weather"})


def test_a_schema_beside_tools_leaves_both_open(family: tuple[str, Engine]) -> None:
    _, engine = family
    schema = {"json_schema": {"name": "x", "schema": {"enum": ["only this"]}}}
    asked = request(response_format={"type": "json_schema", **schema}, parallel_tool_calls=False)
    found = [answers(engine, asked, seed) for seed in range(40)]
    assert {content for content, _, _ in found} == {'"only this"', ""}
    assert all(bool(content) != bool(calls) for content, calls, _ in found)


def test_no_tools_no_parser(family: tuple[str, Engine]) -> None:
    _, engine = family
    for asked in (request(tools=None), request(tools=[]), request(tool_choice="none")):
        assert tools_of(asked, engine) is None
        (choice,) = prepare_chat(asked, engine)
        assert choice.parser is None
        assert not choice.guided
        assert "get_weather" not in engine.tokenizer.decode(list(choice.prompt_ids))
    (choice,) = prepare_chat(request(), engine)
    assert not choice.guided  # auto: nothing is imposed
    assert choice.parser is not None


def test_the_tools_of_a_request_are_read_once(family: tuple[str, Engine]) -> None:
    """However many answers it asks for, and whatever is made from the tools."""

    class Counted(dict[str, Any]):
        read = 0

        def get(self, key: str, default: Any = None) -> Any:
            Counted.read += key == "function"
            return super().get(key, default)

    _, engine = family
    asked = replace(request(n=16, tool_choice="required"), tools=[Counted(WEATHER)])
    assert len(prepare_chat(asked, engine)) == 16
    assert Counted.read == 1


def test_the_model_is_told_of_tools_calls_and_results(family: tuple[str, Engine]) -> None:
    name, engine = family
    call = {"name": "get_weather", "arguments": '{"city": "Bern", "days": 1}'}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is it?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "warm"}]},
    ]
    told, tools = tool_prompt(messages, TOOLS, tools_of(request(), engine), engine)
    if name != "generic":
        assert tools == TOOLS
        # Templates take arguments as objects, and render them themselves.
        assert told[2]["tool_calls"][0]["function"]["arguments"] == {"city": "Bern", "days": 1}
        if name == "mistral":  # ids of nine letters and digits, equal ones for equal ones
            ids = [told[2]["tool_calls"][0]["id"], *(told[i].pop("tool_call_id") for i in (3, 4))]
            assert ids[0] == ids[1] != ids[2]
            assert all(re.fullmatch("[a-zA-Z0-9]{9}", one) for one in ids)
            for message in messages[3:]:
                del message["tool_call_id"]
        assert told[3:] == messages[3:]
        return
    assert tools is None
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert '"name": "get_weather", "description": "The weather of a city"' in told[0]["content"]
    assert told[0]["content"].endswith("\n\nBe brief.")
    spelled = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 1}}\n'
    assert told[2]["content"] == spelled + "</tool_call>"
    assert told[3]["content"] == (
        "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n</tool_response>"
    )


def test_without_system_messages_the_user_tells_it() -> None:
    with Engine.load("demo") as engine:  # its template leaves system messages out
        ids, thinking = chat_prompt(request(), tools_of(request(), engine), engine)
        text = engine.tokenizer.decode(ids)
    assert thinking is None
    assert "get_weather" in text
    assert text.index("get_weather") < text.index("How is it?")


def test_arguments_that_are_no_json_are_told_as_they_are() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "{oops"}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    with Engine.load("demo") as engine:
        told, _ = tool_prompt(messages, None, None, engine)
    assert '"arguments": "{oops"' in told[0]["content"]


def test_half_a_character_in_arguments_does_not_stop_the_chat() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": '{"at": "x\\uD83D \\ud83d\\ude00"}'}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    with Engine.load("demo") as engine:
        told, _ = tool_prompt(messages, None, None, engine)
        assert engine.tokenizer is not None
        assert engine.chat_template.encode(engine.tokenizer, told)
    assert '"arguments": {"at": "x? 😀"}' in told[0]["content"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [{"type": "x"}]}, r"tools\[0\]: expected {'type': 'function'"),
        ({"tools": [{"function": {"name": "a b"}}]}, r"tools\[0\].function.name: expected a plain"),
        (
            {"tools": [{"function": {"name": "a", "parameters": [1]}}]},
            r"tools\[0\].function.parameters: expected a JSON schema, got list",
        ),
        ({"tools": [TIME, TIME]}, "tools: expected names that differ, got 1 of 2"),
        ({"tool_choice": "maybe"}, "tool_choice: expected 'none', 'auto', 'required' or"),
        ({"tool_choice": {"function": {"name": "g"}}}, "expected the name of one of the tools"),
        ({"tool_choice": "required", "tools": None}, "tool_choice: 'required' needs tools"),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format: expected none where tool_choice requires a call",
        ),
        ({"guided_regex": "a"}, "guided_regex: only JSON can stand beside tools"),
        (
            {
                "tools": [{"function": {"name": "a", "parameters": {"type": "foo"}}}],
                "tool_choice": "required",
            },
            "tools: cannot be followed: .*Invalid type: foo",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, r"messages\[0\].tool_calls: exp"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "expected functions with a"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{**NAMED, "id": []}]}]},
            r"messages\[0\].tool_calls: expected the id of a call to be text, got \[\]",
        ),
        (
            {"messages": [{"role": "tool", "tool_call_id": {}, "content": "x"}]},
            r"messages\[0\].tool_call_id: expected the id of a call to be text, got {}",
        ),
    ],
)
def test_what_makes_no_sense_is_named(
    family: tuple[str, Engine], fields: dict[str, Any], message: str
) -> None:
    _, engine = family
    with pytest.raises(RequestError, match=message):
        prepare_chat(request(**fields), engine)


def test_many_tools_are_prepared_quickly(family: tuple[str, Engine]) -> None:
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{i}",
                "description": "d" * 300,
                "parameters": {
                    "type": "object",
                    "properties": {f"p{j}": {"type": "string"} for j in range(8)},
                    "required": ["p0"],
                },
            },
        }
        for i in range(139)
    ]
    _, engine = family
    asked = request(tools=tools, tool_choice="required")
    assert len(tools_of(asked, engine).callable) == 139
    _, calls, _ = answers(engine, asked, 0)
    assert calls[0][0].startswith("tool_")


STRICT = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
GOOD, BAD = '{"city": "Bern", "days": 1}', '{"city": "Basel", "days": 1}'


def test_strict_tools_are_met_where_the_model_may_call(family: tuple[str, Engine]) -> None:
    """Whatever a random model writes: what is read as a call of a strict tool meets its schema."""
    _, engine = family
    asked = request(tools=[STRICT, TIME], parallel_tool_calls=False)
    texts = 0
    for seed in range(40):
        content, calls, reason = answers(engine, asked, seed)
        texts += bool(content)
        if reason == "length":
            continue
        for name, arguments in calls:
            value = json.loads(arguments)
            if name == "get_weather":
                assert value["city"] in ("Bern", "Zürich")
    assert texts


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(
    "tool_format",
    # Of the others no mark begins calls.
    [x for x in FORMATS if x.bare or (x.begin and x.before.startswith(x.begin))],
    ids=lambda tool_format: tool_format.name,
)
def test_the_grammar_of_strict_tools(
    family: tuple[str, Engine], tool_format: ToolFormat, marked: bool
) -> None:
    """Text is free, a call of a strict tool meets its schema, one of another is any object."""
    _, engine = family
    marks = mark_ids(tool_format, engine) if marked else {}
    use = replace(tools_of(request(tools=[STRICT, TIME]), engine), format=tool_format, marks=marks)
    grammar = Grammar(strict_grammar(use), "tools")

    def call(name: str, arguments: str) -> str:
        return tool_format.spell([(name, json.loads(arguments))])

    def admits(text: str) -> bool:
        ids: list[int] = []
        for part in re.split("(" + "|".join(map(re.escape, marks or "\0")) + ")", text):
            encoded = engine.tokenizer.encode(part, add_special_tokens=False)
            ids += [marks[part]] if part in marks else encoded
        return compiler_of(engine).walk(grammar)._matcher.validate_tokens(ids) == len(ids)

    assert admits("Text, <tool_ca")
    assert admits(call("get_weather", GOOD))
    assert not admits(call("get_weather", BAD))
    assert admits(call("now", BAD))
    assert not admits(call("unknown", "{}"))
    assert admits(GOOD) != tool_format.bare
    if tool_format.before.startswith(tool_format.begin):
        assert admits("Let me see. " + call("get_weather", GOOD))
        assert not admits("Let me see. " + call("get_weather", BAD))
    elif not marks:
        assert not admits(f"Let me see. {tool_format.begin}{BAD}")


def test_strict_is_true_or_false(family: tuple[str, Engine]) -> None:
    _, engine = family
    tool = {**TIME, "function": {**TIME["function"], "strict": "yes"}}
    with pytest.raises(RequestError, match=r"tools\[0\].function.strict: expected true or false"):
        prepare_chat(request(tools=[tool]), engine)
