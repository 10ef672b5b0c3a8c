"""``--queue N`` is N: however many ask at once, by whichever route, and in which form."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

FOREVER = 100_000  # tokens: 1,000 s at the pace of these servers
PATIENCE = 120.0  # seconds
ASKED = 40  # requests at once, all of which arrive before any is decided
SAID = [{"role": "user", "content": "x"}]
HELD = ("/v1/completions", {"prompt": [5], "max_tokens": FOREVER, "ignore_eos": True})
TWO = ("/v1/completions", {**HELD[1], "n": 2})
ROUTES: list[tuple[str, dict[str, Any]]] = [
    HELD,
    ("/v1/completions", {**HELD[1], "stream": True}),
    ("/v1/completions", {"prompt": ["x", "y", "z"], "max_tokens": 9}),
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 9}),
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 9, "n": 3, "stream": True}),
    ("/v1/responses", {"input": "x", "max_output_tokens": 9}),
    ("/v1/responses", {"input": "x", "max_output_tokens": 9, "stream": True}),
    ("/v1/messages", {"messages": SAID, "max_tokens": 9}),
    ("/v1/messages", {"messages": SAID, "max_tokens": 9, "stream": True}),
    ("/completion", {"prompt": "x", "n_predict": 9}),
    ("/v1/embeddings", {"input": "x"}),
    ("/v1/embeddings", {"input": ["x", "y"]}),
    ("/embedding", {"content": "x"}),
]


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what must come, and fail where it stays out; nobody waits in vain otherwise."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it did not come to hold in time"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("slots", "limit", "asked", "kept"),
    [
        (1, 8, ROUTES, 8),
        (1, 0, ROUTES, 0),
        (2, 7, [TWO], 4),  # answers take places as there are: two, two, two, and one
    ],
    ids=["every_route", "no_queue", "two_answers"],
)
def test_a_queue_holds_as_many_as_it_says(
    paced: Callable[..., Any],
    eventually: Callable[..., None],
    slots: int,
    limit: int,
    asked: Sequence[tuple[str, dict[str, Any]]],
    kept: int,
) -> None:
    """Those with a place get no reply meanwhile: what runs is not over for a long time."""
    server = paced(tokens_per_second=100, policy=f"share:{slots}", queue_limit=limit, embeds=True)

    async def run() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:

            async def ask(path: str, body: dict[str, Any]) -> httpx.Response:
                headers = {"anthropic-version": "2023-06-01"}
                return await client.post(path, json=body, headers=headers)

            held = [asyncio.create_task(ask(*HELD)) for _ in range(slots)]
            await until(lambda: server.metric("vllm:num_requests_running") == slots)
            several = [asyncio.create_task(ask(*asked[i % len(asked)])) for i in range(ASKED)]
            await until(lambda: server.metric("vllm:num_requests_waiting") >= limit)
            assert server.metric("vllm:num_requests_waiting") == limit
            await until(lambda: sum(task.done() for task in several) >= ASKED - kept)
            assert server.metric("vllm:num_requests_waiting") == limit
            assert server.metric("vllm:num_requests_running") == slots
            assert sum(task.done() for task in several) == ASKED - kept
            replies = [task.result() for task in several if task.done()]
            for task in (*held, *several):
                task.cancel()
            await asyncio.gather(*held, *several, return_exceptions=True)
            return replies

    replies = asyncio.run(run())
    assert {reply.status_code for reply in replies} == {429}
    assert all(1 <= int(reply.headers["retry-after"]) <= 60 for reply in replies)
    eventually(server.is_idle)
