"""A server whose model runs in two processes, one of which is killed in the middle of a stream."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

PATIENCE = 120.0
ASKED = {"prompt": "def main():", "max_tokens": 900, "temperature": 0, "ignore_eos": True}
ATTEMPTS = 20


def rank_of(server: Any) -> int:
    """Return the process of rank 1."""
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        for process in (task / "children").read_text().split():
            if b"monolane.cpu._rank_main" in Path(f"/proc/{process}/cmdline").read_bytes():
                return int(process)
    raise AssertionError(server.words)


def stream(server: Any, at_first: Callable[[], None]) -> tuple[str, str]:
    """Return the text of a stream and the message of the error that ended it, if any."""
    text, error, struck = "", "", False
    url, asked = f"{server.url}/v1/completions", ASKED | {"stream": True}
    with httpx.stream("POST", url, json=asked, timeout=PATIENCE) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                error = event["error"]["message"]
            elif event["choices"]:
                text += event["choices"][0]["text"]
            if text and not struck:
                struck = True
                at_first()
    return text, error


def whole(server: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=ASKED, timeout=PATIENCE)


def test_a_rank_killed_in_a_stream_is_named_and_the_next_request_served(
    start: Callable[..., Any],
) -> None:
    server = start("--ranks", "2").wait_ready()
    wanted = whole(server).json()["choices"][0]["text"]
    for _ in range(ATTEMPTS):
        lost = rank_of(server)
        text, error = stream(server, lambda: os.kill(rank_of(server), signal.SIGKILL))
        if error:
            break
        # The stream was over before the rank was: the next request finds it dead.
        assert text == wanted
        assert "rank 1 was killed by signal 9" in whole(server).json()["error"]["message"]
        assert whole(server).status_code == 200
    assert "rank 1 was killed by signal 9" in error
    assert wanted.startswith(text)
    assert len(text) < len(wanted)
    reply = whole(server)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["text"] == wanted
    assert rank_of(server) != lost
    assert server.health()[0] == 200
