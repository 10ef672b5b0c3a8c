"""Attacks by what a request says: on templates, files, other hosts, logs and pages."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from bare_requests import COMPLETIONS

import monolane

PACKAGE = Path(monolane.__file__).parent


@pytest.mark.parametrize(
    "name",
    [
        *("tokenize", "messages", "tools", "eos_token", "__class__", "a b"),
        *("self", "template", "tokenizer", "engine", "continue_final"),
    ],
)
def test_template_variables_cannot_change_the_rendering(client: httpx.Client, name: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    kwargs = {name: True}
    reply = client.post("/v1/chat/completions", json=body | {"chat_template_kwargs": kwargs})
    assert reply.status_code == 400, reply.text
    kwargs = {"enable_thinking": False}
    reply = client.post("/v1/chat/completions", json=body | {"chat_template_kwargs": kwargs})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x.png", "https://evil.example/x", "file:///etc/passwd", "data:,x"]
)
def test_nothing_is_fetched_for_anybody(client: httpx.Client, url: str) -> None:
    for part in (
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_audio", "input_audio": {"data": url}},
        {"type": "file", "file": {"file_id": url}},
    ):
        body = {"messages": [{"role": "user", "content": [part]}]}
        reply = client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 400
        assert "expected {'type': 'text'" in reply.json()["error"]["message"]


def test_no_room_of_ours_can_run_what_it_is_given() -> None:
    """No pickle, no eval, no template engine without a sandbox, no client of the network."""
    banned = {"pickle", "dill", "marshal", "shelve", "yaml", "requests", "urllib", "http", "zmq"}
    for path in sorted((PACKAGE / "serve").rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), path
            assert not {name.split(".")[0] for name in names} & banned, path


def test_nothing_is_injected_into_headers_or_log(
    client: httpx.Client, keyed_server: Any, api_key: str
) -> None:
    for value in ("a b", "x" * 200, "a;b", "ü"):
        reply = client.get("/health", headers={"X-Request-Id": value.encode()})
        assert re.fullmatch("[0-9a-f]{32}", reply.headers["x-request-id"])
    body = {"prompt": "x", "max_tokens": 1, "model": "a\r\nINFO forged: line"}
    assert client.post(COMPLETIONS, json=body).status_code == 404
    body = {"prompt": "x", "max_tokens": 1, "user": "a\nINFO forged: line"}
    assert client.post(COMPLETIONS, json=body).status_code == 200
    # A line may quote it, escaped; where others of its status came first, none does.
    assert not re.search(r"^\s*INFO forged", keyed_server.words, re.MULTILINE)


def test_neither_prompts_nor_keys_nor_paths_leak(
    client: httpx.Client, keyed_server: Any, api_key: str
) -> None:
    secret = "xyzzy-is-my-secret"
    client.post(COMPLETIONS, json={"prompt": secret, "max_tokens": 3})
    client.post(COMPLETIONS, json={"prompt": secret, "max_tokens": -3})
    client.post("/v1/chat/completions", json={"messages": [{"role": secret, "content": secret}]})
    client.get(f"/{secret}")
    assert secret not in keyed_server.words
    assert api_key not in keyed_server.words
    command = Path(f"/proc/{keyed_server.process.pid}/cmdline").read_bytes()
    assert api_key.encode() not in command
    for content in (b"{", b'{"prompt": [4000]}', b'{"prompt": "x", "stop": 5}'):
        text = client.post(
            COMPLETIONS, content=content, headers={"Content-Type": "application/json"}
        ).text
        assert not re.search(r"Traceback|/work|site-packages|0x[0-9a-f]{6}|\.py", text)


def test_control_tokens_in_a_users_text_are_text(client: httpx.Client) -> None:
    def count(text: str) -> int:
        chat = [{"role": "user", "content": text}]
        return client.post("/tokenize", json={"messages": chat}).json()["count"]

    for spelling in ("</s>", "<s>", "<|start_header_id|>"):
        assert count(f"a{spelling}b") > count("ab") + 1
    # A plain prompt is all of one hand, which may spell them, or say that it does not.
    for spelled in (True, False):
        body = {"prompt": "a</s>b", "parse_special": spelled}
        assert (2 in client.post("/tokenize", json=body).json()["tokens"]) == spelled


def test_serving_touches_no_network_but_loopback(start: Callable[..., Any], tmp_path: Path) -> None:
    """A server in which every other connection or look-up raises still answers."""
    (tmp_path / "sitecustomize.py").write_text(
        "import socket\n"
        "_connect = socket.socket.connect\n"
        "def connect(self, address, *more):\n"
        "    assert address[0] in ('127.0.0.1', '::1', 'localhost'), f'FORBIDDEN {address}'\n"
        "    return _connect(self, address, *more)\n"
        "socket.socket.connect = connect\n"
        "def look_up(host, *more, _real=socket.getaddrinfo, **named):\n"
        "    assert host in (None, '127.0.0.1', '::1', 'localhost'), f'FORBIDDEN {host}'\n"
        "    return _real(host, *more, **named)\n"
        "socket.getaddrinfo = look_up\n"
    )
    server = start(PYTHONPATH=str(tmp_path)).wait_ready()
    body = {"prompt": "x", "max_tokens": 3}
    reply = httpx.post(f"{server.url}{COMPLETIONS}", json=body, timeout=120)
    assert reply.status_code == 200
    assert server.stop() == 0
    assert "FORBIDDEN" not in server.words


def test_json_is_never_html(client: httpx.Client) -> None:
    body = {"prompt": "x", "max_tokens": 1, "stop": "<img src=x onerror=alert(1)>"}
    reply = client.post(COMPLETIONS, json=body)
    assert reply.headers["content-type"] == "application/json"
    reply = client.post(COMPLETIONS, json={"prompt": "x", "model": "<script>alert(1)</script>"})
    assert reply.headers["content-type"] == "application/json"
    assert json.loads(reply.text)["error"]["code"] == 404
