"""Keywords of a schema that are said in others: the same values meet both."""

import itertools
import json
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jsonschema_rs
import pydantic
import pytest

from monolane import Engine
from monolane.errors import RequestError
from monolane.serve._grammar.compiler import Grammar, compiler_of, schema_rules
from monolane.serve._grammar.schema_rewrite import MAX_LISTS, rewritten
from monolane.serve._tools.grammar import calls_grammar
from monolane.serve._tools.request import read_tools

INTEGER = {"type": "integer"}
_FAR = 10**500
LISTS = [list(x) for n in range(4) for x in itertools.product((1, "a", 2), repeat=n)]
OBJECTS = [
    dict(zip(names, values, strict=True))
    for n in range(4)
    for names in itertools.combinations("abc", n)
    for values in itertools.product((1, "x"), repeat=n)
]
CASES = [
    ({"type": "array", "items": {"enum": [1, "a"]}, "uniqueItems": True}, LISTS),
    (
        {"type": "array", "items": {"enum": [1, "a", 2]}, "uniqueItems": True, "minItems": 2},
        LISTS,
    ),
    ({"type": "array", "items": {"enum": [1, "a"]}, "uniqueItems": False}, LISTS),
    ({"type": "array", "maxItems": 1, "uniqueItems": True}, LISTS),
    ({"type": "array", "contains": {"const": "a"}, "maxItems": 3}, LISTS),
    (
        {
            "type": "array",
            "items": INTEGER,
            "contains": {"minimum": 2},
            "maxItems": 3,
            "minItems": 2,
        },
        LISTS,
    ),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, OBJECTS),
    (
        {
            "type": "object",
            "propertyNames": {"pattern": "^[ab]$"},
            "additionalProperties": INTEGER,
        },
        OBJECTS,
    ),
    ({"type": "object", "dependentRequired": {"a": ["b"], "c": ["a"]}}, OBJECTS),
    (
        {
            "type": "object",
            "properties": {"a": INTEGER, "b": INTEGER},
            "required": ["a"],
            "dependentRequired": {"a": ["b"]},
            "additionalProperties": False,
        },
        OBJECTS,
    ),
    ({"type": "object", "propertyNames": {"type": "string"}}, OBJECTS),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo") as engine:
        yield engine


def follows(engine: Engine, schema: Any, value: Any) -> bool:
    """Tell whether the grammar of a schema takes a value's JSON, and may end there."""
    assert engine.tokenizer is not None
    walk = compiler_of(engine).walk(Grammar("\n".join(schema_rules("start", schema)), "schema"))
    matcher = walk._matcher
    tokens = engine.tokenizer.encode(json.dumps(value), add_special_tokens=False)
    taken = sum(bool(matcher.consume_token(token)) for token in tokens)
    return taken == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(("schema", "values"), CASES)
def test_the_same_values_meet_both(engine: Engine, schema: Any, values: list[Any]) -> None:
    before = json.dumps(schema)
    new = rewritten(schema)
    assert json.dumps(schema) == before
    assert new != schema
    met = 0
    for value in values:
        wanted = jsonschema_rs.is_valid(schema, value)
        assert jsonschema_rs.is_valid(new, value) == wanted, value
        met += wanted
    assert 0 < met < len(values) or schema.get("uniqueItems") is not True
    # And the grammar says so, too, of a few.
    for value in values[:: max(1, len(values) // 12)]:
        wanted = jsonschema_rs.is_valid(schema, value)
        assert follows(engine, schema, value) == wanted, value


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        {"type": "array", "items": {"enum": list(range(6))}, "uniqueItems": True},
        {"type": "array", "items": {"enum": [1, True]}, "uniqueItems": True},
        {"type": "array", "contains": {"const": 1}},
        {"type": "array", "contains": {"const": 1}, "maxItems": 3, "minContains": 2},
        {"type": "object", "properties": {"a": {}}, "propertyNames": {"pattern": "a"}},
        {"type": "object", "propertyNames": {"minLength": 2}},
        {"type": "object", "dependentRequired": {x: ["y"] for x in "abcde"}},
    ],
)
def test_what_cannot_be_said_is_refused(engine: Engine, schema: Any) -> None:
    with pytest.raises(RequestError, match="Unimplemented keys"):
        compiler_of(engine).walk(Grammar("\n".join(schema_rules("start", schema)), "schema"))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "dependentRequired": {"a": ["b"]}, "required": 5},
        {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": [1]},
        {"type": "object", "dependentRequired": {"a": [["b"]]}},
        {"type": "object", "propertyNames": {"pattern": ["x"]}},
        {"type": "object", "propertyNames": {"enum": 5}},
        {"type": "object", "propertyNames": {"enum": None}},
    ],
)
def test_a_malformed_schema_is_refused(engine: Engine, schema: Any) -> None:
    with pytest.raises(RequestError):
        compiler_of(engine).walk(Grammar("\n".join(schema_rules("start", schema)), "schema"))


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = pydantic.Field(ge=0, le=9)


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    friend: "Pet | None" = None


class Pet(pydantic.BaseModel):
    animal: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


class One(pydantic.BaseModel):
    version: Literal[1]
    a: bool


class Two(pydantic.BaseModel):
    version: Literal[2, 3]
    b: bool


class Versioned(pydantic.BaseModel):
    item: Annotated[One | Two, pydantic.Field(discriminator="version")]


def test_one_of_with_tags(engine: Engine) -> None:
    """Tags that are numbers, and pydantic's with a default, which its schema lets be left out."""
    numbers = Versioned.model_json_schema()
    assert "oneOf" in json.dumps(numbers)
    for value, meets in (
        ({"item": {"version": 1, "a": True}}, True),
        ({"item": {"version": 3, "b": True}}, True),
        ({"item": {"version": 1, "b": True}}, False),
        ({"item": {"version": 4, "b": True}}, False),
    ):
        assert follows(engine, numbers, value) == meets, value
    defaults = Pet.model_json_schema()
    rex = {"animal": {"kind": "dog", "friend": None}}
    for value, meets in (
        ({"animal": {"kind": "cat", "lives": 9}}, True),
        ({"animal": {"kind": "dog", "friend": rex}}, True),
        ({"animal": {"kind": "cat", "lives": 10}}, False),
        ({"animal": {"lives": 9}}, False),  # it has to be written
    ):
        assert follows(engine, defaults, value) == meets, value


@pytest.mark.parametrize(
    "tags",
    [
        [{"const": 1}, {"const": 1}],
        [{"const": 1}, {"enum": [2, 1]}],
        [{"const": 1}, {"type": "integer"}],
        [{"const": 1}, {"const": 1.0}],
        [{"enum": []}, {"const": 1}],
    ],
)
def test_tags_that_do_not_tell_apart(engine: Engine, tags: list[Any]) -> None:
    branches = [{"type": "object", "properties": {"a": tag}, "required": ["a"]} for tag in tags]
    assert rewritten({"oneOf": branches}) == {"oneOf": branches}
    plain = [{"properties": {"a": {"const": i}}, "required": ["a"]} for i in range(2)]
    assert rewritten({"oneOf": plain}) == {"oneOf": plain}  # 5 meets both


def test_references_in_branches_still_lead_to_their_definitions(engine: Engine) -> None:
    schema = {
        "type": "array",
        "maxItems": 2,
        "contains": {"$ref": "#/$defs/A"},
        "$defs": {"A": {"type": "integer"}},
    }
    for value in ([1], ["x", 1], ["x"], []):
        assert follows(engine, schema, value) == jsonschema_rs.is_valid(schema, value)


def nested(keyword: str, depth: int) -> Any:
    schema: Any = INTEGER
    for _ in range(depth):
        if keyword == "contains":
            schema = {"type": "array", "items": schema, "contains": True, "maxItems": 16}
        else:
            needs = {name: ["x"] for name in "abcd"}
            schema = {"type": "object", "properties": {"p": schema}, "dependentRequired": needs}
    return schema


@pytest.mark.parametrize("keyword", ["contains", "dependentRequired"])
def test_copies_of_copies_are_refused_before_they_are_written(keyword: str) -> None:
    """Of 20 levels they would be more characters than any memory holds."""
    assert schema_rules("start", nested(keyword, 1))
    with pytest.raises(RequestError, match="schema: expected at most 262144 characters"):
        schema_rules("start", nested(keyword, 20))


def test_the_lists_of_all_unique_items_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def counted(values: list[Any], size: int) -> list[tuple[Any, ...]]:
        made.append(0)
        return list(itertools.permutations(values, size))

    monkeypatch.setattr("monolane.serve._grammar.schema_rewrite.permutations", counted)
    unique = {"type": "array", "items": {"enum": list(range(5))}, "uniqueItems": True}
    lists = sum(math.perm(5, size) for size in range(6))
    for count in (MAX_LISTS // lists, 1000):
        made.clear()
        schema = {"anyOf": [{"properties": {"p": unique}} for _ in range(count)]}
        if count == 1000:
            with pytest.raises(RequestError, match="at most 32768 lists of unique items in all"):
                rewritten(schema)
        else:
            assert len(rewritten(schema)["anyOf"][-1]["properties"]["p"]["enum"]) == lists
        assert len(made) * lists <= MAX_LISTS * 6  # sizes of a list: none is made for nothing


def test_the_schemas_of_many_tools_are_bounded_together(engine: Engine) -> None:
    parameters = {"type": "object", "properties": {"p": nested("dependentRequired", 2)}}
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": parameters}}
        for i in range(60)
    ]
    use = read_tools(tools, "required", None, engine)
    assert use is not None
    with pytest.raises(RequestError, match="tools: expected at most 1048576 characters"):
        calls_grammar(use)


def test_names_of_properties_are_no_keywords() -> None:
    schema = {"type": "object", "properties": {"uniqueItems": {"type": "boolean"}}}
    assert rewritten(schema) == schema
    assert rewritten({"enum": [{"uniqueItems": False}]}) == {"enum": [{"uniqueItems": False}]}


@pytest.mark.parametrize(
    ("bounds", "lost"),
    [
        ({"minimum": -(1 << 63), "maximum": (1 << 63) - 1}, 1023),  # int64
        ({"minimum": 0, "maximum": (1 << 64) - 1}, 1 << 64),  # uint64: as far as int64 goes
        ({"maximum": (1 << 53) + 1}, 1),
        ({"maximum": (1 << 53) + 3}, 1),
        ({"minimum": (1 << 53) + 1, "maximum": (1 << 53) + 8}, 1),
        ({"exclusiveMaximum": (1 << 53) + 4}, 1),
        ({"exclusiveMinimum": -(1 << 53) - 4}, 1),
        ({"maximum": (1 << 53) + 5, "exclusiveMaximum": (1 << 53) + 5}, 2),
        ({"minimum": 5, "maximum": 10**400}, 10**400),  # as far as int64 goes, too
    ],
)
def test_bounds_past_the_compilers_numbers_hold(
    engine: Engine, bounds: dict[str, int], lost: int
) -> None:
    """All that is written is inside; what cannot be written is near a bound."""
    least = max(bounds.get("minimum", -_FAR), bounds.get("exclusiveMinimum", -_FAR) + 1)
    most = min(bounds.get("maximum", _FAR), bounds.get("exclusiveMaximum", _FAR) - 1)
    for near in (0, 1 << 53, 1 << 63, *bounds.values()):
        for value in range(near - 9, near + 10):
            taken = follows(engine, INTEGER | bounds, value)
            assert not taken or least <= value <= most, value
            if not taken and least <= value <= most:
                assert min(value - least, most - value) < lost, value


def test_bounds_beyond_all_numbers_are_refused() -> None:
    with pytest.raises(RequestError, match="bounds that leave numbers"):
        schema_rules("start", INTEGER | {"maximum": -(10**30)})
