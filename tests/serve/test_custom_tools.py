"""OpenAI's custom tools: a text for input, of any kind or by a regex, in chats and in responses."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from monolane.serve._tools.calls import Delta, ToolCallDelta
from monolane.serve._tools.custom import CustomInputs

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
USER = {"role": "user", "content": "def f(x):"}
TIME = r"[01][0-9]:[0-5][0-9] (am|pm)"
FORMAT = {"type": "grammar", "grammar": {"syntax": "regex", "definition": TIME}}
CLOCK = {"type": "custom", "custom": {"name": "clock", "description": "Sets it", "format": FORMAT}}
SHELL = {"type": "custom", "custom": {"name": "shell"}}
CHOICE = {"type": "custom", "custom": {"name": "clock"}}
HOT = {"temperature": 2, "max_tokens": 100}


@pytest.fixture(scope="module")
def client(demo_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_server.url, timeout=120) as client:
        yield client


def post(client: httpx.Client, path: str, **fields: Any) -> Any:
    start = {"messages": [USER]} if path == CHAT else {"input": "def f(x):", "store": False}
    reply = client.post(path, json=start | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(client: httpx.Client, path: str, **fields: Any) -> list[Any]:
    start = {"messages": [USER]} if path == CHAT else {"input": "def f(x):", "store": False}
    text = client.post(path, json=start | fields | {"stream": True}).text
    return [json.loads(x[6:]) for x in text.splitlines() if x.startswith("data: {")]


@pytest.mark.parametrize("seed", range(3))
def test_a_regex_holds_the_input(client: httpx.Client, seed: int) -> None:
    fields = {"tools": [CLOCK, SHELL], "tool_choice": CHOICE, "seed": seed, **HOT}
    reply = post(client, CHAT, **fields)
    ChatCompletion.model_validate(reply, strict=True)
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]["name"]) == ("custom", "clock")
    assert re.fullmatch(TIME, call["custom"]["input"])
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    name, text = "", ""
    for chunk in events(client, CHAT, **fields):
        for part in chunk["choices"][0]["delta"].get("tool_calls", ()):
            name += part["custom"].get("name", "")
            text += part["custom"]["input"]
    assert {"name": name, "input": text} == call["custom"]


def test_text_input_and_functions_beside_it(client: httpx.Client) -> None:
    function = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    fields = {"tools": [SHELL, function], "tool_choice": "required", **HOT}
    kinds = set()
    for seed in range(12):
        for call in post(client, CHAT, **fields, seed=seed)["choices"][0]["message"]["tool_calls"]:
            kinds.add(call["type"])
            assert isinstance(call[call["type"]]["name"], str)
    assert kinds == {"custom", "function"}


def test_in_responses(client: httpx.Client) -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": TIME}
    tool = {"type": "custom", "name": "clock", "format": grammar}
    fields = {
        "tools": [tool],
        "tool_choice": {"type": "custom", "name": "clock"},
        "temperature": 2,
        "seed": 5,
    }
    reply = post(client, RESPONSES, **fields)
    Response.model_validate(reply)
    (item,) = reply["output"]
    assert (item["type"], item["name"]) == ("custom_tool_call", "clock")
    assert re.fullmatch(TIME, item["input"])
    told = events(client, RESPONSES, **fields)
    kinds = [event["type"] for event in told]
    deltas = [e["delta"] for e in told if e["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == item["input"]
    done = told[kinds.index("response.custom_tool_call_input.done")]
    assert done["input"] == item["input"]
    result = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
    message = {"type": "message", "role": "user", "content": "x"}
    again = post(client, RESPONSES, input=[message, item, result], max_output_tokens=2)
    assert again["usage"]["input_tokens"] > reply["usage"]["input_tokens"] - 200


def test_calls_and_results_are_shown_again(client: httpx.Client) -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "clock", "input": "07:30 am"}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "set"},
    ]
    body = {"messages": messages, "tools": [CLOCK]}
    shown = client.post("/apply-template", json=body).json()["prompt"]
    assert '{"name": "clock", "arguments": {"input": "07:30 am"}}' in shown
    assert '"input": {"type": "string"' in shown


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"name": "a", "format": {"type": "xml"}}, "tools[0].custom.format: expected"),
        (
            {
                "name": "a",
                "format": {
                    "type": "grammar",
                    "grammar": {"syntax": "lark", "definition": 'start: "a"'},
                },
            },
            "tools[0].custom.format: a Lark grammar cannot be followed",
        ),
        (
            {
                "name": "a",
                "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"},
            },
            "tools[0].custom.format: expected the syntax 'regex', got 'ebnf'",
        ),
        ({}, "tools[0].function.name: expected a plain name"),
        (None, "tools[0].custom: expected an object"),
    ],
)
def test_what_cannot_be_followed_is_named(client: httpx.Client, tool: Any, message: str) -> None:
    body = {"messages": [USER], "tools": [{"type": "custom", "custom": tool}]}
    reply = client.post(CHAT, json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["message"].startswith(message)
    assert error["param"] == "tools"


def test_a_regex_that_is_none_is_a_400(client: httpx.Client) -> None:
    bad = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "("}}
    tools = [{"type": "custom", "custom": {"name": "a", "format": bad}}]
    reply = client.post(CHAT, json={"messages": [USER], "tools": tools})
    assert reply.status_code == 400


def test_inputs_wherever_the_arguments_are_cut() -> None:
    text = 'a "quoted" line\n and é'
    arguments = json.dumps({"input": text})
    for size in (1, 3, 1000):
        inputs = CustomInputs(frozenset(("t",)))
        parts = [inputs.turned(Delta("", "", (ToolCallDelta(0, "", "id", "t"),)))]
        cuts = range(0, len(arguments), size)
        parts += [
            inputs.turned(Delta("", "", (ToolCallDelta(0, arguments[i : i + size]),))) for i in cuts
        ]
        (call,) = Delta.joined(parts).tool_calls
        assert (call.custom, call.arguments) == (True, text)
        assert inputs.rest() == ()


def test_what_is_cut_off_stays_as_it_is() -> None:
    inputs = CustomInputs(frozenset(("t",)))
    new = (ToolCallDelta(0, '{"inp', "id", "t"), ToolCallDelta(1, "{}", "id2", "other"))
    turned = inputs.turned(Delta("", "", new)).tool_calls
    assert [(part.index, part.arguments, part.custom) for part in turned] == [
        (0, "", True),
        (0, '{"inp', True),
        (1, "{}", False),
    ]


def test_half_a_character_can_be_sent() -> None:
    inputs = CustomInputs(frozenset(("t",)))
    part = ToolCallDelta(0, '{"input": "x\\ud83d"}', "id", "t")
    assert inputs.turned(Delta("", "", (part,))).tool_calls[0].arguments == "x?"
