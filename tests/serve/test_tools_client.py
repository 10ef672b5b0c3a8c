"""Tools and schemas with the official client, against a server process."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 8},
                    "days": {"enum": [1, 2]},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
ASK: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "How is the weather?"}],
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 200,
}


@pytest.fixture
def client(demo_server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("seed", range(4))
def test_a_call_whole_and_streamed(client: openai.OpenAI, seed: int) -> None:
    whole = client.chat.completions.create(**ASK, seed=seed)
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert call.id.startswith("call_")
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == ({"city", "days"} if call.function.name == "get_weather" else set())

    chunks = list(client.chat.completions.create(**ASK, seed=seed, stream=True))
    parts = [part for c in chunks for part in c.choices[0].delta.tool_calls or ()]
    first, later = parts[0], parts[1:]
    assert (first.index, first.type) == (0, "function")
    assert first.id
    assert first.function is not None
    assert first.function.name == call.function.name
    for part in later:
        assert (part.index, part.id, part.type) == (0, None, None)
        assert part.function is not None
        assert part.function.name is None
    assert all(len(c.choices[0].delta.tool_calls or ()) <= 1 for c in chunks)
    said = "".join(part.function.arguments or "" for part in parts if part.function)
    assert said == call.function.arguments
    assert not any(c.choices[0].delta.content for c in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_clients_own_accumulator_takes_the_stream(client: openai.OpenAI) -> None:
    ask = {**ASK, "seed": 1, "tool_choice": {"type": "function", "function": {"name": "now"}}}
    with client.chat.completions.stream(**ask) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    calls = final.choices[0].message.tool_calls or ()
    assert [(call.function.name, call.function.arguments) for call in calls] == [("now", "{}")]


def test_a_whole_turn_with_a_result(client: openai.OpenAI) -> None:
    call = client.chat.completions.create(**ASK, seed=2).choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "sunny"}
    messages = [*ASK["messages"], call.model_dump(exclude_none=True), result]
    reply = client.chat.completions.create(
        **ASK | {"messages": messages, "tool_choice": "auto", "max_tokens": 8}
    )
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "length"


def test_a_call_that_is_cut_off_ends_with_length_and_looks_it(client: openai.OpenAI) -> None:
    ask = {**ASK, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
    whole = client.chat.completions.create(**ask, seed=2)
    assert whole.usage is not None
    reply = client.chat.completions.create(
        **ask | {"max_tokens": whole.usage.completion_tokens - 12}, seed=2
    )
    assert reply.choices[0].finish_reason == "length"
    (call,) = reply.choices[0].message.tool_calls or ()
    with pytest.raises(json.JSONDecodeError):
        json.loads(call.function.arguments)


class Pet(pydantic.BaseModel):
    kind: Literal["cat", "dog"]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)
    pets: list[Pet] = pydantic.Field(min_length=1, max_length=2)


def test_parse_gives_an_object(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(
        model="demo",
        messages=[{"role": "user", "content": "Who is it?"}],
        response_format=Person,
        seed=5,
        max_tokens=200,
    )
    person = reply.choices[0].message.parsed
    assert isinstance(person, Person)
    assert reply.choices[0].finish_reason == "stop"


def test_bias_and_guided_choice(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "demo", "prompt": "x = ", "temperature": 0}
    free = client.completions.create(**ask, max_tokens=1, logprobs=1)
    lead = client.post("../tokenize", cast_to=object, body={"prompt": free.choices[0].text})
    first = lead["tokens"][-1]  # type: ignore[index]
    banned = client.completions.create(**ask, max_tokens=1, logit_bias={str(first): -100})
    assert banned.choices[0].text != free.choices[0].text
    for choices in (["yes"], ["no"]):
        told = client.completions.create(**ask, extra_body={"guided_choice": choices})
        assert told.choices[0].text == choices[0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"tool_choice": "none", "extra_body": {"guided_regex": "(("}}, "unclosed group"),
        ({"tool_choice": "none", "extra_body": {"guided_json": {"type": "foo"}}}, "Invalid type"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ],
)
def test_what_is_wrong_is_a_400_and_the_next_request_is_served(
    client: openai.OpenAI, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASK | fields)
    assert said in str(caught.value)
    assert client.chat.completions.create(**ASK, seed=0).choices[0].message.tool_calls


def test_a_grammar_that_grows_too_large_ends_its_request_alone(client: openai.OpenAI) -> None:
    harmful = {"guided_regex": r"(\p{L}{1,200}){1,100}"}
    with pytest.raises(openai.APIError):
        client.chat.completions.create(**ASK | {"tool_choice": "none"}, extra_body=harmful)
    assert client.chat.completions.create(**ASK, seed=0).choices[0].message.tool_calls
