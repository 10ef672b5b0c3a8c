"""What those who run a server see of it: ready, logs, systemd, a proxy's prefix; real processes."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from operated import PATIENCE, Start

from monolane.errors import RequestError
from monolane.serve import ServerOptions


def ask(url: str, **more: Any) -> httpx.Response:
    body = {"prompt": "x", "max_tokens": 3, "ignore_eos": True, **more}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)


def test_one_line_says_that_it_is_ready(operate: Start) -> None:
    server = operate()
    url = server.wait_ready()
    assert httpx.get(f"{url}/health").status_code == 200
    told = [line for line in server.lines if url in line]
    assert [line.partition(" at ")[0].rpartition(" ")[0] for line in told][-1] == "monolane is"
    assert server.stop() == 0


def test_every_line_of_a_json_log_is_an_object(operate: Start) -> None:
    server = operate("--log-format", "json")
    url = server.wait_ready()
    headers = {"x-request-id": "mine"}
    body = {"prompt": "secret words", "max_tokens": 3, "ignore_eos": True}
    assert httpx.post(f"{url}/v1/completions", json=body, headers=headers).status_code == 200
    assert ask(url, temperature="hot").status_code == 400
    assert httpx.get(f"{url}/health").status_code == 200
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.lines]
    for line in lines:
        assert {"time", "level", "logger", "message"} <= line.keys()
    (answer,) = (line for line in lines if line.get("request_id") == "mine")
    assert answer["level"] == "info"
    assert answer["method"], answer["path"] == ("POST", "/v1/completions")
    assert (answer["status"], answer["end"], answer["choices"]) == (200, "done", 1)
    assert answer["generated_tokens"] == 3
    assert answer["seconds"] > 0
    assert not [line for line in lines if line.get("path") == "/health"]
    assert "secret" not in " ".join(server.lines)


def test_an_error_that_ends_it_is_a_line_of_the_json_log(operate: Start, tmp_path: Path) -> None:
    server = operate("--log-format", "json", "--tls-cert", str(tmp_path / "none.pem"))
    assert server.process.wait(timeout=PATIENCE) == 1
    last = json.loads(server.lines[-1])
    assert last["level"] == "error"
    assert last["message"].startswith(f"tls_cert {tmp_path / 'none.pem'}")


def test_levels_of_the_log(operate: Start) -> None:
    loud, quiet = operate("--log-level", "debug"), operate("--log-level", "error")
    urls = [server.wait_ready() for server in (loud, quiet)]
    for url in urls:
        assert httpx.get(f"{url}/health").status_code == 200
        assert ask(url).status_code == 200
        assert httpx.get(f"{url}/none").status_code == 404
    assert loud.stop() == quiet.stop() == 0
    text = "\n".join(loud.lines)
    for part in ("GET /health: 200 after", "POST /v1/completions: done, 1 ", "GET /none: 404"):
        assert part in text
    assert "GET" not in "".join(quiet.lines)
    assert "POST" not in "".join(quiet.lines)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--log-level", "loud", "--log-level: expected one of debug, info, warning, error, got"),
        ("--log-format", "xml", "--log-format: expected one of text, json, got 'xml'"),
        ("--root-path", "llm/", "root_path: expected a path such as '/llm'"),
    ],
)
def test_options_that_mean_nothing(operate: Start, option: str, value: str, message: str) -> None:
    server = operate(option, value)
    assert server.process.wait(timeout=PATIENCE) == 2
    assert message in server.lines[-1]


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        heard.settimeout(PATIENCE)
        yield heard


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_is_told_when_it_is_ready_and_when_it_stops(
    operate: Start, tmp_path: Path, kind: str
) -> None:
    address = str(tmp_path / "notify") if kind == "path" else f"@monolane-test-{os.getpid()}"
    with listening(address) as heard:
        server = operate(NOTIFY_SOCKET=address)
        assert heard.recv(4096).decode().splitlines()[0] == "READY=1"
        assert httpx.get(f"{server.wait_ready()}/health").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert heard.recv(4096).decode().splitlines()[0] == "STOPPING=1"
        assert server.process.wait(timeout=PATIENCE) == 0


def test_a_watchdog_is_fed(operate: Start, tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with listening(address) as heard:
        server = operate(NOTIFY_SOCKET=address, WATCHDOG_USEC="100000")
        told = [heard.recv(4096).decode() for _ in range(8)]
        assert told.count("WATCHDOG=1\n") >= 6
        assert server.stop() == 0
    with listening(f"{address}-of-another") as heard:
        of_another = {"WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}
        other = operate(NOTIFY_SOCKET=f"{address}-of-another", **of_another)
        other.wait_ready()
        assert other.stop() == 0
        told = [heard.recv(4096).decode().partition("=")[0] for _ in range(2)]
        assert told == ["READY", "STOPPING"]


def test_a_socket_that_is_gone_keeps_nobody_from_work(operate: Start, tmp_path: Path) -> None:
    server = operate(NOTIFY_SOCKET=str(tmp_path / "none"))
    assert ask(server.wait_ready()).status_code == 200
    assert "NOTIFY_SOCKET cannot be told READY, STATUS" in server.wait_for("NOTIFY_SOCKET")
    assert server.stop() == 0


def test_a_proxy_puts_a_path_before_all_paths(operate: Start) -> None:
    """Whether it takes it off again or not; the page, its files and the document go by it."""
    url = operate("--root-path", "/a/llm").wait_ready()
    for base in (url, f"{url}/a/llm"):
        assert httpx.get(f"{base}/health").json() == {"status": "ok"}
        assert ask(base).status_code == 200
        page = httpx.get(f"{base}/")
        assert page.status_code == 200
        assert 'src="app.js"' in page.text  # relative, so below the path
        assert httpx.get(f"{base}/app.js").status_code == 200
        document = httpx.get(f"{base}/openapi.json").json()
        assert document["servers"] == [{"url": "/a/llm"}]
    moved = httpx.get(f"{url}/a/llm")
    assert (moved.status_code, moved.headers["location"]) == (308, "/a/llm/")
    assert httpx.get(f"{url}/a/llmx/health").status_code == 404
    assert httpx.get(f"{url}/a/llm/a/llm/health").status_code == 404
    told = httpx.get(f"{url}/a/llm/v1/model").json()["error"]["message"]
    assert "got '/a/llm/v1/model', expected /a/llm/v1/models; " in told
    told = httpx.get(f"{url}/a/llm/tokenize").json()["error"]["message"]
    assert "for '/a/llm/tokenize', expected POST; " in told


def test_a_path_before_all_paths_opens_none(operate: Start) -> None:
    url = operate("--root-path", "/llm", MONOLANE_API_KEY="a-key-of-many-letters").wait_ready()
    assert httpx.get(f"{url}/llm/health").status_code == 200
    for path in (
        "/llm/v1/models",
        "/llm//v1/models",
        "/llm/llm",
        "/v1/models",
        "/llm/../v1/models",
    ):
        raw = httpx.Request("GET", url, extensions={"target": path.encode()})
        with httpx.Client() as client:
            assert client.send(raw).status_code == 401, path


def test_root_paths() -> None:
    for fits in ("", "/llm", "/a/b.c/~d"):
        assert ServerOptions(root_path=fits).root_path == fits
    for wrong in ("/", "llm", "/llm/", "/a//b", "/a b", "/%2e", "/..", "//a", "/a?b", "/a\n"):
        with pytest.raises(RequestError, match="root_path: expected a path such as"):
            ServerOptions(root_path=wrong)
