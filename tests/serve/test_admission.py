"""Who begins at the event loop when many come or leave at one moment."""

import asyncio
import itertools
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from monolane.serve._http.admission import Admission, wanted_tokens
from monolane.serve._http.protocol import LimitedProtocol

from .conftest import PATIENCE

MANY = 63


class Caller:
    """A connection that notes when it begins and when its leaving is dealt with."""

    def __init__(self, name: str, said: list[str]) -> None:
        self._name, self._said = name, said

    def read_on(self) -> None:
        self._said.append(self._name)

    def leave(self) -> None:
        self._said.append(f"-{self._name}")


def asking(tokens: int | None) -> bytes:
    """Return the first bytes of a request for so many tokens."""
    body = {"prompt": '"max_tokens": 1,'} | ({} if tokens is None else {"max_tokens": tokens})
    return b"POST / HTTP/1.1\r\n\r\n" + json.dumps(body).encode()


def said_by(
    act: Callable[[Admission, Callable[[str], Caller]], object], *, turns: int = 200
) -> str:
    """Return what connections that act in one turn of a loop say, in order; ``|`` ends a turn.

    The loop does not rest.
    """
    said: list[str] = []

    async def run() -> None:
        act(Admission(rest=0), lambda name: Caller(name, said))
        for _ in range(turns):
            said.append("|")
            await asyncio.sleep(0)

    asyncio.run(run())
    return "".join(said).rstrip("|")


def test_one_begins_or_leaves_in_a_turn() -> None:
    def act(to: Admission, named: Callable[[str], Caller]) -> None:
        for name in "abc":
            to.come(named(name), asking(1000))
        for name in "xyz":
            to.go(named(name))

    assert said_by(act) == "a|-x|-y|-z|b|c", "who leaves makes room"


def test_who_comes_alone_begins_at_once() -> None:
    def come(to: Admission, named: Callable[[str], Caller]) -> None:
        assert not to.come(named("a"), b"")

    assert said_by(come) == "a"
    assert said_by(lambda to, named: to.go(named("a"))) == "-a"


def test_who_asks_for_least_begins_first_and_overtakes_no_more_than_so_many() -> None:
    def act(to: Admission, named: Callable[[str], Caller]) -> None:
        assert not to.come(named("."), asking(1))
        assert to.come(named("long"), asking(None))
        for i in range(30):
            assert to.come(named("."), asking(i + 1))

    found = said_by(act).replace("|", "")
    assert found == "." * 18 + "long" + "." * 13


def test_who_has_left_does_not_begin() -> None:
    def act(to: Admission, named: Callable[[str], Caller]) -> None:
        waiting = named("b")
        to.come(named("a"), asking(1))
        to.come(waiting, asking(1))
        to.come(named("c"), asking(1))
        to.forget(waiting)

    assert said_by(act) == "a|c"


@pytest.mark.parametrize(
    ("seconds", "order"),
    [(0.01, "ast-B-C-Dbcd"), (2.0, "as-Bt-C-Dbcd")],
    ids=["beside short requests", "when they are long past"],
)
def test_the_loop_rests_between_those_that_are_not_short(seconds: float, order: str) -> None:
    """``seconds``: of a turn, by a clock that each look moves on."""
    looks = itertools.count()
    said: list[str] = []

    async def run() -> None:
        admission = Admission(clock=lambda: seconds * next(looks))
        admission.come(Caller("a", said), asking(1000))
        for name in "bcd":
            admission.come(Caller(name, said), asking(1000))
            admission.go(Caller(name.upper(), said))
        admission.come(Caller("s", said), asking(1))
        admission.come(Caller("t", said), asking(64))
        async with asyncio.timeout(PATIENCE):
            while len(said) < 9:
                await asyncio.sleep(0.001)

    asyncio.run(run())
    assert "".join(said) == order


def test_many_short_requests_do_not_hold_others_for_ever() -> None:
    def act(to: Admission, named: Callable[[str], Caller]) -> None:
        for _ in range(8):
            to.come(named("."), asking(1))
        to.come(named("long"), asking(1000))
        for _ in range(30):
            to.come(named("."), asking(1))

    found = said_by(act).replace("|", "")
    assert found == "." * 32 + "long" + "." * 6


@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (asking(7), 7),
        (asking(None), 1 << 30),
        (b'POST / HTTP/1.1\r\n\r\n{"n_predict" : 3}', 3),
        (b'POST / HTTP/1.1\r\n\r\n{"max_completion_tokens":12,', 12),
        (b'POST / HTTP/1.1\r\n\r\n{"max_tokens":12', 1 << 30),  # more digits may come
        (b"POST / HTTP/1.1\r\n\r\n" + b" " * (1 << 15) + b'"max_tokens":1}', 1 << 30),
        (b"GET /health HTTP/1.1\r\n\r\n", 0),
        (b"\xff", 1 << 30),
    ],
)
def test_what_a_request_asks_for(data: bytes, tokens: int) -> None:
    assert wanted_tokens(data) == tokens


def test_a_short_request_among_many_that_come_and_go_waits_for_none() -> None:
    """Over sockets: many clients leave and many come in one turn of the loop, and a short one."""
    said: list[str] = []
    turns = itertools.count()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        name = scope["path"][1:]
        said.append(name)
        await receive()
        if name == "old":
            await receive()  # until its client has left
            said.append("left")
            return
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    class Protocol(LimitedProtocol):
        admission = Admission()

    def connected(port: int, path: str, tokens: int) -> socket.socket:
        data = json.dumps({"max_tokens": tokens}).encode()
        head = f"POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        connection.sendall(head.encode() + data)
        return connection

    async def until(count: int) -> None:
        while len(said) < count:
            next(turns)
            await asyncio.sleep(0.001)

    async def run() -> None:
        config = uvicorn.Config(app, http=Protocol, log_config=None, lifespan="off")
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: Protocol(config=config, server_state=state, app_state={}),
            "127.0.0.1",
            0,
            backlog=2 * MANY,
        )
        port = server.sockets[0].getsockname()[1]
        old = [connected(port, "old", 1000) for _ in range(MANY)]
        await until(MANY)
        said.clear()
        # All of this happens while the loop does not run.
        for connection in old:
            connection.close()
        new = [connected(port, "new", 1000) for _ in range(MANY)]
        short = connected(port, "short", 1)
        await until(2 * MANY + 1)
        for connection in (*new, short):
            connection.close()
        server.close()

    asyncio.run(run())
    assert said.count("new") == said.count("left") == MANY
    # The first of those that came in the same turn of the loop had begun before it was read.
    before = said[: said.index("short")]
    assert before.count("new") <= 2, said
    assert before.count("left") <= 4, said
