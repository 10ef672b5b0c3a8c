"""Adapters of a server: a request's model names one, in every API."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from monolane import Engine, SamplingParams
from tests.peft_folders import LANES, write_adapter

from .conftest import PATIENCE, ServerProcess, demo_command

MESSAGES = [{"role": "user", "content": "What is it?"}]
# Of each API: its path, the body, and where the text of the answer is.
APIS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "/v1/chat/completions": (
        {"messages": MESSAGES, "max_tokens": 8},
        lambda reply: reply["choices"][0]["message"]["content"],
    ),
    "/v1/completions": (
        {"prompt": "What is it?", "max_tokens": 8},
        lambda reply: reply["choices"][0]["text"],
    ),
    "/v1/messages": (
        {"messages": MESSAGES, "max_tokens": 8},
        lambda reply: reply["content"][0]["text"],
    ),
    "/v1/responses": (
        {"input": "What is it?", "max_output_tokens": 8},
        lambda reply: reply["output"][0]["content"][0]["text"],
    ),
    "/completion": (
        {"prompt": "What is it?", "n_predict": 8},
        lambda reply: reply["content"],
    ),
    "/v1/embeddings": ({"input": "What is it?"}, lambda reply: reply["data"][0]["embedding"]),
}


@pytest.fixture(scope="module")
def folders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("adapters")
    return {x: write_adapter(place / x, tiny_model, i, LANES) for i, x in enumerate("ab")}


@pytest.fixture(scope="module")
def server(tiny_model: Path, folders: dict[str, Path]) -> Iterator[httpx.Client]:
    options = ("--model", str(tiny_model), "--name", "base", "--policy", "share:3")
    loras = [word for name, folder in folders.items() for word in ("--lora", f"{name}={folder}")]
    process = ServerProcess(demo_command(*options, "--prefix-cache", "64M", *loras))
    process.wait_ready()
    with httpx.Client(base_url=process.url, timeout=PATIENCE) as client:
        yield client
    process.close()


def ask(server: httpx.Client, path: str, model: str | None) -> Any:
    body = APIS[path][0] | {"temperature": 0, "ignore_eos": True}
    reply = server.post(path, json=body | ({} if model is None else {"model": model}))
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_the_list_of_models_has_adapters_with_their_parent(server: httpx.Client) -> None:
    found = server.get("/v1/models").json()
    told = [(x["id"], x["root"], x["parent"]) for x in found["data"]]
    assert told == [("base", "base", None), ("a", "base", "base"), ("b", "base", "base")]
    assert (found["first_id"], found["last_id"]) == ("base", "b")
    assert server.get("/v1/models/b").json()["parent"] == "base"
    assert server.get("/v1/models/c").status_code == 404


@pytest.mark.parametrize("path", APIS)
def test_a_request_s_model_chooses_the_adapter(path: str, server: httpx.Client) -> None:
    text = APIS[path][1]
    replies = {name: ask(server, path, name) for name in ("a", None, "base", "b")}
    again = ask(server, path, "a")
    assert text(again) == text(replies["a"])
    assert text(replies[None]) == text(replies["base"])
    assert len({str(text(replies[name])) for name in ("a", "b", "base")}) == 3
    named = {name: reply["model"] for name, reply in replies.items()}
    assert named == {"a": "a", None: "base", "base": "base", "b": "b"}


def test_the_answer_is_the_engine_s(
    server: httpx.Client, tiny_model: Path, folders: dict[str, Path]
) -> None:
    with Engine.load(tiny_model, "cpu", lora=folders["b"]) as engine:
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        wanted = engine.generate("What is it?", params).text
    assert APIS["/v1/completions"][1](ask(server, "/v1/completions", "b")) == wanted


def test_what_one_adapter_has_read_serves_no_other(server: httpx.Client) -> None:
    def kept(model: str) -> int:
        body = {"prompt": list(range(5, 60)), "max_tokens": 4, "temperature": 0, "model": model}
        usage = server.post("/v1/completions", json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [kept(name) for name in ("a", "b", "base")] == [0, 0, 0]
    assert [kept(name) for name in ("a", "b", "base")] == [54, 54, 54]


def test_a_stream_says_which_one_it_is(server: httpx.Client) -> None:
    body = APIS["/v1/chat/completions"][0] | {"model": "a", "stream": True}
    text = server.post("/v1/chat/completions", json=body).text
    assert text.count('"model":"a"') == text.count('"model":') >= 1


@pytest.mark.parametrize("path", APIS)
def test_other_names_are_answered_as_ever(path: str, server: httpx.Client) -> None:
    reply = server.post(path, json=APIS[path][0] | {"model": "c"})
    assert reply.status_code == 404
    assert "model: expected 'base' or 'a' or 'b', got 'c'" in reply.text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--lora", "{a}"), "lora: expected NAME=FOLDER"),
        (("--lora", "base={a}"), "lora: expected other names than 'base', which the model itself"),
        (("--lora", "x={model}"), "which holds a model; name it with --model"),
        (("--lora", "x=/nowhere"), "which is no folder"),
    ],
)
def test_a_server_does_not_start_with_what_is_none(
    words: tuple[str, ...], expected: str, tiny_model: Path, folders: dict[str, Path]
) -> None:
    given = [word.format(a=folders["a"], model=tiny_model) for word in words]
    command = ["-m", "monolane", "serve", "--port", "0", "--no-bandwidth"]
    command += ["--model", str(tiny_model), "--name", "base", *given]
    found = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert found.returncode == (1 if "folder" in expected or "model;" in expected else 2)
    assert expected in found.stderr
