"""Errors that clients understand, and replies in which typed clients find only what they know."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from monolane.errors import RequestError
from monolane.serve._errors import ApiError, api_error

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "def f(x):"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def client(demo_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_server.url, timeout=120) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "param", "got"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "a b " * 1500}]}, "messages", "tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 10**6}]}, "messages", "characters"),
        (TEXT, {"prompt": "a b " * 1500}, "prompt", "tokens"),
        (TEXT, {"prompt": "a" * 10**6}, "prompt", "characters"),
        (TEXT, {"prompt": [5] * 1025}, "prompt", "1025 tokens"),
    ],
)
def test_a_prompt_beyond_the_context_is_told_in_openais_words(
    client: httpx.Client, path: str, body: dict[str, Any], param: str, got: str
) -> None:
    for stream in (False, True):
        reply = client.post(path, json=body | {"stream": stream})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == param
        assert "this model's maximum context length is 1024 tokens" in error["message"]
        assert got in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}, "max_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}, "max_completion_tokens"),
        (TEXT, {"prompt": "x"}, "n_predict"),
        ("/v1/responses", {"input": "x"}, "max_output_tokens"),
        ("/v1/responses", {"input": "x"}, "max_tokens"),
    ],
)
def test_the_limit_at_fault_is_the_one_that_was_sent(
    client: httpx.Client, path: str, body: dict[str, Any], name: str
) -> None:
    error = client.post(path, json=body | {name: 1025}).json()["error"]
    assert error["param"] == name
    assert error["message"].startswith(f"{name}: expected 1 to 1024")


def test_the_official_client_reads_the_code(demo_server: Any) -> None:
    with (
        openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.completions.create(model="demo", prompt=[5] * 2000)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("status", [429, 503])
def test_what_passes_says_when_to_come_back(status: int) -> None:
    assert ApiError(status, "later").headers == {"Retry-After": "1"}
    assert ApiError(status, "later", headers={"Retry-After": "7"}).headers["Retry-After"] == "7"
    assert ApiError(400, "never").headers == {}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/chat/completion", "/chat/completions"),
        ("/v1/completion", "/v1/completions or /completion"),
        ("/V1/models", "/v1/models"),
        ("/openai/v1/responses", "/v1/responses"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/%65mbeddings", "/v1/embeddings"),
    ],
)
def test_404_names_the_path_that_was_meant(client: httpx.Client, path: str, expected: str) -> None:
    reply = client.post(path, json={})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (404, 404)
    assert error["message"].startswith(f"Not Found: got '{path}', expected {expected}; ")


def test_404_of_a_path_near_none_names_all(client: httpx.Client) -> None:
    for path in ("/api/chat", "/v1", "/" + "v1/chat/completions/" * 9):
        message = client.post(path, json={}).json()["error"]["message"]
        assert f"got '{path}'" in message
        for known in (CHAT, TEXT, "/v1/messages", "/v1/models", "/v1/responses", "/tokenize"):
            assert f" {known}," in message
        assert " /chat/completions," not in message, "the same as with /v1"
        assert ".css" not in message, "files of the page"


def test_404_is_spelled_as_the_api_that_was_meant(client: httpx.Client) -> None:
    for path in ("/v1/v1/messages", "/messages", "/v1/message"):
        reply = client.post(path, json={}).json()
        assert (reply["type"], reply["error"]["type"]) == ("error", "not_found_error")
        assert "expected /v1/messages" in reply["error"]["message"]
    assert client.post("/completion/", json={}).json()["error"]["type"] == "not_found_error"
    assert client.post("/v1/chat", json={}).json()["error"]["type"] == "NotFoundError"


@pytest.mark.parametrize(
    ("method", "path", "allowed", "told"),
    [
        ("GET", CHAT, "POST", "POST"),
        ("POST", "/v1/models", "GET, HEAD", "GET"),
        ("PUT", "/v1/responses/x", "DELETE, GET, HEAD", "DELETE or GET"),
        ("GET", "/v1/messages", "POST", "POST"),
    ],
)
def test_405_says_by_which_methods(
    client: httpx.Client, method: str, path: str, allowed: str, told: str
) -> None:
    reply = client.request(method, path, json={})
    assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
    message = reply.json()["error"]["message"]
    assert f"Method Not Allowed: got '{method}' for '{path}', expected {told};" in message
    assert ("type" in reply.json()) == (path == "/v1/messages"), "Anthropic's form"


def test_503_of_a_server_that_loads(paced: Callable[..., Any], tmp_path: Path) -> None:
    server = paced(tokens_per_second=100, ready_with=str(tmp_path / "ready"))
    for method, path, body in (("GET", "/health", None), ("POST", CHAT, HELLO)):
        reply = httpx.request(method, f"{server.url}{path}", json=body, timeout=120)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    (tmp_path / "ready").touch()


def test_503_of_a_full_server(paced: Callable[..., Any]) -> None:
    server = paced(tokens_per_second=100, max_connections=2)
    held = [server.connect() for _ in range(2)]
    reply = httpx.get(f"{server.url}/health", timeout=120)
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert "too many connections" in reply.json()["error"]["message"]
    for connection in held:
        connection.close()


def test_the_field_at_fault_is_found_within_a_message() -> None:
    for message, param in (
        ("temperature: expected 0 to 100", "temperature"),
        ("tools[0].function.name: expected a plain name", "tools"),
        ("response_format.type: expected text", "response_format"),
        ("the model failed: no memory", None),
    ):
        assert api_error(RequestError(message)).param == param


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logprobs": True, "top_logprobs": 2, "n": 2},
        {"stop": ["x"]},
        {
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "required",
            "max_tokens": 60,
        },
    ],
)
def test_typed_clients_know_every_value(client: httpx.Client, more: dict[str, Any]) -> None:
    reply = client.post(CHAT, json=HELLO | more)
    assert reply.status_code == 200, reply.text
    ChatCompletion.model_validate_json(reply.content, strict=True)
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = HELLO | more | {"stream": True, "stream_options": options, "timings_per_token": True}
    lines = client.post(CHAT, json=body).text.splitlines()
    chunks = [line[6:] for line in lines if line.startswith("data: {")]
    assert len(chunks) > 1
    for chunk in chunks:
        ChatCompletionChunk.model_validate_json(chunk, strict=True)


def test_typed_clients_know_every_value_of_a_completion(client: httpx.Client) -> None:
    for more in ({}, {"logprobs": 2}, {"echo": True}):
        reply = client.post(TEXT, json={"prompt": "def f", "max_tokens": 4} | more)
        Completion.model_validate_json(reply.content, strict=True)
