"""Routes that clients of llama.cpp's server ask, and routes without /v1."""

import json
from typing import Any

import httpx
import pytest

from monolane.text import DEFAULT_TEMPLATE

USER = {"role": "user", "content": "def add(a, b):"}


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/models", None, "list"),
        ("/models/demo", None, "model"),
        ("/chat/completions", {"messages": [USER], "max_tokens": 2}, "chat.completion"),
        ("/responses", {"input": "x", "max_output_tokens": 2}, "response"),
    ],
)
def test_routes_without_the_version(demo_server: Any, path: str, body: Any, kind: str) -> None:
    url = f"{demo_server.url}{path}"
    reply = httpx.get(url, timeout=120) if body is None else httpx.post(url, json=body, timeout=120)
    assert reply.json()["object"] == kind


@pytest.mark.parametrize("path", ["/models", "/responses/x", "/props", "/slots", "/embedding"])
def test_they_need_the_key_all_the_same(keyed_server: Any, path: str) -> None:
    assert httpx.get(f"{keyed_server.url}{path}", timeout=120).status_code == 401


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_minus_one_token_is_as_many_as_fit(demo_server: Any, name: str) -> None:
    body = {"prompt": "x", name: -1, "ignore_eos": True}
    reply = httpx.post(f"{demo_server.url}/v1/completions", json=body, timeout=120).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] > 900  # of a context of 1,024


def test_what_is_served(demo_server: Any) -> None:
    props = httpx.get(f"{demo_server.url}/props", timeout=120).json()
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["total_slots"] == 4
    assert props["chat_template"] == DEFAULT_TEMPLATE
    slots = httpx.get(f"{demo_server.url}/slots", timeout=120).json()
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert not any(slot["is_processing"] for slot in slots)


def test_a_chat_as_its_text(demo_server: Any) -> None:
    url, body = demo_server.url, {"messages": [USER]}
    text = httpx.post(f"{url}/apply-template", json=body, timeout=120).json()["prompt"]
    assert USER["content"] in text
    wanted = httpx.post(f"{url}/tokenize", json=body, timeout=120).json()["tokens"]
    again = {"prompt": text, "add_special_tokens": False}
    assert httpx.post(f"{url}/tokenize", json=again, timeout=120).json()["tokens"] == wanted


def test_what_a_message_says_besides_its_content(demo_server: Any) -> None:
    """As openai sends an answer back: refusal beside an empty content, and what is null."""
    no = {"type": "refusal", "refusal": "I cannot."}
    ways = [
        {"content": "I cannot.", "refusal": None, "audio": None, "images": []},
        {"content": None, "refusal": "I cannot.", "annotations": [], "function_call": None},
        {"refusal": "I cannot.", "tool_calls": None},
        {"content": [no]},
    ]
    for after in ([], [USER]):  # the last message is continued
        chats = [[USER, {"role": "assistant", **way}, *after] for way in ways]
        for path, field in (("/apply-template", "prompt"), ("/tokenize", "tokens")):
            url, found = f"{demo_server.url}{path}", []
            for chat in chats:
                reply = httpx.post(url, json={"messages": chat}, timeout=120)
                found.append(reply.json()[field])
            assert found == found[:1] * len(ways), path
            assert path == "/tokenize" or "I cannot." in found[0]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", "/apply-template"])
@pytest.mark.parametrize(
    ("role", "field", "value"),
    [("user", "images", ["aGk="]), ("assistant", "audio", {"id": "audio_1"})],
)
def test_what_no_model_here_reads_is_refused(
    demo_server: Any, path: str, role: str, field: str, value: Any
) -> None:
    body = {"messages": [USER, {"role": role, "content": "x", field: value}], "max_tokens": 1}
    reply = httpx.post(f"{demo_server.url}{path}", json=body, timeout=120)
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert message.startswith(f"message 1: {field}: expected none, as this model reads text, got")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_tokens_of_a_chat(demo_server: Any, path: str) -> None:
    url, body = demo_server.url, {"messages": [USER]}
    told = httpx.post(f"{url}{path}/input_tokens", json=body, timeout=120).json()
    wanted = httpx.post(f"{url}/tokenize", json=body, timeout=120).json()["count"]
    assert told["input_tokens"] == wanted


def test_token_ids_as_vllm_returns_them(demo_server: Any) -> None:
    def post(path: str, **fields: Any) -> Any:
        body = {"max_tokens": 6, "temperature": 0, "return_token_ids": True, **fields}
        reply = httpx.post(f"{demo_server.url}{path}", json=body, timeout=120)
        if not fields.get("stream"):
            return reply.json()
        lines = reply.text.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    def ids(**body: Any) -> Any:
        return httpx.post(f"{demo_server.url}/tokenize", json=body, timeout=120).json()["tokens"]

    native = httpx.post(
        f"{demo_server.url}/completion",
        json={"prompt": "x = ", "n_predict": 6, "temperature": 0, "return_tokens": True},
        timeout=120,
    ).json()
    text = post("/v1/completions", prompt="x = ")["choices"][0]
    assert (text["prompt_token_ids"], text["token_ids"]) == (ids(prompt="x = "), native["tokens"])
    chunks = post("/v1/completions", prompt="x = ", stream=True)
    first, *rest = [chunk["choices"][0]["prompt_token_ids"] for chunk in chunks]
    assert first == text["prompt_token_ids"]
    assert rest == [None] * len(rest)
    parts = [chunk["choices"][0]["token_ids"] for chunk in chunks]
    assert [token for part in parts for token in part] == text["token_ids"]

    chat = post("/v1/chat/completions", messages=[USER])
    assert chat["prompt_token_ids"] == ids(messages=[USER])
    drawn = chat["choices"][0]["token_ids"]
    assert len(drawn) == chat["usage"]["completion_tokens"]
    chunks = post("/v1/chat/completions", messages=[USER], stream=True)
    assert chunks[0]["prompt_token_ids"] == chat["prompt_token_ids"]
    parts = [chunk["choices"][0]["token_ids"] for chunk in chunks]
    assert [token for part in parts for token in part] == drawn
    plain = post("/v1/chat/completions", messages=[USER], return_token_ids=False)
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]
    refused = post("/v1/responses", input="x")
    assert refused["error"]["param"] == "return_token_ids"
