"""A server with a draft model: the same answers, and counts of each drafter in what it reports."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

BODY = {"prompt": "x = 1\ny = 2\n" * 8, "max_tokens": 120, "temperature": 0.6, "ignore_eos": True}


@pytest.fixture
def server(start: Callable[..., Any]) -> Any:
    return start("--draft", "int8", "--speculation", "draft", "--backend", "cpu").wait_ready()


def test_counts_of_each_drafter(server: Any, demo_server: Any) -> None:
    """The other server has no draft model. How often this one drafts is up to the clock."""
    plain = httpx.post(f"{demo_server.url}/v1/completions", json=BODY | {"seed": 3}).json()
    got = httpx.post(f"{server.url}/v1/completions", json=BODY | {"seed": 3}).json()
    assert got["choices"][0]["text"] == plain["choices"][0]["text"]
    timings = got["timings"]
    counts = timings["drafters"]
    assert set(counts) <= {"draft"}
    drafted = counts.get("draft", {"draft_n": 0, "draft_n_accepted": 0})
    assert (drafted["draft_n"], drafted["draft_n_accepted"]) == (
        timings["draft_n"],
        timings["draft_n_accepted"],
    )
    metrics = httpx.get(f"{server.url}/metrics").text
    for name, key in (("tokens", "draft_n"), ("accepted_tokens", "draft_n_accepted")):
        lines = [x for x in metrics.splitlines() if x.startswith(f"monolane:drafter_{name}_total")]
        assert [float(x.split()[-1]) for x in lines] == [drafted[key]][: len(counts)]
