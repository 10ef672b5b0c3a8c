"""llama.cpp's own routes: /completion, /infill, its words for tokens, progress and errors."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from monolane import Engine, SamplingParams
from monolane.sources import find_model

PROMPT = "def f(x):"
FILL_IN = {
    "<|start_header_id|>": "<fim_prefix>",
    "<|end_header_id|>": "<fim_suffix>",
    "<unk>": "<fim_middle>",
}


@pytest.fixture(scope="module")
def client(demo_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_server.url, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo") as engine:
        yield engine


def post(client: httpx.Client, path: str = "/completion", **fields: Any) -> Any:
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0} | fields
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(client: httpx.Client, path: str = "/completion", **fields: Any) -> list[Any]:
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "stream": True} | fields
    lines = client.post(path, json=body).text.splitlines()
    assert "data: [DONE]" not in lines or path.startswith(("/v1", "/chat"))
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_whole_answer(client: httpx.Client, engine: Engine, path: str) -> None:
    answer = post(client, path, return_tokens=True, seed=3)
    wanted = engine.generate(PROMPT, SamplingParams(max_tokens=8))
    assert (answer["content"], tuple(answer["tokens"])) == (wanted.text, wanted.token_ids)
    assert answer["prompt"] == "<s>" + PROMPT
    assert (answer["stop"], answer["stop_type"], answer["truncated"]) == (True, "limit", False)
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (8, 6)
    assert answer["has_new_line"] == ("\n" in wanted.text)
    settings = answer["generation_settings"]
    assert (settings["n_predict"], settings["seed"], settings["temperature"]) == (8, 3, 0)
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == 6
    assert timings["predicted_n"] == 8
    assert post(client)["tokens"] == []


def test_a_stream_says_the_same_as_the_whole(client: httpx.Client) -> None:
    whole, parts = post(client, return_tokens=True), events(client)
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert all(part["tokens"] for part in parts[:-1])
    same = ("stop_type", "truncated", "has_new_line", "tokens_predicted", "prompt")
    assert {name: parts[-1][name] for name in same} == {name: whole[name] for name in same}


def test_why_it_stopped(client: httpx.Client) -> None:
    whole = post(client, n_predict=20)["content"]
    word = whole[4:8]
    stopped = post(client, n_predict=20, stop=[word])
    assert stopped["content"] == whole[: whole.index(word)]
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    held = post(client, grammar='root ::= "ab"')
    assert (held["content"], held["stop_type"]) == ("ab", "eos")
    for value in (-1, None):  # None: the server's default, which is as many as fit
        full = post(client, n_predict=value, ignore_eos=True)
        assert (full["stop_type"], full["truncated"]) == ("limit", True)
        assert full["tokens_evaluated"] + full["tokens_predicted"] == 1025


def test_prompts_of_every_kind(client: httpx.Client, engine: Engine) -> None:
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode(PROMPT)
    text = post(client)["content"]
    for prompt in (ids, {"prompt_string": PROMPT}, [*ids[:2], *ids[2:]], [[*ids]]):
        assert post(client, prompt=prompt)["content"] == text
    several = post(client, prompt=[PROMPT, ids, {"prompt_string": PROMPT}])
    assert [one["content"] for one in several] == [text] * 3
    assert [one["index"] for one in several] == [0, 1, 2]
    # Numbers make a list one prompt, and a text amid it gets no bos.
    bare = engine.tokenizer.encode("return", add_special_tokens=False)
    mixed = post(client, prompt=[*ids, "return", 7])
    assert mixed["tokens_evaluated"] == len(ids) + len(bare) + 1
    assert [one["content"] for one in post(client, n=2)] == [text] * 2


def test_probabilities(client: httpx.Client) -> None:
    found = post(client, n_probs=3, n_predict=4)["completion_probabilities"]
    chat = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "logprobs": 3}
    ours = client.post("/v1/completions", json=chat).json()["choices"][0]["logprobs"]
    assert [one["logprob"] for one in found] == ours["token_logprobs"]
    assert [one["token"] for one in found] == ours["tokens"]
    for one in found:
        assert bytes(one["bytes"]).decode() == one["token"]
        assert len(one["top_logprobs"]) == 3
        assert one["top_logprobs"][0]["id"] == one["id"]  # greedy
    streamed = events(client, n_probs=3, n_predict=4)[:-1]
    assert [part["completion_probabilities"] for part in streamed] == [[one] for one in found]


def test_biases_by_id_and_by_text(client: httpx.Client, engine: Engine) -> None:
    assert engine.tokenizer is not None
    first = post(client, return_tokens=True, n_predict=1)
    token, text = first["tokens"][0], first["content"]
    assert engine.tokenizer.encode(text, add_special_tokens=False) == [token]
    for bias in ([[token, -100]], [[token, False]], [[text, -100]], {text: -100}, {token: False}):
        other = post(client, return_tokens=True, n_predict=1, logit_bias=bias)
        assert other["tokens"][0] != token
    told = post(client, n_predict=1, ignore_eos=True)["generation_settings"]["logit_bias"]
    assert told == [{"token": token, "bias": None} for token in sorted(engine.eos_ids)]
    assert post(client, n_predict=1)["generation_settings"]["logit_bias"] == []


def test_fields_of_the_reply_can_be_picked(client: httpx.Client) -> None:
    wanted = ["content", "generation_settings/n_predict", "nothing/here"]
    picked = post(client, response_fields=wanted)
    assert picked == {
        "content": post(client)["content"],
        "generation_settings/n_predict": 8,
    }


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_progress_of_the_prompt(client: httpx.Client, path: str) -> None:
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
    more = chat if "chat" in path else {}
    told = events(client, path, return_progress=True, **more)
    reports = [event["prompt_progress"] for event in told if "prompt_progress" in event]
    assert reports[0]["processed"] == reports[0]["cache"] < reports[0]["total"]
    assert reports[-1]["processed"] == reports[-1]["total"]
    processed = [report["processed"] for report in reports]
    assert processed == sorted(set(processed))
    assert not any("prompt_progress" in event for event in events(client, path, **more))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["A"]}}, "prompt"),
        ({"prompt": ["x"] * 257}, "prompt"),
        ({"prompt": [1 << 20]}, "token ids"),
        ({"samplers": ["top_k", "top_p", "infill"]}, "samplers"),
        ({"n_indent": 4}, "n_indent"),
        ({"logit_bias": [[1]]}, "logit_bias"),
        ({"logit_bias": [["x", "y"]]}, "logit_bias"),
        ({"logit_bias": [[1.5, 1]]}, "logit_bias"),
        ({"n_probs": 21}, "n_probs"),
        ({"mirostat": 2}, "mirostat"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
    ],
)
def test_what_cannot_be_is_named(client: httpx.Client, fields: Any, param: str) -> None:
    reply = client.post("/completion", json={"prompt": PROMPT} | fields)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["message"].startswith(param)
    assert (error["type"], error["code"]) == ("invalid_request_error", 400)


def test_errors_in_the_words_of_llama_cpp(client: httpx.Client, keyed_server: Any) -> None:
    for path, body in (
        ("/completion", {"prompt": "word " * 2000}),
        ("/completion", {"prompt": "word " * 50_000}),
        ("/chat/completions", {"messages": [{"role": "user", "content": "word " * 2000}]}),
    ):
        error = client.post(path, json=body).json()["error"]
        assert error["type"] == "exceed_context_size_error"
        assert error["n_prompt_tokens"] > error["n_ctx"] == 1024
        assert "exceeds the available context size" in error["message"]
    ours = client.post("/v1/completions", json={"prompt": "word " * 2000}).json()["error"]
    assert ours["type"] == "BadRequestError"
    reply = httpx.post(f"{keyed_server.url}/completion", json={"prompt": "x"}, timeout=120)
    assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")


def test_tokens_in_the_words_of_llama_cpp(client: httpx.Client) -> None:
    text = "x = 'é🤗'"
    ids = client.post("/tokenize", json={"content": text}).json()
    ours = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert ids == {"tokens": ours["tokens"]}
    framed = client.post("/tokenize", json={"content": text, "add_special": True}).json()
    assert len(framed["tokens"]) == len(ids["tokens"]) + 1
    pieces = client.post("/tokenize", json={"content": text, "with_pieces": True}).json()
    data = b"".join(
        piece.encode() if isinstance(piece := one["piece"], str) else bytes(piece)
        for one in pieces["tokens"]
    )
    assert data.decode() == text
    assert client.post("/detokenize", json=ids).json()["content"] == text


@pytest.mark.parametrize("stream", [False, True])
def test_no_token_but_the_prompt_is_read(client: httpx.Client, stream: bool) -> None:
    """As llama.cpp's clients warm up the cache."""
    ask = {"prompt": PROMPT + f"  # {stream}" * 20, "n_predict": 0, "stream": stream}
    answer = events(client, **ask)[-1] if stream else post(client, **ask)
    assert (answer["content"], answer["tokens"], answer["tokens_predicted"]) == ("", [], 0)
    assert (answer["stop_type"], answer["generation_settings"]["n_predict"]) == ("limit", 0)
    assert post(client, prompt=ask["prompt"])["timings"]["cache_n"] > 0


def test_settings_may_be_sent_back(client: httpx.Client) -> None:
    """As /props and each answer tell them."""
    told = client.get("/props").json()["default_generation_settings"]["params"]
    answer = post(client, **told | {"n_predict": 4})
    assert answer["tokens_predicted"] == 4
    settings = answer["generation_settings"]
    assert post(client, **settings)["content"] == answer["content"]
    body = {"prompt": PROMPT, "samplers": told["samplers"], "max_tokens": 1}
    assert client.post("/v1/completions", json=body).status_code == 200


def test_infill_is_refused_where_a_model_cannot(client: httpx.Client) -> None:
    reply = client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert reply.status_code == 400
    assert "no tokens to fill in the middle" in reply.json()["error"]["message"]


@pytest.fixture(scope="module")
def filling(tmp_path_factory: Any) -> Path:
    """Return the demo with names of such tokens for three that its texts never hold."""
    folder = tmp_path_factory.mktemp("filling") / "model"
    shutil.copytree(find_model("demo"), folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text()
        for old, new in FILL_IN.items():
            text = text.replace(json.dumps(old), json.dumps(new))
        (folder / name).write_text(text)
    return folder


def test_infill(filling: Path, start: Any) -> None:
    server = start("--model", str(filling), "--context", "64").wait_ready()
    with httpx.Client(base_url=server.url, timeout=120) as client:
        gap = {"input_prefix": "def f(", "input_suffix": "):\n", "prompt": "x", "n_predict": 4}
        shown = post(client, "/infill", **gap)["prompt"]
        assert shown == "<s><fim_prefix>def f(<fim_suffix>):\n<fim_middle>x"
        extra = [{"text": "import os", "filename": "a.py"}]
        shown = post(client, "/infill", **gap, input_extra=extra)["prompt"]
        assert shown == (
            "<s>\n\n--- snippet ---\n\nimport os<fim_prefix>def f(<fim_suffix>):\n<fim_middle>x"
        )
        # A file's text spells no control token, and what is far from the gap is cut.
        long = gap | {"input_prefix": "<fim_suffix>a b " * 40, "input_suffix": "c d " * 40}
        answer = post(client, "/infill", **long, input_extra=extra)
        assert answer["prompt"].count("<fim_middle>") == 1
        assert answer["tokens_evaluated"] == 64 + 1 - 4
        assert "snippet" not in answer["prompt"]
        ids = post(client, "/infill", **long, n_probs=1)["completion_probabilities"]
        assert len(ids) == 4
        huge = gap | {"input_prefix": "a b " * 50_000, "input_suffix": "c d " * 50_000}
        files = [{"text": "e f " * 50_000}, {"text": "last"}]
        assert post(client, "/infill", **huge, input_extra=files)["tokens_evaluated"] == 61
        vim: dict[str, Any] = {
            **gap,
            "n_indent": 4,
            "samplers": ["top_k", "top_p", "infill"],
            "t_max_prompt_ms": 500,
            "t_max_predict_ms": 1000,
        }
        answer = post(client, "/infill", **vim, response_fields=["content"])
        assert set(answer) == {"content"}
        warm = vim | {"n_predict": 0, "samplers": []}  # llama.vim reads the file before it asks
        long = {"input_prefix": "a b " * 100, "input_suffix": "c d " * 100}
        for texts, size in (({}, None), (long, 64)):
            answer = post(client, "/infill", **warm | texts)
            assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
            assert size in (None, answer["tokens_evaluated"])
        for wrong in (
            {"input_extra": [{"filename": "x"}]},
            {"input_prefix": None},
            {"samplers": ["top_p", "top_k"]},
        ):
            reply = client.post("/infill", json=gap | wrong)
            assert reply.status_code == 400
