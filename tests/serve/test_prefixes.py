"""Kept prefixes as clients see them: counted, apart by key, and there again after a restart."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from monolane.engine import Engine
from monolane.serve import add_key

# The demo model has windows, so a prompt goes on from a cut: at a multiple of a pass's tokens.
PROMPT = "def mean(values):\n    return sum(values) / len(values)\n\n\n" * 6
BODY = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, list[str]]:
    """A file of two keys, and the keys."""
    path = tmp_path / "keys"
    return str(path), [add_key(path, name) for name in ("ann", "bob")]


def ask(server: Any, key: str, **more: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    reply = httpx.post(f"{server.url}/v1/completions", json=BODY | more, headers=headers)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def cached(reply: dict[str, Any]) -> int:
    count: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reply["timings"]["cache_n"] == count
    return count


def known(reply: dict[str, Any]) -> int:
    """Tokens that the same prompt need not have read again."""
    count: int = reply["usage"]["prompt_tokens"]
    return (count - 1) // pass_width() * pass_width()


@cache
def pass_width() -> int:
    """Tokens that a pass of the demo model carries at most: 64, or 96 on a processor with AMX."""
    with Engine.load("demo") as engine:
        plan = engine.backend.executor.plan
    assert plan is not None
    return plan.max_width


def test_prefixes_serve_the_key_that_left_them_also_after_a_restart(
    start: Callable[..., Any], keys: tuple[str, list[str]], tmp_path: Path
) -> None:
    """Nobody learns from the time to the first token, or from usage, what another has asked."""
    path, (ann, bob) = keys
    options = ("--api-keys", path, "--prefix-file", str(tmp_path / "prefixes"))
    server = start(*options).wait_ready()
    first = ask(server, ann)
    assert cached(first) == 0
    count, expected = first["usage"]["prompt_tokens"], known(first)
    assert expected > 0
    again = ask(server, ann)
    assert cached(again) == expected
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert cached(ask(server, bob)) == 0
    both = ask(server, ann, n=2)
    assert cached(both) == expected  # each prompt once, as prompt_tokens
    assert server.metric("vllm:prefix_cache_queries_total", ann) == 5 * count
    assert server.metric("vllm:prefix_cache_hits_total", ann) == 3 * expected
    assert server.stop() == 0
    restarted = start(*options).wait_ready()
    assert cached(ask(restarted, ann)) == expected
    assert cached(ask(restarted, ann, prompt="x" + PROMPT)) == 0


def test_the_operator_shares_prefixes_or_keeps_none(
    start: Callable[..., Any], keys: tuple[str, list[str]]
) -> None:
    path, (ann, bob) = keys
    server = start("--api-keys", path, "--share-prefixes").wait_ready()
    ask(server, ann)
    assert cached(ask(server, bob)) > 0
    without = start("--prefix-cache", "off").wait_ready()
    for _ in range(2):
        assert cached(ask(without, "none")) == 0


def test_streamed_replies_count_too(start: Callable[..., Any]) -> None:
    server = start().wait_ready()
    ask(server, "none")
    body = BODY | {"stream": True, "stream_options": {"include_usage": True}}
    text = httpx.post(f"{server.url}/v1/completions", json=body).text
    chunks = [json.loads(x[6:]) for x in text.splitlines() if x.startswith("data: {")]
    usage, timings = chunks[-1]["usage"], chunks[-2]["timings"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == timings["cache_n"]
    assert timings["cache_n"] == known(chunks[-1])


def test_a_wrong_size_is_said_before_the_server_runs(start: Callable[..., Any]) -> None:
    server = start("--prefix-cache", "much")
    assert server.process.wait(timeout=60) in (1, 2)
    assert "prefix_cache: expected 'auto', 'off' or bytes" in server.words
    assert "Traceback" not in server.words
