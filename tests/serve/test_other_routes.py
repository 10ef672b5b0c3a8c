"""Routes that clients of llama.cpp's server ask, and routes without /v1."""

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
        ("/completions", {"prompt": "x", "max_tokens": 2}, "text_completion"),
        ("/responses", {"input": "x", "max_output_tokens": 2}, "response"),
    ],
)
def test_routes_without_the_version(demo_server: Any, path: str, body: Any, kind: str) -> None:
    url = f"{demo_server.url}{path}"
    reply = httpx.get(url, timeout=120) if body is None else httpx.post(url, json=body, timeout=120)
    assert reply.json()["object"] == kind


@pytest.mark.parametrize("path", ["/models", "/responses/x", "/props", "/slots"])
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
