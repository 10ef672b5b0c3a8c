"""Requests that are too large, too many at once, too slow, or outside of every range."""

import time
from typing import Any

import httpx
import pytest
from bare_requests import COMPLETIONS, exchange, get, read_reply, still_serves


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
        slow_head.sendall(b"GET /")
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
