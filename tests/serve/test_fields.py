"""No field of a request that changes the answer is ignored: honoured, harmless or refused."""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import completion_create_params
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
)
from openai.types.chat import (
    completion_create_params as chat_create_params,
)

from monolane import Engine, SamplingParams
from monolane.serve._grammar.structured import EXTRA_FIELDS
from monolane.serve._http.fields import HARMLESS, REFUSED
from monolane.serve._openai.body import ChatRequest, CompletionRequest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "def f(x):"}]}
PROMPT = {"prompt": "def f(x):"}
OPENAI_CHAT = chat_create_params.CompletionCreateParamsBase.__annotations__
OPENAI_TEXT = completion_create_params.CompletionCreateParamsBase.__annotations__


@pytest.fixture(scope="module")
def client(demo_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_server.url, timeout=120) as client:
        yield client


def post(client: httpx.Client, path: str, **fields: Any) -> Any:
    start = HELLO if path == CHAT else PROMPT
    reply = client.post(path, json={"max_tokens": 8, "temperature": 0} | start | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


OTHERS = tomllib.loads(Path(__file__).with_name("other_fields.toml").read_text())


def named(kind: str) -> set[str]:
    """Return the fields of the other servers' requests, of a kind and of both."""
    tables = (table.get(part, "") for table in OTHERS.values() for part in ("both", kind))
    return set(" ".join(tables).split())


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (ChatRequest, named("chat").union(OPENAI_CHAT)),
        (CompletionRequest, named("completion").union(OPENAI_TEXT)),
    ],
)
def test_every_field_of_other_servers_is_accounted_for(model: Any, names: set[str]) -> None:
    known = {*model.model_fields, *EXTRA_FIELDS, *HARMLESS, *REFUSED}
    assert len(names) > 90
    assert not names - known
    assert not HARMLESS & (REFUSED.keys() | set(EXTRA_FIELDS) | model.model_fields.keys())


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_field_is_named_unless_it_changes_nothing(
    client: httpx.Client, name: str
) -> None:
    path = TEXT if name not in CompletionRequest.model_fields else CHAT
    start = PROMPT if path == TEXT else HELLO
    reply = client.post(path, json=start | {"max_tokens": 1, name: "no such value"})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["message"].startswith(f"{name}: not supported; expected null")
    assert error["param"] == name
    for value in (None, *REFUSED[name]):
        post(client, path, max_tokens=1, **{name: value})


@pytest.mark.parametrize(
    ("field", "value", "whole"),
    [
        ("grammar", 'root ::= "yes" | "no"', "yes|no"),
        ("grammar", 'root ::= digit{2} end?\ndigit ::= [0-9]\nend ::= "."', r"\d\d\.?"),
        ("grammar", 'start: "a" "b"*', "ab*"),
        ("ebnf", 'root ::= ("x" | "y")+ "z"', "[xy]+z"),
        ("regex", r"\d\d-[ab]", r"\d\d-[ab]"),
        ("json_schema", {"enum": ["u", 7]}, '"u"|7'),
        ("json_schema", '{"enum": ["u", 7]}', '"u"|7'),
        ("response_format", {"type": "json_object", "schema": {"const": {"k": 1}}}, '{"k": 1}'),
    ],
)
def test_grammars_in_fields_of_llama_cpp_and_sglang(
    client: httpx.Client, field: str, value: Any, whole: str
) -> None:
    for path in (CHAT, TEXT):
        hot = {"temperature": 2, "seed": 3, "max_tokens": 60}
        choice = post(client, path, **hot, **{field: value})["choices"][0]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert re.fullmatch(whole, text) or choice["finish_reason"] == "length", text
        assert re.match(whole.replace("z", "z?"), text), text
    assert post(client, TEXT, grammar="", ebnf="")["choices"][0]["text"]


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("root ::= (", "grammar: cannot be followed: Expected"),
        ("root ::= nowhere", "grammar: cannot be followed: Expected a rule named 'nowhere', got"),
        ('start ::= "a"', "grammar: cannot be followed: Expected a rule named 'root', got none"),
        ("root ::= " + "(" * 5000, "grammar: cannot be followed: Expected at most 50 nested"),
        ("root ::= " + '"a" ' * 5000, "grammar: expected at most 16384 characters in GBNF"),
        (5, "grammar: expected text, got int"),
    ],
)
def test_a_grammar_that_is_none(client: httpx.Client, grammar: Any, message: str) -> None:
    reply = client.post(TEXT, json=PROMPT | {"grammar": grammar})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(message)
    assert reply.json()["error"]["param"] == "grammar"


def test_n_predict_goes_before_max_tokens(client: httpx.Client) -> None:
    for path in (CHAT, TEXT):
        for more in ({}, {"max_completion_tokens": 5}):
            fields = {"n_predict": 3, "ignore_eos": True, **more}
            assert post(client, path, **fields)["usage"]["completion_tokens"] == 3
    endless = post(client, TEXT, n_predict=-1, ignore_eos=True)["usage"]
    assert endless["total_tokens"] > 1000
    usage = post(client, TEXT, max_completion_tokens=5, ignore_eos=True)["usage"]
    assert usage["completion_tokens"] == 5


def test_n_probs_asks_for_logprobs(client: httpx.Client) -> None:
    asked = post(client, CHAT, n_probs=3)["choices"][0]["logprobs"]
    assert asked == post(client, CHAT, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]
    assert len(asked["content"][0]["top_logprobs"]) == 3
    asked = post(client, TEXT, n_probs=2)["choices"][0]["logprobs"]
    assert asked == post(client, TEXT, logprobs=2)["choices"][0]["logprobs"]
    assert post(client, TEXT, n_probs=0)["choices"][0]["logprobs"] is None


RESPONSES = "/v1/responses"


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
        ({"presence_penalty": -1}, {"presence_penalty": -1}),
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"repeat_penalty": 1.3, "repeat_last_n": -1}, {"repetition_penalty": 1.3}),
        ({"repeat_penalty": 1.0, "repeat_last_n": 64, "presence_penalty": 0}, {}),
    ],
)
def test_penalties_reach_the_engine(
    client: httpx.Client, fields: dict[str, Any], params: dict[str, Any]
) -> None:
    settings = SamplingParams(max_tokens=30, temperature=1, seed=5, ignore_eos=True, **params)
    asked = {"max_tokens": 30, "temperature": 1, "seed": 5, "ignore_eos": True, **fields}
    with Engine.load("demo") as engine:
        text = engine.generate(PROMPT["prompt"], settings).text
        chat = engine.generate(HELLO["messages"], settings).text
    assert post(client, TEXT, **asked)["choices"][0]["text"] == text
    assert post(client, CHAT, **asked)["choices"][0]["message"]["content"] == chat
    reply = client.post(RESPONSES, json={"input": HELLO["messages"][0]["content"], **asked})
    assert reply.json()["output"][-1]["content"][0]["text"] == chat


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"repeat_penalty": 1.1, "repeat_last_n": 64}, "repeat_last_n"),
        ({"frequency_penalty": 1, "repeat_last_n": 5}, "repeat_last_n"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ],
)
def test_penalties_that_cannot_be_are_named(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    reply = client.post(TEXT, json=PROMPT | fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_what_stands_for_a_fields_absence() -> None:
    """One meaning in all APIs: a seed of -1 is a new draw, penalties over no token are none."""
    kinds = (
        (CompletionRequest, {"prompt": "x"}),
        (ChatRequest, {"messages": HELLO["messages"]}),
    )
    for kind, needed in kinds:
        plain = kind(**needed).asked().sampling
        for seed in (-1, (1 << 32) - 1):
            found = {kind(**needed, seed=seed).asked().sampling.seed for _ in range(3)}
            assert len(found) == 3
        given = {"repeat_penalty": 1.3, "frequency_penalty": 1, "presence_penalty": 1}
        none = kind(**needed, **given, repeat_last_n=0).asked().sampling
        assert replace(none, seed=0) == replace(plain, seed=0)
        assert kind(**needed, **given).asked().sampling.draw.penalises


def test_special_tokens_may_be_left_out_of_a_text(client: httpx.Client) -> None:
    counts = [
        post(client, TEXT, add_special_tokens=flag)["usage"]["prompt_tokens"]
        for flag in (True, False)
    ]
    ids = client.post("/tokenize", json={**PROMPT, "add_special_tokens": False}).json()["tokens"]
    assert counts[1] == len(ids) == counts[0] - 1


def tool(name: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    return {"name": name, "parameters": schema}


TOOLS = [{"type": "function", "function": tool(name)} for name in ("alpha", "beta", "gamma")]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_allowed_tools(client: httpx.Client) -> None:
    names = set()
    for seed in range(12):
        fields = {"tools": TOOLS, "temperature": 2, "seed": seed, "max_tokens": 60}
        reply = post(client, CHAT, **fields, tool_choice=allowed("required", "alpha", "gamma"))
        for call in reply["choices"][0]["message"]["tool_calls"]:
            names.add(call["function"]["name"])
    assert names == {"alpha", "gamma"}
    post(client, CHAT, tools=TOOLS, tool_choice=allowed("auto", "beta"))
    for choice in (allowed("required", "delta"), allowed("never", "beta"), allowed("auto")):
        reply = client.post(CHAT, json=HELLO | {"tools": TOOLS, "tool_choice": choice})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "tool_choice"


def test_functions_are_answered_as_their_clients_know_it(client: httpx.Client) -> None:
    fields: dict[str, Any] = {
        "functions": [tool("alpha"), tool("beta")],
        "function_call": {"name": "beta"},
        "max_tokens": 60,
    }
    reply = post(client, CHAT, **fields)
    ChatCompletion.model_validate(reply, strict=True)
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "function_call"
    call = choice["message"]["function_call"]
    assert call["name"] == "beta"
    assert json.loads(call["arguments"])["n"] in (1, 2)
    assert "tool_calls" not in choice["message"]
    # The same, streamed, and shown to the model again with its result.
    body = {"max_tokens": 8, "temperature": 0, **HELLO, **fields, "stream": True}
    name, arguments, reason = "", "", None
    for line in client.post(CHAT, json=body).text.splitlines():
        if line.startswith("data: {"):
            chunk = ChatCompletionChunk.model_validate_json(line[6:], strict=True)
            part = chunk.choices[0]
            reason = part.finish_reason or reason
            if part.delta.function_call:
                name += part.delta.function_call.name or ""
                arguments += part.delta.function_call.arguments or ""
    assert ({"name": name, "arguments": arguments}, reason) == (call, "function_call")
    messages = [
        *HELLO["messages"],
        choice["message"],
        {"role": "function", "name": "beta", "content": "12"},
    ]
    post(client, CHAT, **fields | {"messages": messages, "function_call": "none"})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [tool("a")], "tools": TOOLS}, "functions"),
        ({"function_call": {"name": "a"}}, "function_call"),
        ({"functions": [tool("a")], "function_call": "required"}, "function_call"),
        ({"structured_outputs": {"disable_additional_properties": True}}, "structured_outputs"),
        ({"tools": [{"type": "web", "web": {"name": "a"}}]}, "tools"),
    ],
)
def test_what_makes_no_sense_together(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    reply = client.post(CHAT, json=HELLO | fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
