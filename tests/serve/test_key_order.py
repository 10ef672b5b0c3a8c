"""Keys of objects under a schema: those that need not be there may come anywhere."""

import json
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest

from monolane import Engine
from monolane.serve._grammar.compiler import Grammar, compiler_of, schema_rules

ITEM = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}}
TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "of": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, tuple[Any, list[Any]]] = {
    "optional": (ITEM | {"additionalProperties": False}, [{"a": 1, "b": True}, {}, {"b": False}]),
    "open": (ITEM, [{"c": None, "b": True, "d": [1], "a": 2}, {"x": {"a": "any"}}]),
    "typed rest": (
        ITEM | {"additionalProperties": {"type": "string"}},
        [{"c": "x", "a": 2}, {"aa": "y", "b": True}],
    ),
    "nested": (
        {"type": "object", "properties": {"in": ITEM, "list": {"type": "array", "items": ITEM}}},
        [{"in": {"b": True, "a": 1}, "list": [{"b": True, "a": 1}, {}]}, {"list": []}],
    ),
    "branches": (
        {"type": "object", "properties": {"x": {"anyOf": [ITEM, {"type": "null"}]}, "y": {}}},
        [{"x": {"b": True, "a": 1}, "y": 0}, {"x": None}],
    ),
    "references": (
        {"$ref": "#/$defs/Tree", "$defs": {"Tree": TREE}},
        [{"name": "a", "of": [{"of": [], "name": "b"}]}],
    ),
    "pattern": (
        ITEM | {"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
        [{"x-1": "é/", "b": True, "x-2": "", "a": 1}, {"x-": "a"}, {"b": True, "a": 2}],
    ),
    "pattern and rest": (
        ITEM
        | {
            "patternProperties": {"^[^/.]+/v\\d$": {"type": "string"}},
            "additionalProperties": {"type": "null"},
        },
        [{"p/v2": "x", "b": True, "p/v": None, "a": 1}, {"é": None, "a": 1}],
    ),
    "quotes": (
        {"type": "object", "properties": {'a"/\\b': {"type": "integer"}, "é|": {"type": "null"}}},
        [{'a"/\\b': 1, "é|": None}, {"other": 1}],
    ),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo") as engine:
        yield engine


def follows(engine: Engine, schema: Any, text: str) -> bool:
    assert engine.tokenizer is not None
    grammar = Grammar("\n".join(schema_rules("start", schema)), "schema")
    matcher = compiler_of(engine).walk(grammar)._matcher
    tokens = engine.tokenizer.encode(text, add_special_tokens=False)
    taken = sum(bool(matcher.consume_token(token)) for token in tokens)
    return taken == len(tokens) and matcher.is_accepting()


def shuffled(value: Any) -> Iterator[Any]:
    """Yield an object with its members in every order."""
    for items in permutations(value.items()):
        yield dict(items)


@pytest.mark.parametrize("name", SCHEMAS)
def test_optional_keys_come_in_any_order(engine: Engine, name: str) -> None:
    schema, values = SCHEMAS[name]
    for value in values:
        for one in shuffled(value):
            text = json.dumps(one, ensure_ascii=False)
            wanted = schema.get("required") is None or next(iter(one)) == next(iter(value))
            assert follows(engine, schema, text) == wanted or name == "references", text


def test_required_keys_keep_their_order_and_none_comes_twice(engine: Engine) -> None:
    """Clients have a model reason before it answers."""
    names = ("why", "note", "answer", "more")
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "required": ["why", "answer"],
        "additionalProperties": False,
    }
    for keys in (
        *permutations(names),
        *permutations(names, 3),
        *permutations(names, 2),
        ("why", "answer", "note", "note"),
        ("why", "why", "answer"),
    ):
        text = "{" + ", ".join(f'"{key}": 1' for key in keys) + "}"
        needed = [key for key in keys if key in ("why", "answer")]
        meets = needed == ["why", "answer"] and len({*keys}) == len(keys)
        assert follows(engine, schema, text) == meets, text


def test_references_into_the_schema_itself_are_followed(engine: Engine) -> None:
    """Parts of it do not have them: its keys come in its own order then."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "integer"}},
            "b": {"$ref": "#/properties/a"},
            "c": {"$ref": "#"},
        },
        "additionalProperties": False,
    }
    for text in ('{"b": [1]}', '{"c": {"a": [1], "c": {}}}'):
        assert follows(engine, schema, text), text
    for text in ('{"b": 1}', '{"c": 1}', '{"c": {"d": 1}}'):
        assert not follows(engine, schema, text), text


def test_what_does_not_meet_the_schema_is_not_written(engine: Engine) -> None:
    schema = ITEM | {"additionalProperties": {"type": "string"}}
    for text in ('{"a": "x"}', '{"b": 1}', '{"c": 1}', '{"a": 1, "a": 2}', '{"a": 1,}', '{"c"}'):
        assert not follows(engine, schema, text), text


def test_a_key_of_a_pattern_has_its_values_alone(engine: Engine) -> None:
    anchored = ITEM | {"patternProperties": {"^x-": {"type": "string"}}}
    for more in (False, {"type": "null"}):
        schema = anchored | {"additionalProperties": more}
        for text in ('{"x-1": 1}', '{"x-1": null}', r'{"\u0078-1": null}', '{"a": "x"}'):
            assert not follows(engine, schema, text), text
        assert not follows(engine, schema, '{"ax-": "x"}')


@pytest.mark.parametrize(
    "patterns",
    [
        {"^x": {"type": "string"}, "^y": {"type": "string"}},  # they might overlap
        {"^[ac]": {"type": "integer"}},  # it holds of a listed key, too
        {"^x|y$": {"type": "string"}},
        {"(?i)x": {"type": "string"}},
    ],
)
def test_other_patterns_are_the_compilers(patterns: Any) -> None:
    (line,) = schema_rules("start", ITEM | {"patternProperties": patterns})
    assert line.startswith("start: %json ")


def test_where_all_keys_are_required_the_compiler_writes_them() -> None:
    schema = {**ITEM, "required": ["a", "b"], "additionalProperties": False}
    (line,) = schema_rules("start", schema)
    assert line.startswith("start: %json ")
