"""One test for each class of attack, in one long file: docs/serving.md lists them by its name.

Bare sockets where a client library would mend what it sends.
"""

import ast
import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import monolane
from monolane.serve import ServerOptions, Service, build_app
from monolane.serve._api.page import page_routes

PACKAGE = Path(monolane.__file__).parent
COMPLETIONS = "/v1/completions"


@pytest.fixture
def client(keyed_server: Any, api_key: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=keyed_server.url, headers=headers, timeout=120) as client:
        yield client


def exchange(server: Any, data: bytes) -> tuple[int, bytes]:
    """Send bytes; return the status and all that comes until the server closes."""
    with server.connect() as connection:
        connection.sendall(data)
        return read_reply(connection)


def read_reply(connection: socket.socket) -> tuple[int, bytes]:
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    reply = b"".join(parts)
    found = re.match(rb"HTTP/1.1 (\d{3})", reply)
    return (int(found[1]) if found else 0), reply


def get(path: str, host: str = "127.0.0.1", *more: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: close", *more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def still_serves(client: httpx.Client) -> None:
    reply = client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 2})
    assert reply.status_code == 200, reply.text
    assert client.get("/health").status_code == 200


def all_paths() -> list[str]:
    """Every path of the route table, with something in its parameters."""
    service = Service(lambda: pytest.fail("not to be loaded"), ServerOptions())
    router = build_app(service)._app  # type: ignore[attr-defined]
    return [re.sub(r"{id:str}", "x", re.sub(r"{name:path}", "demo", r.path)) for r in router.routes]


def test_every_route_but_a_few_needs_a_key(keyed_server: Any) -> None:
    open_paths = {"/health", "/ping", *(route.path for route in page_routes())}
    closed = [path for path in all_paths() if path not in open_paths]
    assert {"/v1/models", COMPLETIONS, "/metrics", "/tokenize", "/version"} <= set(closed)
    closed += ["//v1/models", "/V1/models", "/v1/models/", "/nothing", "/docs", "/pause", "/load"]
    closed += ["/v1/%6dodels", "/v1/models%2f..%2fhealth", "/health/../v1/models", "//health", "/."]
    closed += ["/%68ealth", "/health%00", "/health;x", "/collective_rpc", "/update_weights"]
    with httpx.Client(base_url=keyed_server.url, timeout=120) as client:
        for path in closed:
            for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"):
                data = get(path).replace(b"GET", method.encode(), 1)
                status, reply = exchange(keyed_server, data)
                assert status == 401, (method, path, reply)
        for path in open_paths:
            assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "localhost/v1/models?",
        "localhost/health",
        "127.0.0.1#",
        "user@127.0.0.1",
        "127.0.0.1:80:80",
        "",
        "a b",
        "127.0.0.1, evil.example",
    ],
)
def test_a_host_with_a_path_in_it_opens_nothing(keyed_server: Any, host: str) -> None:
    assert exchange(keyed_server, get("/v1/models", host))[0] in (400, 401)
    assert exchange(keyed_server, get("/health", host))[0] == 400


def test_absolute_targets_open_nothing(keyed_server: Any) -> None:
    for target in ("http://127.0.0.1/health", "http://evil/v1/models", "*", "health"):
        assert exchange(keyed_server, get(target))[0] in (400, 401, 404)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Authorization:"],
        ["Authorization: Bearer"],
        ["Authorization: Bearer "],
        ["Authorization: Basic {key}"],
        ["Authorization: {key}"],
        ["Authorization: Bearer {key}x"],
        ["Authorization: Bearer {key}", "Authorization: Bearer {key}"],
        ["Authorization: Bearer wrong", "Authorization: Bearer {key}"],
        ["X-Api-Key: {key}", "X-Api-Key: {key}"],
        ["X-Api-Key: {key}", "Authorization: Bearer {key}"],
        ["X-Api-Key: wrong"],
        ["Authorization: Bearer " + "a" * 30_000],
        ["Authorization: Bearer \xff\xfe"],
    ],
)
def test_only_one_whole_key_is_a_key(keyed_server: Any, api_key: str, lines: list[str]) -> None:
    more = [line.replace("{key}", api_key) for line in lines]
    assert exchange(keyed_server, get("/v1/models", "127.0.0.1", *more))[0] == 401
    good = get("/v1/models", "127.0.0.1", f"Authorization: Bearer {api_key}")
    assert exchange(keyed_server, good)[0] == 200
    good = get("/v1/models", "127.0.0.1", f"x-api-key: {api_key}")
    assert exchange(keyed_server, good)[0] == 200


@pytest.mark.parametrize(
    "field", ["n", "best_of", "top_logprobs", "logprobs", "max_tokens", "max_completion_tokens"]
)
@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions"])
def test_huge_counts_are_refused_at_once(
    client: httpx.Client, keyed_server: Any, path: str, field: str
) -> None:
    before = keyed_server.status("VmRSS")
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    reply = client.post(path, json=body | {field: 10**9})
    unknown = path == COMPLETIONS and field == "top_logprobs"
    assert reply.status_code == (200 if unknown else 400), reply.text
    assert keyed_server.status("VmRSS") < before + 20_000


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["x"] * 100_000},
        {"prompt": [[1]] * 200, "n": 16},
        {"prompt": "x", "stop": ["y"] * 100_000},
        {"prompt": "x", "stop": ["y" * 100_000]},
        {"prompt": "x" * 262_145},
        {"prompt": "x", "stop_token_ids": list(range(100_000))},
        {"prompt": "x", "logit_bias": {str(i): 1 for i in range(100_000)}},
        {"prompt": ["x"] * 256, "n": 1, "max_tokens": 1000, "logprobs": 20},
        {"prompt": "x" * 4_000_000},
    ],
)
def test_long_lists_and_texts_are_refused(client: httpx.Client, body: dict[str, Any]) -> None:
    reply = client.post(COMPLETIONS, json=body)
    assert reply.status_code == 400, reply.text[:300]
    assert len(reply.content) < 3000
    still_serves(client)


NUMBERS = ["-1", "2147483648", "9223372036854775808", "1e999", "NaN", "Infinity", "1e308", "-1e308"]
OTHERS = ["true", '"1"', "[]", "{}", "1.5"]
FIELDS = {
    "max_tokens": "-1",  # as many as fit
    "n": "",
    "temperature": "1.5",
    "top_p": "",
    "min_p": "",
    "top_k": "-1",
    "seed": "-1 2147483648 9223372036854775808",
    "logprobs": "",
    "deadline": "1.5 2147483648 9223372036854775808 1e308",
    "logit_bias": "{}",
    "stop_token_ids": "[]",
}


@pytest.mark.parametrize("field", FIELDS)
def test_odd_values_of_every_number(client: httpx.Client, field: str) -> None:
    for value in NUMBERS + OTHERS:
        content = f'{{"prompt": "x", "max_tokens": 1, "{field}": {value}}}'
        reply = client.post(
            COMPLETIONS, content=content, headers={"Content-Type": "application/json"}
        )
        wanted = {200} if value in FIELDS[field].split() else {400}
        if (field, value) == ("deadline", "1.5"):
            wanted.add(504)  # the machine may stand still for so long
        assert reply.status_code in wanted, (field, value, reply.text)
    still_serves(client)


@pytest.mark.parametrize("token", [-1, 2048, 2**31, 2**63, 1.0, True, "1", None, [1]])
def test_token_ids_outside_the_vocabulary(client: httpx.Client, token: Any) -> None:
    for body in ({"prompt": [5, token]}, {"prompt": [[5], [5, token]]}):
        assert client.post(COMPLETIONS, json=body).status_code == 400
    assert client.post("/detokenize", json={"tokens": [token]}).status_code == 400
    body = {"prompt": "x", "logit_bias": {str(token): 1}}
    if token != "1":
        assert client.post(COMPLETIONS, json=body).status_code == 400


def test_a_head_that_never_ends(keyed_server: Any, client: httpx.Client) -> None:
    with keyed_server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        try:
            for _ in range(100):  # MB
                connection.sendall(b"a" * (1 << 20))
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            pytest.fail("100 MB of header were taken")
    before = keyed_server.status("VmRSS")
    with keyed_server.connect() as connection:
        connection.sendall(get("/health", "127.0.0.1", "X: " + "a" * 40_000))
        assert read_reply(connection)[0] == 431
    assert keyed_server.status("VmRSS") < before + 20_000
    still_serves(client)


def test_a_body_that_is_too_large(client: httpx.Client, keyed_server: Any, api_key: str) -> None:
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {api_key}\r\n"
        "Content-Type: application/json\r\n"
    )
    status, _ = exchange(keyed_server, f"{head}Content-Length: 1000000000\r\n\r\n".encode())
    assert status == 413
    before = keyed_server.status("VmRSS")
    with keyed_server.connect() as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        sent = 0
        try:
            while sent < 1 << 30:
                connection.sendall(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
                sent += 0x100000
        except OSError:
            pass
    assert sent < 64 << 20
    assert keyed_server.status("VmRSS") < before + 40_000
    still_serves(client)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"prompt": "x", "y": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": [{"role": "user", "content": ' + b"[" * 300 + b"]" * 300 + b"}]}",
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x"} {"prompt": "y"}',
    ],
)
def test_deep_and_broken_json(client: httpx.Client, content: bytes) -> None:
    path = "/v1/chat/completions" if b"messages" in content else COMPLETIONS
    reply = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400, reply.text[:300]
    still_serves(client)


@pytest.mark.slow
def test_slow_senders_are_let_go(keyed_server: Any, api_key: str) -> None:
    """A head a byte at a time, and a body that never comes: 10 s and 30 s, then the end."""
    begun = time.monotonic()
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {api_key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    with keyed_server.connect() as slow_head, keyed_server.connect() as slow_body:
        slow_body.sendall(head.encode())
        slow_head.settimeout(0.5)
        ended = None
        while ended is None and time.monotonic() < begun + 60:
            try:
                slow_head.sendall(b"G")
                ended = time.monotonic() if slow_head.recv(100) == b"" else None
            except TimeoutError:
                pass
            except OSError:
                ended = time.monotonic()
        assert ended is not None
        # The limit of a body would be 30 s; the machine's own pauses come on top of the 10.
        assert 8 < ended - begun < 28
        slow_body.settimeout(120)
        assert read_reply(slow_body)[0] == 408


@pytest.mark.parametrize("name", ["tokenize", "messages", "tools", "eos_token", "__class__", "a b"])
def test_template_variables_cannot_change_the_rendering(client: httpx.Client, name: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    kwargs = {name: True}
    reply = client.post("/v1/chat/completions", json=body | {"chat_template_kwargs": kwargs})
    assert reply.status_code == 400, reply.text
    kwargs = {"enable_thinking": False}
    reply = client.post("/v1/chat/completions", json=body | {"chat_template_kwargs": kwargs})
    assert reply.status_code == 200, reply.text


def test_web_pages_of_others_are_kept_out(client: httpx.Client, keyed_server: Any) -> None:
    """DNS rebinding (a foreign name in Host), a foreign Origin, and a form that posts text."""
    rebound = get("/v1/models", "evil.example:80", "Origin: http://evil.example:80")
    assert exchange(keyed_server, rebound)[0] == 403
    for origin in ("http://evil.example", "null", "http://127.0.0.1", "https://127.0.0.1:1"):
        reply = client.get("/v1/models", headers={"Origin": origin})
        assert reply.status_code == 403
        assert "access-control-allow-origin" not in reply.headers
        preflight = client.options(COMPLETIONS, headers={"Origin": origin})
        assert preflight.status_code == 403
    assert client.get("/health", headers={"Origin": keyed_server.url}).status_code == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        reply = client.post(COMPLETIONS, content=b"{}", headers={"Content-Type": kind})
        assert reply.status_code == 415


def test_named_origins_and_hosts_may_ask(start: Callable[..., Any]) -> None:
    server = start("--allow-origin", "https://chat.example", "--allow-host", "box.example")
    server.wait_ready()
    page = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
    reply = httpx.options(f"{server.url}{COMPLETIONS}", headers=page, timeout=120)
    assert reply.status_code == 204
    assert reply.headers["access-control-allow-origin"] == "https://chat.example"
    assert "access-control-allow-credentials" not in reply.headers
    from_page = {"Origin": "https://chat.example"}
    reply = httpx.get(f"{server.url}/v1/models", headers=from_page, timeout=120)
    assert reply.headers["access-control-allow-origin"] == "https://chat.example"
    assert exchange(server, get("/v1/models", "box.example"))[0] == 200
    assert exchange(server, get("/v1/models", "other.example"))[0] == 403


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


def test_the_page_carries_a_policy_and_stays_in_its_folder(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    elsewhere = client.get("/elsewhere.html").headers["content-security-policy"]
    assert elsewhere.startswith("default-src 'none'; connect-src http: https:; ")
    assert "script-src" not in elsewhere
    assert page.headers["x-content-type-options"] == "nosniff"
    assert client.get("/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304


@pytest.mark.parametrize(
    "path",
    [
        "/../_keys.py",
        "/..%2f_keys.py",
        "/%2e%2e/_keys.py",
        "/static/../../_keys.py",
        "/index.html%00.js",
        "/index.html/..",
        "/etc/passwd",
        "/.hidden",
        "/v1/models/..%2f..%2fhealth",
        "/v1/models/../../health",
    ],
)
def test_there_is_no_path_to_walk(keyed_server: Any, api_key: str, path: str) -> None:
    status, reply = exchange(
        keyed_server, get(path, "127.0.0.1", f"Authorization: Bearer {api_key}")
    )
    assert status == 404, reply


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


def test_there_are_no_routes_for_administrators() -> None:
    assert set(all_paths()) - {route.path for route in page_routes()} == {
        "/health",
        "/ping",
        "/version",
        "/models",
        "/models/demo",
        "/chat/completions",
        "/completions",
        "/responses",
        "/responses/x",
        "/v1/responses",
        "/v1/responses/x",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/props",
        "/slots",
        "/apply-template",
        "/completion",
        "/infill",
        "/embedding",
        "/embeddings",
        "/v1/embeddings",
        "/chat/completions/input_tokens",
        "/v1/chat/completions/input_tokens",
        "/metrics",
        "/openapi.json",
        "/v1/models",
        "/v1/models/demo",
        "/v1/chat/completions",
        "/v1/completions",
        "/tokenize",
        "/detokenize",
    }


def test_only_the_http_port_is_open(keyed_server: Any) -> None:
    links = []
    for file in Path(f"/proc/{keyed_server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the end of another test's connection
            links.append(str(file.readlink()))
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:")}
    listening = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (table.startswith("udp") or fields[3] == "0A"):
                listening.append(int(fields[1].rpartition(":")[2], 16))
    assert listening == [keyed_server.port]


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
