"""The very requests of evaluation and load tools, and what these tools read of the answers.

The tools themselves (docs/serving.md names their releases) drag in more than the gate should
install; what they send was taken from their runs.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from monolane import Engine

QUESTION, CHOICES = "for i in range(10", ("):", " banana")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo", "reference") as engine:
        yield engine


@pytest.fixture
def client(demo_server: Any) -> Iterator[httpx.Client]:
    # As their libraries do: a key is sent, though none is wanted.
    key = {"Authorization": "Bearer x"}
    with httpx.Client(base_url=demo_server.url, headers=key, timeout=120) as client:
        yield client


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def score(choice: dict[str, Any], context: int) -> tuple[float, bool]:
    """Return (log-likelihood, whether it is the greedy answer), as lm-eval 0.4.13 works it out."""
    logprobs = choice["logprobs"]
    found = logprobs["token_logprobs"][context:-1]
    best = logprobs["top_logprobs"][context:-1]
    greedy = all(token == max(top.values()) for token, top in zip(found, best, strict=True))
    return sum(found), greedy


def expected(engine: Engine, ids: list[int], context: int) -> tuple[float, bool]:
    logits_TV: npt.NDArray[np.float64] = engine.logits(ids).astype(np.float64)
    logprobs_TV = logits_TV - np.log(np.exp(logits_TV).sum(-1, keepdims=True))
    places = range(context, len(ids))
    greedy = all(logits_TV[i - 1].argmax() == ids[i] for i in places)
    return sum(logprobs_TV[i - 1, ids[i]] for i in places), greedy


@pytest.mark.parametrize("as_ids", [True, False])
def test_lm_evals_log_likelihoods(client: httpx.Client, engine: Engine, as_ids: bool) -> None:
    """``tokenized_requests`` True and False, with a batch of two."""
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    context = tokenizer.encode(QUESTION)
    whole = [tokenizer.encode(QUESTION + choice) for choice in CHOICES]
    prompt = whole if as_ids else [f"<s>{QUESTION}{choice}" for choice in CHOICES]
    body = {"model": "demo", "prompt": prompt, "temperature": 0, "max_tokens": 1, "logprobs": 1}
    reply = post(client, "/v1/completions", body | {"seed": 1234, "echo": True})
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    for choice, ids in zip(reply["choices"], whole, strict=True):
        assert len(choice["logprobs"]["token_logprobs"]) == len(ids) + 1
        found, greedy = score(choice, len(context))
        wanted, wanted_greedy = expected(engine, ids, len(context))
        # BF16's logits are off by 0.009 (RMS, bench/results); ten times that for each token.
        assert found == pytest.approx(wanted, abs=0.09 * (len(ids) - len(context)))
        assert greedy == wanted_greedy


def test_lm_evals_answers(client: httpx.Client, engine: Engine) -> None:
    assert engine.tokenizer is not None
    prompt = [engine.tokenizer.encode(text) for text in ("def add(a, b):\n", "import")]
    body = {"prompt": prompt, "model": "demo", "max_tokens": 16, "temperature": 0.0}
    reply = post(client, "/v1/completions", body | {"stop": ["\n\n", "</s>"], "seed": 1234})
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert all("\n\n" not in choice["text"] for choice in reply["choices"])
    asked = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well"}]
    body = {"messages": asked, "model": "demo", "max_tokens": 4, "temperature": 0, "stop": []}
    assert post(client, "/v1/chat/completions", body | {"seed": 1234})["choices"][0]["message"]


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_guidellms_streams(client: httpx.Client, route: str) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/v1/models").json()["data"][0]["id"] == "demo"
    content = [{"type": "text", "text": "value index total line"}]
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": content}]}
    limit = "max_completion_tokens"
    if route == "/v1/completions":
        asked, limit = {"prompt": "value index total line"}, "max_tokens"
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": "demo", "stream": True, "stream_options": options, limit: 32}
    reply = client.post(route, json={**asked, **body, "ignore_eos": True, "stop": None})
    *events, done, _ = reply.text.split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 32
    assert chunks[-1]["choices"] == []


def test_litellms_requests(client: httpx.Client) -> None:
    """Its ``text-completion-openai/``: several prompts, several answers, one reply."""
    body = {"model": "demo", "prompt": ["def f(", "import"], "max_tokens": 8, "n": 2}
    reply = post(client, "/v1/completions", body | {"stream": False, "extra_body": {}})
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
