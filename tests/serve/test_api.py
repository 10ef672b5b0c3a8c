"""The API as plain HTTP, against a server process with the demo model."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from monolane import Engine, SamplingParams

GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo") as engine:
        yield engine


@pytest.fixture
def client(demo_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_server.url, timeout=120) as client:
        yield client


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(client: httpx.Client, path: str, **body: Any) -> list[Any]:
    """Return the events of a stream, comments as {"comment": ...}; it must end with [DONE]."""
    answer = client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [
        json.loads(line[6:]) if line.startswith("data: ") else {"comment": json.loads(line[2:])}
        for line in lines[:-2]
    ]


def test_a_completion_is_what_the_engine_says(client: httpx.Client, engine: Engine) -> None:
    ours = engine.generate("def add(a, b):", SamplingParams(max_tokens=12))
    for prompt in ("def add(a, b):", list(engine.prompt_ids("def add(a, b):"))):
        reply = post(client, "/v1/completions", prompt=prompt, **GREEDY)
        assert reply["choices"][0]["text"] == ours.text
        assert reply["choices"][0]["finish_reason"] == ours.finish_reason
        assert reply["usage"]["completion_tokens"] == len(ours.token_ids)
        assert reply["object"] == "text_completion"


def test_a_seed_repeats_a_draw_and_none_does_not(client: httpx.Client, engine: Engine) -> None:
    body = {"prompt": "class A:", "max_tokens": 24, "temperature": 1.2, "top_k": 40, "min_p": 0.01}
    texts = [
        post(client, "/v1/completions", seed=5, **body)["choices"][0]["text"] for _ in range(2)
    ]
    params = SamplingParams(max_tokens=24, temperature=1.2, top_k=40, min_p=0.01, seed=5)
    assert texts == [engine.generate("class A:", params).text] * 2
    free = {post(client, "/v1/completions", **body)["choices"][0]["text"] for _ in range(3)}
    assert len(free) > 1


def test_several_choices_have_several_seeds(client: httpx.Client) -> None:
    body = {"prompt": ["class A:", "import "], "max_tokens": 8, "seed": 3}
    reply = post(client, "/v1/completions", n=3, **body)
    assert [choice["index"] for choice in reply["choices"]] == list(range(6))
    alone = [post(client, "/v1/completions", **body | {"seed": 3 + j})["choices"] for j in range(3)]
    for i in range(2):
        for j in range(3):
            assert reply["choices"][3 * i + j]["text"] == alone[j][i]["text"]
    assert reply["usage"]["completion_tokens"] == 48
    single = [post(client, "/v1/completions", prompt=p, max_tokens=1) for p in body["prompt"]]
    prompts = sum(one["usage"]["prompt_tokens"] for one in single)
    assert reply["usage"]["prompt_tokens"] == prompts


@pytest.mark.parametrize("options", [{}, {"timings_per_token": True}, {"n": 3}, {"logprobs": 2}])
def test_a_stream_says_what_the_whole_says(client: httpx.Client, options: dict[str, Any]) -> None:
    body = {"prompt": "def f(x):", "max_tokens": 40, "seed": 1, "stop": ["\n\n\n"], **options}
    whole = post(client, "/v1/completions", **body)
    got = events(client, "/v1/completions", **body, stream_options={"include_usage": True})
    chunks = [event for event in got if "comment" not in event]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        parts = [
            part
            for chunk in chunks
            for part in chunk["choices"]
            if part["index"] == choice["index"]
        ]
        assert "".join(part["text"] for part in parts) == choice["text"]
        reasons = [part["finish_reason"] for part in parts]
        assert reasons == [None] * (len(parts) - 1) + [choice["finish_reason"]]
        if "logprobs" in options:
            for key, values in choice["logprobs"].items():
                streamed = [value for part in parts for value in part["logprobs"][key]]
                assert streamed == values


def test_live_timings_and_phases(paced: Callable[..., Any]) -> None:
    """Of 4 s of tokens: what the demo model draws at once, a machine that stands still joins."""
    body = {"messages": [{"role": "user", "content": "def f():"}], "max_tokens": 200}
    with httpx.Client(base_url=paced(tokens_per_second=50).url, timeout=120) as client:
        got = events(
            client, "/v1/chat/completions", **body, timings_per_token=True, ignore_eos=True, seed=2
        )
    comments = [event["comment"] for event in got if "comment" in event]
    assert comments[-1]["phase"] == "prefill"
    assert comments[-1]["prompt_n"] > 0
    chunks = [event for event in got if "comment" not in event]
    assert [chunk["phase"] for chunk in chunks] == ["decode"] * (len(chunks) - 1) + ["done"]
    counts = [chunk["timings"]["predicted_n"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == 200
    last = chunks[-1]["timings"]
    assert last["predicted_per_second"] == pytest.approx(199e3 / last["predicted_ms"], rel=1e-3)
    assert 0 <= last["draft_n_accepted"] <= last["draft_n"]
    assert last["cache_n"] == 0
    assert last["ttft_ms"] >= last["prompt_ms"] > 0


def test_timings_without_asking_stand_in_the_last_chunk_alone(client: httpx.Client) -> None:
    got = events(client, "/v1/completions", prompt="x =", max_tokens=30, ignore_eos=True)
    assert ["timings" in chunk for chunk in got] == [False] * (len(got) - 1) + [True]
    assert not any("phase" in chunk or "comment" in chunk for chunk in got)


def test_continuous_usage(client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    got = events(client, "/v1/completions", prompt="x =", max_tokens=30, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in got]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2]


def test_echo_and_logprobs_as_the_harness_asks(client: httpx.Client, engine: Engine) -> None:
    """The request that lm-eval sends for a log-likelihood, and what it reads of the reply."""
    ids = list(engine.prompt_ids("import os\nimport sys\n"))
    other = list(engine.prompt_ids("def"))
    body = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    reply = post(client, "/v1/completions", model="demo", prompt=[ids, other], **body)
    logits = engine.logits(ids).astype(float)
    for prompt, choice in zip((ids, other), reply["choices"], strict=True):
        found = choice["logprobs"]
        assert {len(values) for values in found.values()} == {len(prompt) + 1}
        assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
        for logprob, top in list(zip(found["token_logprobs"], found["top_logprobs"], strict=True))[
            1:
        ]:
            assert max(top.values()) >= logprob
        assert found["token_logprobs"][-1] == max(found["top_logprobs"][-1].values())
    found = reply["choices"][0]["logprobs"]
    for place, token in enumerate(ids[1:], 1):
        row = logits[place - 1] - logits[place - 1].max()
        wanted = row[token] - np.log(np.exp(row).sum())
        assert found["token_logprobs"][place] == pytest.approx(wanted, abs=1e-5)
        greedy = int(row.argmax()) == token
        best = max(found["top_logprobs"][place].values())
        assert (found["token_logprobs"][place] == best) == greedy
    text = engine.tokenizer.decode(ids)
    assert reply["choices"][0]["text"].startswith(text)


@pytest.mark.parametrize("stream", [False, True])
def test_echo_of_a_text_and_no_new_token(client: httpx.Client, stream: bool) -> None:
    body = {"prompt": "def f(x):\n", "max_tokens": 0, "echo": True, "logprobs": 2}
    if stream:
        choices = [event["choices"][0] for event in events(client, "/v1/completions", **body)]
        assert "".join(choice["text"] for choice in choices) == body["prompt"]
        choice = choices[-1]
    else:
        choice = post(client, "/v1/completions", **body)["choices"][0]
        assert choice["text"] == body["prompt"]
        assert "".join(choice["logprobs"]["tokens"]) == "<s>" + body["prompt"]
        assert choice["logprobs"]["text_offset"][:2] == [0, 0]
    assert choice["finish_reason"] == "length"


def test_chat_logprobs(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "π"}], "max_tokens": 4, "ignore_eos": True}
    reply = post(client, "/v1/chat/completions", logprobs=True, top_logprobs=3, **body)
    content = reply["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    for token in content:
        assert bytes(token["bytes"]).decode("utf-8", "replace") == token["token"]
        assert len(token["top_logprobs"]) == 3
        assert token["top_logprobs"][0]["logprob"] >= token["logprob"] - 1e-6


def test_the_last_assistant_message_is_continued(client: httpx.Client, engine: Engine) -> None:
    question = {"role": "user", "content": "write add"}
    begun = {"role": "assistant", "content": "def add(a, b):"}
    reply = post(client, "/v1/chat/completions", messages=[question, begun], **GREEDY)
    ids = engine.chat_template.encode(
        engine.tokenizer, [question, begun], add_generation_prompt=False, continue_final=True
    )
    ours = engine.generate(ids, SamplingParams(max_tokens=12))
    assert reply["choices"][0]["message"]["content"] == ours.text
    new_turn = post(
        client,
        "/v1/chat/completions",
        messages=[question, begun],
        add_generation_prompt=True,
        **GREEDY,
    )
    assert new_turn["usage"]["prompt_tokens"] > reply["usage"]["prompt_tokens"]


def test_text_parts_are_text(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "def "}, {"type": "text", "text": "f():"}]
    replies = [
        post(
            client,
            "/v1/chat/completions",
            messages=[{"role": "user", "content": content}],
            max_completion_tokens=6,
            temperature=0,
        )
        for content in (parts, "def f():")
    ]
    assert replies[0]["choices"][0]["message"] == replies[1]["choices"][0]["message"]
    assert replies[0]["usage"]["completion_tokens"] <= 6


def test_stop_texts_ids_and_biases(client: httpx.Client, engine: Engine) -> None:
    body = {"prompt": "import os\n", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    whole = post(client, "/v1/completions", **body)["choices"][0]["text"]
    stop = whole[10:13]
    reply = post(client, "/v1/completions", **body, stop=stop)["choices"][0]
    assert (reply["text"], reply["finish_reason"]) == (whole[: whole.index(stop)], "stop")
    reply = post(client, "/v1/completions", **body, stop=[])["choices"][0]
    assert (reply["text"], reply["finish_reason"]) == (whole, "length")
    first = engine.generate("import os\n", SamplingParams(max_tokens=1)).token_ids[0]
    reply = post(client, "/v1/completions", **body, stop_token_ids=[first])["choices"][0]
    assert (reply["text"], reply["finish_reason"]) == ("", "stop")
    biased = post(client, "/v1/completions", **body, logit_bias={str(first): -100})
    assert biased["choices"][0]["text"] != whole


def test_an_answer_is_cut_to_what_the_context_holds(client: httpx.Client) -> None:
    reply = post(client, "/v1/completions", prompt=[5] * 1020, max_tokens=1024, ignore_eos=True)
    assert reply["usage"]["completion_tokens"] == 5
    assert reply["choices"][0]["finish_reason"] == "length"


def test_models_tokens_and_version(client: httpx.Client, engine: Engine) -> None:
    (card,) = client.get("/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("demo", 1024)
    assert card["monolane"]["policy"] == "share:4"
    assert client.get("/v1/models/demo").json() == card
    ids = list(engine.prompt_ids("x = π"))
    reply = post(client, "/tokenize", prompt="x = π", return_token_strs=True)
    assert (reply["tokens"], reply["count"], reply["max_model_len"]) == (ids, len(ids), 1024)
    assert len(reply["token_strs"]) == len(ids)
    assert post(client, "/detokenize", tokens=ids) == {
        "prompt": "<s>x = π",
        "content": "<s>x = π",
    }
    chat = [{"role": "user", "content": "hi"}]
    assert post(client, "/tokenize", messages=chat)["tokens"] == list(engine.prompt_ids(chat))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]
    counted = post(client, "/v1/chat/completions/input_tokens", messages=chat)
    assert post(client, "/tokenize", messages=chat)["count"] == counted["input_tokens"]
    assert set(client.get("/version").json()) == {"version"}


def test_health_is_open_and_metrics_count(
    client: httpx.Client, demo_server: Any, eventually: Callable[..., None]
) -> None:
    eventually(demo_server.is_idle)  # whatever another test has left is counted before
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ping").status_code == 200
    before = demo_server.metric("vllm:generation_tokens_total")
    between = demo_server.metric("vllm:inter_token_latency_seconds_count")
    post(client, "/v1/completions", prompt="x", max_tokens=9, ignore_eos=True)
    assert demo_server.metric("vllm:generation_tokens_total") == before + 9
    assert demo_server.metric("vllm:inter_token_latency_seconds_count") == between + 8
    assert demo_server.is_idle()


def test_request_ids_are_echoed(client: httpx.Client) -> None:
    given = client.get("/health", headers={"X-Request-Id": "abc-123"})
    assert given.headers["x-request-id"] == "abc-123"
    assert len(client.get("/health").headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "message"),
    [
        ("/v1/completions", {"prompt": "x", "model": "gpt"}, 404, "model", "expected 'demo'"),
        ("/v1/completions", {}, 400, "prompt", "Field required"),
        ("/v1/completions", {"prompt": [[1]], "n": 17}, 400, "n", "less than or equal to 16"),
        ("/v1/completions", {"prompt": [4000]}, 400, None, "integers from 0 to 2047, got 4000"),
        ("/v1/completions", {"prompt": ""}, 200, None, ""),
        ("/v1/completions", {"prompt": []}, 400, "prompt", "expected text, token ids"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens", "at least 1"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1025}, 400, "max_tokens", "1 to 1024"),
        ("/v1/completions", {"prompt": [5] * 1025}, 400, "prompt", "at most 1024 tokens"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, 400, "suffix", "not supported"),
        ("/v1/completions", {"prompt": "x", "best_of": 3}, 400, "best_of", "not supported"),
        ("/v1/completions", {"prompt": "x", "stop": ["y" * 1025]}, 400, "stop", "1 to 1024"),
        (
            "/v1/completions",
            {"prompt": "x", "presence_penalty": 2.5},
            400,
            "presence_penalty",
            "less than or equal to 2",
        ),
        ("/v1/completions", {"prompt": "x", "length_penalty": 0.5}, 400, "length_penalty", "not"),
        ("/v1/completions", {"prompt": "x", "length_penalty": 1.0}, 200, None, ""),
        ("/v1/completions", {"prompt": "x", "frobnicate": 7}, 200, None, ""),
        ("/v1/chat/completions", {"messages": []}, 400, "messages", "at least 1 item"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user"}]},
            400,
            None,
            "message 0: expected content",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2},
            400,
            "top_logprobs",
            "expected logprobs to be true",
        ),
        ("/tokenize", {}, 400, "prompt", "one of prompt, messages and content"),
        ("/detokenize", {"tokens": [4000]}, 400, None, "token id 4000 is not in the vocabulary"),
    ],
)
def test_errors_say_what_and_where(
    client: httpx.Client,
    path: str,
    body: dict[str, Any],
    status: int,
    param: str | None,
    message: str,
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    if status != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        code = "context_length_exceeded" if "context length" in error["message"] else status
        assert (error["code"], error["param"]) == (code, param)
        assert message in error["message"]


def test_paths_and_methods_that_there_are_not(client: httpx.Client) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/models/other", 404),
    ):
        answer = client.request(method, path, json={} if method == "POST" else None)
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == status


def test_an_answer_is_as_long_as_min_tokens_says(client: httpx.Client, engine: Engine) -> None:
    """The end of sequence is all but certain, and comes as soon as it may."""
    (eos,) = engine.eos_ids
    body = {"prompt": "def f", "logit_bias": {str(eos): 100}, "max_tokens": 20, "temperature": 0}
    for wanted in (0, 1, 7, 20):
        reply = post(client, "/v1/completions", min_tokens=wanted, **body)
        assert reply["usage"]["completion_tokens"] == min(wanted + 1, 20)
    stopped = {"prompt": "def f", "stop_token_ids": [9], "logit_bias": {"9": 100}, "temperature": 0}
    reply = post(client, "/v1/completions", min_tokens=5, **stopped)
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (
        6,
        "stop",
    )
    # A grammar comes first: behind the last of its texts nothing else may follow.
    reply = post(client, "/v1/completions", min_tokens=9, guided_choice=["yes"], **body)
    assert (reply["choices"][0]["text"], reply["choices"][0]["finish_reason"]) == ("yes", "stop")
    refused = client.post("/v1/completions", json={"prompt": "x", "min_tokens": 3, "max_tokens": 2})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("min_tokens: expected at most 2")


def test_a_prompt_may_spell_control_tokens(client: httpx.Client, engine: Engine) -> None:
    """As other servers take it; lm-eval's texts begin with a bos that the model is not to read."""
    rendered = "<|start_header_id|>user<|end_header_id|>\n\nhi"
    ids = engine.tokenizer.encode(rendered, parse_special=True)
    plain = engine.tokenizer.encode(rendered)
    assert ids != plain
    for more, expected in (({}, ids), ({"parse_special": False}, plain)):
        body = {"prompt": rendered, "echo": True, "logprobs": 1, **GREEDY, **more}
        by_text = post(client, "/v1/completions", **body)
        by_ids = post(client, "/v1/completions", **{**body, "prompt": expected})
        key = "token_logprobs"
        assert by_text["choices"][0]["logprobs"][key] == by_ids["choices"][0]["logprobs"][key]
        assert by_text["usage"] == by_ids["usage"]
    # A bos that is spelled is not added once more.
    count = [post(client, "/tokenize", prompt=text)["tokens"] for text in ("<s>import", "import")]
    assert count[0] == count[1]
