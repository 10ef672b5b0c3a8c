"""Tools of models that write calls in XML: values of several types, and calls that were cut off."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from monolane import Engine
from monolane.errors import RequestError
from monolane.serve._http.prepare import chat_prompt, prepare_chat
from monolane.serve._http.request import ChatAsked
from monolane.serve._openai.body import ChatRequest
from monolane.serve._tools.types import ANY, allowed_types

from .families import FAMILIES, write_family

USER = {"role": "user", "content": "x"}


@pytest.fixture(scope="module", params=["qwen3-coder", "qwen3.5"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    folder = write_family(tmp_path_factory.mktemp("family"), FAMILIES[request.param])
    with Engine.load(folder) as engine:
        yield engine


def ask(parameters: Any, strict: bool = False, **fields: Any) -> ChatAsked:
    function = {"name": "f", "parameters": parameters, "strict": strict}
    tools = [{"type": "function", "function": function}]
    return ChatRequest(messages=[USER], tools=tools, max_tokens=60, **fields).asked()


@pytest.mark.parametrize("more", [{"tool_choice": "required"}, {"strict": True}])
def test_a_value_of_several_types_is_written_in_json(engine: Engine, more: Any) -> None:
    """A text without quotes could not be told from null there."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": ["string", "null"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    (choice,) = prepare_chat(ask(schema, **more), engine)
    walk = choice.stream._job.constraint
    assert walk is not None
    assert engine.tokenizer is not None
    thought = "" if choice.stream._job.params.thinking is None else "Hm.</think>\n\n"
    for value, fits in (("b", True), (None, True), (5, False)):
        call = json.dumps({"name": "f", "arguments": {"a": value}})
        text = f"{thought}<tool_call>\n{call}\n</tool_call>"
        ids = engine.tokenizer.encode(text, add_special_tokens=False, parse_special=True)
        assert (walk._matcher.validate_tokens(ids) == len(ids)) == fits, text


@pytest.mark.parametrize("required", [5, [5], {"a": 1}])
def test_a_schema_that_is_none_is_named(engine: Engine, required: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": required}
    with pytest.raises(RequestError, match="required"):
        prepare_chat(ask(schema, tool_choice="required"), engine)


@pytest.mark.parametrize("values", [5, None])
def test_a_list_of_values_that_is_none_is_named(engine: Engine, values: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "enum": values}}}
    with pytest.raises(RequestError, match="tools: cannot be followed"):
        prepare_chat(ask(schema, tool_choice="required"), engine)


@pytest.mark.parametrize("arguments", ['{"cmd": "l', "[1, 2]", "7", '"ls"'])
def test_a_call_that_was_cut_off_is_shown_again(engine: Engine, arguments: str) -> None:
    """Its arguments are no object, which the template goes through one by one."""
    function = {"name": "Bash", "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    chat = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "bad JSON"},
    ]
    ids, _ = chat_prompt(ChatRequest(messages=chat).asked(), None, engine)
    assert engine.tokenizer is not None
    text = engine.tokenizer.decode(ids, skip_special_tokens=False)
    shown = json.loads(arguments) if arguments == '"ls"' else arguments
    assert f"<function=Bash>\n<parameter=arguments>\n{shown}\n</parameter>" in text
    assert "bad JSON" in text


ROOT = {
    "$defs": {
        "Text": {"type": "string"},
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "null"}]},
        "a/b": {"enum": ["x", 1, 2.5]},
    }
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, ANY),
        (True, ANY),
        ({"type": 5}, ANY),
        ({"type": "number"}, {"number", "integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"type": "string", "oneOf": [{"type": "null"}, {"minLength": 1}]}, {"string"}),
        ({"allOf": [{"$ref": "#/$defs/Text"}]}, {"string"}),
        ({"$ref": "#/$defs/Loop"}, {"null"}),
        ({"$ref": "#/$defs/a~1b"}, {"string", "integer", "number"}),
        ({"$ref": "#/$defs/None"}, ANY),
        ({"$ref": "https://a.example/b"}, ANY),
        ({"const": [1]}, {"array"}),
        ({"const": {}}, {"object"}),
        ({"enum": [True, 2.0, 10**400]}, {"boolean", "integer"}),
        ({"const": math.inf}, {"number"}),
    ],
)
def test_the_types_that_a_schema_allows(schema: Any, types: Any) -> None:
    assert allowed_types(schema, ROOT) == types


def test_references_are_followed_once_each() -> None:
    """Else twenty of them, each twice within the next, were a million."""
    names = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    root = {"$defs": names | {"d40": {"type": "string"}}}
    assert allowed_types({"$ref": "#/$defs/d0"}, root) == {"string"}
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(900)}
    assert allowed_types({"$ref": "#/$defs/d0"}, {"$defs": chain}) == ANY
