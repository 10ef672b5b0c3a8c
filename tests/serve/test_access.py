"""Who may ask, from where, and for which paths: keys, hosts, origins, routes, ports."""

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from bare_requests import COMPLETIONS, exchange, get

from monolane.serve import ServerOptions, Service, build_app
from monolane.serve._http.guard import Guard
from monolane.serve._http.page import page_routes
from monolane.serve._http.wrong_keys import WrongKeys
from monolane.serve._keys import Keys


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


def test_absolute_targets_open_what_their_paths_do(keyed_server: Any) -> None:
    """RFC 9112, 3.2.2: they are accepted, and their host counts, not the header's."""
    assert exchange(keyed_server, get("http://127.0.0.1/health"))[0] == 200
    assert exchange(keyed_server, get("http://127.0.0.1/health", "evil.example"))[0] == 200
    for target, status in (
        ("http://127.0.0.1/v1/models", 401),
        ("http://evil.example/health", 403),
        ("http://user@127.0.0.1/health", 401),
        ("http:///health", 400),
        ("ftp://127.0.0.1/health", 401),
    ):
        assert exchange(keyed_server, get(target))[0] == status, target
    for target in ("*", "health"):
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
    assert "x-api-key" in reply.headers["access-control-allow-headers"]
    assert reply.headers["access-control-allow-origin"] == "https://chat.example"
    assert "access-control-allow-credentials" not in reply.headers
    # Official clients send headers of their own: anthropic-version, x-stainless-os and the like.
    for asked, allowed in (
        ("anthropic-version,x-stainless-os", True),
        ("content-type, anthropic-dangerous-direct-browser-access", True),
        ("a b", False),
    ):
        told = page | {"Access-Control-Request-Headers": asked}
        reply = httpx.options(f"{server.url}/v1/messages", headers=told, timeout=120)
        assert (reply.headers["access-control-allow-headers"] == asked) == allowed
    from_page = {"Origin": "https://chat.example"}
    reply = httpx.get(f"{server.url}/v1/models", headers=from_page, timeout=120)
    assert reply.headers["access-control-allow-origin"] == "https://chat.example"
    assert reply.headers["access-control-expose-headers"] == "retry-after, x-request-id, request-id"
    assert exchange(server, get("/v1/models", "box.example"))[0] == 200
    assert exchange(server, get("/v1/models", "other.example"))[0] == 403


def test_a_name_with_a_slash_is_found(start: Callable[..., Any], api_key: str) -> None:
    """As clients encode it: openai asks for org%2Fname."""
    server = start("--name", "org/a name", MONOLANE_API_KEY=api_key).wait_ready()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=api_key) as client:
        assert client.models.retrieve("org/a name").id == "org/a name"
    key = f"Authorization: Bearer {api_key}"
    for path, status in (
        ("/models/org%2fa%20name", 200),
        ("/v1/models/org/a%20name", 200),
        ("/v1/models/org%252Fa%20name", 404),
        ("/v1/models/%2e%2e/health", 404),
        ("/v1/%6dodels/org%2Fa%20name", 404),
    ):
        assert exchange(server, get(path, "127.0.0.1", key))[0] == status, path
        assert exchange(server, get(path))[0] == 401


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
        "/responses/input_tokens",
        "/responses/x",
        "/responses/x/cancel",
        "/responses/x/input_items",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/responses/x",
        "/v1/responses/x/cancel",
        "/v1/responses/x/input_items",
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


def test_a_compressed_body_is_named(demo_server: Any) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    reply = httpx.post(f"{demo_server.url}/tokenize", content=b"?", headers=headers, timeout=120)
    assert reply.status_code == 415
    assert "Content-Encoding: expected none, got 'gzip'" in reply.json()["error"]["message"]
    assert reply.headers["accept-encoding"] == "identity"


def test_wrong_keys_of_one_address_are_counted() -> None:
    now = [0.0]
    wrong = WrongKeys(lambda: now[0])
    assert [wrong.pause("a") for _ in range(10)] == [0] * 10
    assert [wrong.pause("a") for _ in range(8)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert wrong.pause("b") == 0
    now[0] = 60
    assert wrong.pause("a") == 2
    now[0] = 121  # a minute without any
    assert wrong.pause("a") == 0
    for i in range(10_000):
        wrong.pause(str(i))
    assert len(wrong._seen) == 4096


def test_the_reply_to_many_wrong_keys_waits_and_a_valid_key_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("monolane.serve._http.guard.asyncio.sleep", sleep)
    valid = "a-key-of-enough-letters"
    options = ServerOptions(keys=Keys.of([valid]))

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    guard = Guard(inner, options, [], lambda *_: None)

    def status(*headers: tuple[bytes, bytes]) -> int:
        seen: list[int] = []

        async def send(message: Any) -> None:
            seen.append(message.get("status", 0))

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/metrics",
            "raw_path": b"/metrics",
            "query_string": b"",
            "client": ("192.0.2.1", 5),
            "headers": [(b"host", b"127.0.0.1"), *headers],
        }
        asyncio.run(guard(scope, lambda: None, send))  # type: ignore[arg-type, return-value]
        return seen[0]

    for _ in range(12):
        assert status((b"x-api-key", b"wrong")) == 401
        assert status() == 401  # no key is none that is tried
    assert status((b"authorization", b"Bearer " + valid.encode())) == 200
    assert waits == [0.05, 0.1]
