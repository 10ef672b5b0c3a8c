"""Answers that follow a schema, a regex, a grammar or a choice; and grammars that mean harm."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane import Engine, SamplingParams
from monolane.engine import Constraint
from monolane.errors import RequestError
from monolane.serve._grammar.compiler import MAX_KEPT, Grammar, compiler_of
from monolane.serve._grammar.constraint import GrammarWalk
from monolane.serve._grammar.structured import MAX_CHOICES, MAX_DEPTH, MAX_PROPERTIES, MAX_SOURCE
from monolane.serve._http.prepare import constraint_of
from monolane.serve._openai.body import CompletionRequest
from monolane.serve._tools.grammar import answer_grammar

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo") as engine:
        yield engine


def body(**fields: Any) -> CompletionRequest:
    return CompletionRequest(prompt="x", **fields)


def constraint(request: CompletionRequest, engine: Engine) -> Constraint | None:
    asked = request.asked()
    return constraint_of(asked, answer_grammar(asked.structured, None), engine)


def answer(engine: Engine, seed: int = 0, budget: int = 120, **fields: Any) -> tuple[str, str]:
    """Return (text, finish_reason) of a hot draw, which without a constraint is noise."""
    params = SamplingParams(max_tokens=budget, temperature=1.5, seed=seed)
    got = engine.generate("def f(x):\n", params, constraint(body(**fields), engine))
    return got.text, got.finish_reason


@pytest.mark.parametrize(
    "fields",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "p", "schema": PERSON},
            }
        },
        {"structured_outputs": {"json": PERSON}},
        {"structured_outputs": {"json": json.dumps(PERSON)}},
        {"guided_json": PERSON},
    ],
)
def test_every_spelling_of_a_schema(engine: Engine, fields: dict[str, Any]) -> None:
    for seed in range(5):
        text, reason = answer(engine, seed, **fields)
        assert reason == "stop"
        person = json.loads(text)
        assert list(person) == ["name", "age", "tags"]
        assert 1 <= len(person["name"]) <= 12
        assert 0 <= person["age"] <= 120
        assert set(person["tags"]) <= {"red", "green"}
        assert text == json.dumps(person, ensure_ascii=False)  # on one line, as json.dumps does


def test_one_of_branches_that_exclude_each_other(engine: Engine) -> None:
    named = [
        {"type": "object", "properties": {"k": {"const": k}, k: {"type": "boolean"}}, **closed}
        for k in "ab"
        for closed in ({"required": ["k", k], "additionalProperties": False},)
    ]
    schema = {"oneOf": [*named, {"type": "string", "maxLength": 3}]}
    found = [json.loads(answer(engine, seed, guided_json=schema)[0]) for seed in range(20)]
    assert {type(value) for value in found} == {dict, str}
    assert all(value["k"] in value for value in found if isinstance(value, dict))


def test_a_json_object(engine: Engine) -> None:
    for seed in range(3):
        text, reason = answer(engine, seed, 60, response_format={"type": "json_object"})
        assert text[0] == "{"
        assert reason == "length" or isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    "pattern", [r"[0-9]{3}-[a-f]{2,5}", "(a|bc)d?", r"\d\d/\w", "Zürich|Genève"]
)
def test_a_regex(engine: Engine, pattern: str) -> None:
    for field in ({"guided_regex": pattern}, {"structured_outputs": {"regex": pattern}}):
        text, reason = answer(engine, **field)
        assert (reason, bool(re.fullmatch(pattern, text))) == ("stop", True), text


def test_a_choice(engine: Engine) -> None:
    options = ["yes", "no, never", 'a "quoted" one\n', "yes, always", "</s>"]
    texts = {answer(engine, seed, guided_choice=options)[0] for seed in range(30)}
    assert texts <= set(options)
    assert len(texts) > 1


def test_a_grammar(engine: Engine) -> None:
    lark = 'start: sum "=" NUMBER\nsum: NUMBER ("+" NUMBER)*\nNUMBER: /[1-9][0-9]?/'
    text, reason = answer(engine, structured_outputs={"grammar": lark})
    assert reason == "stop"
    assert re.fullmatch(r"\d+(\+\d+)*=\d+", text)


@pytest.mark.parametrize(
    ("gbnf", "text"),
    [
        (r'root ::= "\u00e9\u0041\U0001F600\u2028\x7e"', "éA😀\u2028~"),
        (r'root ::= [\u00e0-\u00ef]{3} "\u000a\u0022\u005c\u00a0"', 'éàï\n"\\\xa0'),
        (r"root ::= [^\u0000-\u001f\u0061-\u009f\u005d]{2}", "é^"),
        (r'root ::= "\\u00e9"', r"\u00e9"),
    ],
)
def test_characters_of_gbnf_by_their_numbers(engine: Engine, gbnf: str, text: str) -> None:
    assert engine.tokenizer is not None
    walk = constraint(body(grammar=gbnf), engine)
    assert isinstance(walk, GrammarWalk)
    ids = engine.tokenizer.encode(text, add_special_tokens=False)
    assert walk._matcher.validate_tokens(ids) == len(ids)
    # None of the characters may be another.
    ids = engine.tokenizer.encode("z" + text[1:], add_special_tokens=False)
    assert walk._matcher.validate_tokens(ids) < len(ids)


@pytest.mark.parametrize("more", [{}, {"additionalProperties": False}])
def test_the_widest_object_is_followed(engine: Engine, more: dict[str, Any]) -> None:
    properties = {f"k{i}": {"type": "null"} for i in range(MAX_PROPERTIES)}
    schema = {"type": "object", "properties": properties, **more}
    for seed in range(5):
        text, _ = answer(engine, seed, budget=20, guided_json=schema)
        assert text.startswith("{")


def test_white_space_of_ones_own(engine: Engine) -> None:
    ones = {"type": "array", "items": {"enum": [1]}, "maxItems": 5}
    fields = {"json": ones, "whitespace_pattern": r"\n?"}
    # How likely a line break is depends on the model: one in a hundred arrays has to have one.
    texts = [answer(engine, seed, structured_outputs=fields)[0] for seed in range(100)]
    assert all(set(json.loads(text)) <= {1} and " " not in text for text in texts)
    assert any("\n" in text for text in texts)


def test_a_grammar_never_gives_a_control_token(engine: Engine) -> None:
    """A text may spell one; it is written letter by letter."""
    got = engine.generate("x", SamplingParams(), constraint(body(guided_choice=["</s>"]), engine))
    assert got.text == "</s>"
    assert not set(got.token_ids) & engine.tokenizer.special_ids


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type: expected text, json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: expected an"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
            "response_format.json_schema.schema: expected a JSON schema, got list",
        ),
        ({"structured_outputs": {"xml": 1}}, "structured_outputs: expected json, .* got 'xml'"),
        ({"guided_json": "{"}, "guided_json: expected a JSON schema"),
        ({"guided_regex": 5}, "guided_regex: expected text, got int"),
        ({"guided_regex": ""}, "guided_regex: expected text, got an empty one"),
        ({"guided_choice": []}, f"guided_choice: expected a list of 1 to {MAX_CHOICES} texts"),
        ({"guided_choice": ["a", ""]}, "guided_choice: expected texts, none of them empty"),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "response_format, guided_regex: expected one of them, got 2",
        ),
        ({"guided_regex": "(("}, "guided_regex: cannot be followed: .*unclosed group"),
        ({"guided_regex": r"(a)\1"}, "guided_regex: .*backreferences are not supported"),
        ({"guided_grammar": "start: ("}, "guided_grammar: cannot be followed"),
        ({"guided_grammar": "start: foo"}, 'guided_grammar: .*unknown name: "foo"'),
        ({"guided_grammar": "start: start"}, "guided_grammar: .*no text meets it"),
        ({"guided_grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}, "too deeply nested"),
        ({"guided_json": {"type": "foo"}}, "guided_json: .*Invalid type: foo"),
        ({"guided_json": {"type": 5}}, "guided_json: .*type must be a string"),
        ({"guided_json": False}, "expected one that some value meets"),
        ({"guided_json": {"$ref": "#"}}, "guided_json: .*no text meets it"),
        ({"guided_json": {"$ref": "http://example.com/a.json"}}, "guided_json: .*not present"),
        (
            {"guided_json": {"not": {}}},
            '^guided_json: cannot be followed: Unimplemented keys: \\["not"\\]$',
        ),
        ({"guided_json": {"type": "string", "pattern": "(("}}, "guided_json: .*unclosed group"),
        *(
            ({"guided_json": {key: value}}, f'guided_json: .*Unimplemented keys: \\["{key}"\\]')
            for key, value in (
                ("if", {}),
                ("contains", {"const": 1}),
                ("uniqueItems", True),
                ("dependentSchemas", {"a": {"required": ["b"]}}),
            )
        ),
        ({"guided_json": {"type": "string", "format": "regex"}}, "guided_json: .*format: regex"),
        (
            {"guided_json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
            "guided_json: .*oneOf constraints are not supported",
        ),
        (
            {"guided_json": {"allOf": [{"type": "string"}, {"type": "null"}]}},
            "guided_json: .*Unsatisfiable",
        ),
        ({"guided_json": {"x-guidance": {"whitespace_pattern": "(("}}}, "guided_json: .*unclosed"),
        ({"guided_regex": "x" * (MAX_SOURCE + 1)}, "guided_regex: expected at most 131072"),
        *(
            ({"guided_regex": regex}, "guided_regex: expected regexes of at most 200000 characters")
            for regex in (
                "(a{1000}){1000}",
                "x((ab?){999}c){1000,}|y",
                "(?:(?P<n>é{400}){400}",
                "(?x)(a{1000} ) #(\n{1000}",
                "(" * 9 + "[b]" + "){999}" * 9,
            )
        ),
        *(
            ({"guided_json": {"items": schema}}, "guided_json: expected regexes of at most 200000")
            for schema in (
                {"pattern": "(a{1000}){1000}"},
                {"patternProperties": {"(a{1000}){1000}": {}}},
                {"anyOf": [{"pattern": f"(a{{100}}){{100}}{i}"} for i in range(20)]},
            )
        ),
        ({"guided_json": {"enum": ["x" * MAX_SOURCE]}}, "guided_json: expected at most 131072"),
        (
            {"guided_json": {"properties": {f"k{i}": {} for i in range(MAX_PROPERTIES + 1)}}},
            "guided_json: expected at most 1000 properties in an object, got 1001",
        ),
    ],
)
def test_what_cannot_be_followed_is_named(
    engine: Engine, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        constraint(body(**fields), engine)
    assert "\n" not in str(caught.value)
    assert answer(engine, guided_choice=["fine"]) == ("fine", "stop")


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def test_depth_has_a_bound() -> None:
    assert body(guided_json=nested(MAX_DEPTH - 1)).structured()
    for depth in (MAX_DEPTH, 10_000):
        with pytest.raises(RequestError, match="guided_json: expected at most 64 levels, got more"):
            body(guided_json=nested(depth)).structured()


HARMFUL: dict[str, dict[str, Any]] = {
    "nested repeats": {"guided_regex": "(a+)+b"},
    "many repeats": {"guided_regex": "a{1000000}"},
    "repeats of repeats": {"guided_regex": "((a{1,1000}){1,1000}){1,1000}"},
    "unicode classes": {"guided_regex": r"(\p{L}{1,200}){1,100}"},
    "many states": {"guided_regex": "(.*a.{14}x)|(.*b.{15}y)"},
    "ambiguity": {"guided_grammar": 'start: a a a a\na: a a | "x" | ""'},
    "recursion": {"guided_json": {"type": "object", "properties": {"c": {"$ref": "#"}}}},
    "many items": {"guided_json": {"type": "array", "minItems": 10**9, "items": {"const": 1}}},
    "long text": {"guided_json": {"type": "string", "minLength": 10**9}},
    "products": {
        "guided_json": {
            "allOf": [
                {"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(4)]} for i in range(10)
            ]
        }
    },
    "wide": {"guided_json": {"properties": {f"k{i}": {"type": "string"} for i in range(1000)}}},
    "many branches": {
        "guided_json": {
            "anyOf": [{"type": "object", "properties": {f"k{i}": {}}} for i in range(900)]
        }
    },
    "long choice": {"guided_choice": [f"{i} {'x' * 100}" for i in range(1000)]},
}


@pytest.mark.parametrize("name", HARMFUL)
def test_harmful_grammars_are_bounded_in_time(engine: Engine, name: str) -> None:
    """Refused or followed, within a second or so, and the next request is served."""
    begin = time.process_time()
    try:
        text, _ = answer(engine, budget=20, **HARMFUL[name])
        assert text
    except RequestError as error:
        assert re.search("cannot be followed|expected regexes of at most", str(error))
    # The processor's time, which no neighbour and no pause adds to; none took longer than 0.3 s,
    # and what has no bound takes minutes and gigabytes.
    assert time.process_time() - begin < 10
    assert answer(engine, guided_choice=["fine"]) == ("fine", "stop")


def test_the_cache_is_bounded_and_keeps_what_is_used(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars, compiled = compiler_of(engine), []
    compile_one = grammars._compile

    def counted(grammar: Grammar) -> Any:
        compiled.append(grammar.text)
        return compile_one(grammar)

    monkeypatch.setattr(grammars, "_compile", counted)
    favourite = body(guided_choice=["favourite"])
    for i in range(3 * MAX_KEPT):
        constraint(body(guided_json={"const": i}), engine)
        constraint(favourite, engine)
        assert len(grammars._kept) <= MAX_KEPT
    assert len(compiled) == len(set(compiled)) == 3 * MAX_KEPT + 1


def test_answers_of_one_grammar_do_not_share_their_place(engine: Engine) -> None:
    first, second = (constraint(body(guided_choice=["abcdefgh"]), engine) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.step(None).forced == second.step(None).forced != ()


def test_a_model_without_tokenizer_says_so(golden: Any) -> None:
    with (
        Engine.load(golden) as engine,
        pytest.raises(RequestError, match="has no tokenizer, so its answers cannot be made"),
    ):
        constraint(body(guided_choice=["a"]), engine)


names = st.text("abcxyz_", min_size=1, max_size=6)
leaves = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer", "minimum": -5, "maximum": 70},
        {"type": "string", "maxLength": 6},
        {"enum": ["red", 'say "hi"', "// # %json {}", 7, None]},
        {"type": "string", "pattern": "^[a-c]{2,4}$"},
    ]
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items, "maxItems": 2}),
        st.dictionaries(names, inner, min_size=1, max_size=3).map(
            lambda p: {
                "type": "object",
                "properties": p,
                "required": list(p),
                "additionalProperties": False,
            }
        ),
    ),
    max_leaves=4,
)


def meets(value: Any, schema: dict[str, Any]) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "object":
        return list(value) == list(schema["properties"]) and all(
            meets(value[key], part) for key, part in schema["properties"].items()
        )
    if kind == "array":
        return len(value) <= 2 and all(meets(one, schema["items"]) for one in value)
    if kind == "string":
        pattern = schema.get("pattern", "^.{0,6}$")
        return isinstance(value, str) and bool(re.search(pattern, value, re.DOTALL))
    if kind == "integer":
        return type(value) is int and -5 <= value <= 70
    return value is None if kind == "null" else isinstance(value, bool)


@settings(max_examples=25, deadline=None)
@given(schema=schemas, seed=st.integers(0, 99))
def test_whole_answers_meet_their_schema(engine: Engine, schema: dict[str, Any], seed: int) -> None:
    text, reason = answer(engine, seed, budget=400, guided_json=schema)
    assert reason == "stop"
    assert meets(json.loads(text), schema), text
