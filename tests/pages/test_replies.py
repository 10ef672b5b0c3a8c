"""The replies that docs/serving.md shows have the fields of those that the server sends."""

import json
import urllib.request
from typing import Any

import pytest

from .shown import ROOT, blocks

pytestmark = pytest.mark.slow
SHOWN = [json.loads(x.text) for x in blocks(ROOT / "docs" / "serving.md") if x.language == "json"]


def fields(value: Any) -> Any:
    """Return the names in a reply, as deep as they go; of a list those of its first item."""
    if isinstance(value, dict):
        return {name: fields(each) for name, each in value.items()}
    return [fields(each) for each in value[:1]] if isinstance(value, list) else None


def chunks(url: str) -> list[dict[str, Any]]:
    """Return what a chat that is streamed sends.

    What is drawn while the event loop does something else comes in one chunk: a long answer, and
    longer ones on a busy machine, come in several.
    """
    for tokens in (16, 128, 900):
        sent = streamed(url, tokens)
        if len(sent) > 1:
            break
    return sent


def streamed(url: str, tokens: int) -> list[dict[str, Any]]:
    """Return the chunks of an answer of so many tokens at most."""
    said = [{"role": "user", "content": "def"}]
    body = json.dumps({"messages": said, "stream": True, "max_tokens": tokens, "seed": 1}).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, kind)
    with urllib.request.urlopen(request) as reply:
        lines = reply.read().decode().splitlines()
    sent = [x.removeprefix("data: ") for x in lines if x.startswith("data: {")]
    return [json.loads(x) for x in sent]


def test_the_models_of_the_page_are_those_of_the_server(server_url: str) -> None:
    (shown,) = (x for x in SHOWN if x.get("object") == "list")
    with urllib.request.urlopen(f"{server_url}/v1/models") as reply:
        sent = json.load(reply)
    sampling = [x["data"][0]["monolane"].pop("sampling") for x in (shown, sent)]
    assert fields(shown) == fields(sent)
    assert all(isinstance(x, dict) for x in sampling)  # of smollm2, and of the demo


def test_the_chunk_of_the_page_is_one_of_the_server(server_url: str) -> None:
    (shown,) = (x for x in SHOWN if x.get("object") == "chat.completion.chunk")
    first, *_, last = chunks(server_url)
    assert fields(shown) == fields(first)
    assert {*shown} < {*last}  # which has timings, too


def test_the_timings_of_the_page_are_those_of_the_server(server_url: str) -> None:
    (shown,) = (x for x in SHOWN if "prompt_n" in x)
    assert [*shown] == [*chunks(server_url)[-1]["timings"]]
