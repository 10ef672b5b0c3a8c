"""HTTP/1.1 as it comes over a socket: what is read, what is refused, and what is answered first."""

import asyncio
import json
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from monolane.serve._http.protocol import LimitedProtocol
from monolane.serve._options import HEAD_BYTES

from .conftest import PATIENCE

GET = b"GET /one HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /long HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
LEFT: list[str] = []  # paths of requests whose client went away


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Say what came; below /wait only once the client has gone."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["path"] == "/wait":
        assert (await receive())["type"] == "http.disconnect"
        LEFT.append(scope["path"])
        return
    told = {x: scope[x] for x in ("method", "path")} | {"body": body.decode()}
    told |= {x: scope[x].decode() for x in ("raw_path", "query_string")}
    told["headers"] = [[name.decode(), value.decode()] for name, value in scope["headers"]]
    data = json.dumps(told).encode()
    headers = [(b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await asyncio.sleep(0)  # others have a turn before the end
    await send({"type": "http.response.body", "body": data})


async def listen() -> tuple[asyncio.Server, int]:
    config = uvicorn.Config(app, http=LimitedProtocol, log_config=None, lifespan="off")
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: LimitedProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    return server, server.sockets[0].getsockname()[1]


async def read_replies(reader: asyncio.StreamReader, count: int) -> list[tuple[int, Any]]:
    """Return status and body of so many replies, or of those until the connection ends."""
    found: list[tuple[int, Any]] = []
    while len(found) < count:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        except (asyncio.IncompleteReadError, ConnectionResetError):
            break
        size = int(head.split("content-length: ")[1].split("\r\n")[0])
        found.append((int(head.split()[1]), json.loads(await reader.readexactly(size))))
    return found


def say(data: bytes, count: int = 100) -> list[tuple[int, Any]]:
    """Send this on one connection, and return the replies; until it ends, if fewer come."""

    async def run() -> list[tuple[int, Any]]:
        server, port = await listen()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        try:
            async with asyncio.timeout(PATIENCE):
                return await read_replies(reader, count)
        finally:
            writer.close()
            server.close()

    return asyncio.run(run())


def test_a_request_is_read_as_it_came() -> None:
    data = (
        b"POST /a%20b?c=%20 HTTP/1.1\r\nHost: x\r\nX-Tail:  both \t\r\nContent-Length: 2\r\n\r\nhi"
    )
    ((status, told),) = say(data, 1)
    assert status == 200
    assert told["headers"] == [["host", "x"], ["x-tail", "both"], ["content-length", "2"]]
    assert (told["method"], told["path"], told["body"]) == ("POST", "/a b", "hi")
    assert (told["raw_path"], told["query_string"]) == ("/a%20b", "c=%20")


def test_a_target_with_a_host_is_passed_on_whole() -> None:
    ((_, told),) = say(b"GET http://y:1/one HTTP/1.1\r\nHost: x\r\n\r\n", 1)
    assert told["raw_path"] == "http://y:1/one"


def test_requests_that_come_together_are_answered_in_turn() -> None:
    many = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i for i in range(400))
    replies = say(many, 400)
    assert [told["path"] for _, told in replies] == [f"/{i}" for i in range(400)]


def test_whoever_offers_another_protocol_goes_on_in_this_one() -> None:
    """As Java's client does with its first request."""
    offer = (
        b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
    )
    posted = b"POST /post HTTP/1.1\r\n" + offer + b"Content-Length: 4\r\n\r\nbody"
    replies = say(posted + b"GET /get HTTP/1.1\r\n" + offer + b"\r\n" + GET, 3)
    found = [(status, told["path"], told["body"]) for status, told in replies]
    assert found == [(200, "/post", "body"), (200, "/get", ""), (200, "/one", "")]


def test_trailers_say_nothing() -> None:
    trailed = CHUNKED + b"2;a=b\r\nhi\r\n0\r\nX: y\r\n\r\n"
    replies = say(trailed + GET, 2)
    assert [(told["path"], told["body"]) for _, told in replies] == [("/long", "hi"), ("/one", "")]
    assert "x" not in dict(replies[0][1]["headers"])


LONG = b"a" * (HEAD_BYTES + 10_000)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + LONG, 431),
        (b"GET / HTTP/1.1\r\nHost: " + LONG, 431),
        (b"\r\n" * len(LONG), 431),
        (CHUNKED + b"1;" + LONG, 431),
        (CHUNKED + b"1\r\nx\r\n0\r\nX: " + LONG, 431),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" + GET, 405),
        (b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\nX: " + LONG, 431),
        (b"no HTTP\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", 400),
        (b"GET /\x9b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (CHUNKED + b"x\r\n", 400),
        (CHUNKED + b"1\r\nxx\r\n", 400),
        (CHUNKED.replace(b"Host", b"Content-Length: 1\r\nHost") + b"0\r\n\r\n", 400),
        (CHUNKED.replace(b"chunked", b"chunked, gzip") + b"0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\nx", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nx", 400),
    ],
    ids=lambda x: str(x) if isinstance(x, int) else x[:60].decode("latin-1"),
)
def test_what_is_no_http_is_refused(data: bytes, status: int) -> None:
    found = say(data)
    assert [found_status for found_status, _ in found] == [status]
    assert found[0][1]["error"]["code"] == status


def test_what_came_whole_before_it_is_answered_first() -> None:
    found = say(GET + GET + b"no HTTP\r\n\r\n")
    assert [status for status, _ in found] == [200, 200]


def test_a_client_that_goes_away_is_told_of_to_the_request_that_runs() -> None:
    """Not to the one behind it, which has not begun."""

    async def run() -> None:
        server, port = await listen()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET.replace(b"/one", b"/wait") + GET)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        async with asyncio.timeout(PATIENCE):
            while not LEFT:
                await asyncio.sleep(0.01)
        server.close()

    LEFT.clear()
    asyncio.run(run())
    assert LEFT == ["/wait"]
