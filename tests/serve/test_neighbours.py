"""A short request beside 64 hostile connections: what it waits for, counted without a clock."""

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from monolane import Engine
from monolane.serve import Policy, ServerOptions
from monolane.serve._http.protocol import _FREE_BYTES, LimitedProtocol, Turns
from monolane.serve._run.preparers import SHORT, Job
from monolane.serve._run.service import Service
from monolane.serve._server import build_app

from .conftest import PATIENCE

CONNECTIONS = 64
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def grammar(number: int) -> dict[str, Any]:
    """Return a completion whose grammar is compiled for it alone."""
    source = f"root ::= s\ns ::= s s | s s s | [a-z] | {json.dumps(str(number))}"
    return {"prompt": "x", "max_tokens": 1, "grammar": source}


# What hostile connections send, by the number of the request: path and body.
KINDS: tuple[Callable[[int], tuple[str, dict[str, Any]]], ...] = (
    lambda n: ("/tokenize", {"prompt": " " * 300_000}),
    lambda n: ("/v1/completions", grammar(n)),
    lambda n: ("/v1/messages/count_tokens", {"messages": [CHAT["messages"][0]] * 500}),
    lambda n: ("/tokenize", {"prompt": "x" * (SHORT - 100)}),
)


class App:
    """The server's application, asked without a socket by any number of connections."""

    def __init__(self, service: Service) -> None:
        self._app = build_app(service)

    async def ask(self, connection: int, path: str, body: dict[str, Any]) -> int:
        """Post a body and return the status of the reply."""
        data, status = json.dumps(body).encode(), 0
        messages = iter([{"type": "http.request", "body": data, "more_body": False}])

        async def receive() -> Any:
            return next(messages, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        headers = {"host": "127.0.0.1", "content-type": "application/json"}
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "client": ("127.0.0.1", connection),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        await self._app(scope, receive, send)
        return status


@pytest.mark.slow
def test_a_short_request_waits_for_one_unit_whatever_others_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No key tells the clients apart, and all come from one address."""
    jobs: list[Job] = []

    async def run() -> None:
        service = Service(
            lambda: Engine.load("demo", max_sequences=8), ServerOptions(policy=Policy(8))
        )
        await service.start()
        app, numbers, had = App(service), itertools.count(), [0] * CONNECTIONS

        async def attack(connection: int) -> None:
            while True:
                assert await app.ask(connection, *KINDS[connection % len(KINDS)](next(numbers)))
                had[connection] += 1

        attackers = [asyncio.create_task(attack(i)) for i in range(CONNECTIONS)]
        # Those that send short bodies have had what every connection may have at once.
        while min(had[1::4] + had[3::4]) < 6:
            await asyncio.sleep(0.05)
        submit = service.preparers.submit

        def seen(work: Any, sender: Any, *what: Any) -> Job:
            job = submit(work, sender, *what)
            if sender.connection[1] >= CONNECTIONS:
                jobs.append(job)
            return job

        monkeypatch.setattr(service.preparers, "submit", seen)
        # Each on a new connection: one that goes on asking has its own share, and no more.
        for i in range(20):
            assert await app.ask(CONNECTIONS + i, "/v1/chat/completions", CHAT) == 200
        for task in attackers:
            task.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)
        await service.close()

    asyncio.run(run())
    # The short thread began no unit before theirs, so they waited for what it had begun already.
    assert [job.waited for job in jobs] == [0] * 20
    assert not any(job.long for job in jobs)


class Reader:
    """A connection with a long body; ``reads`` are those of all of them, in order."""

    def __init__(self, turns: Turns, name: str, times: int, reads: list[str]) -> None:
        self._turns, self._name, self._left, self._reads = turns, name, times, reads

    def read_on(self) -> None:
        self._reads.append(self._name)
        self._left -= 1
        if self._left:
            self._turns.wait(self)  # type: ignore[arg-type]


def test_long_bodies_are_read_in_turns() -> None:
    reads: list[str] = []

    async def run() -> None:
        turns = Turns()
        readers = [Reader(turns, name, 3, reads) for name in "abc"]
        for reader in readers:
            turns.wait(reader)  # type: ignore[arg-type]
        seen = [0]
        while len(reads) < 8:
            await asyncio.sleep(0)
            seen.append(len(reads))
        assert max(b - a for a, b in itertools.pairwise(seen)) == 1  # in one turn of the loop
        turns.leave(readers[2])  # type: ignore[arg-type]
        turns.leave(readers[2])  # type: ignore[arg-type]
        await asyncio.sleep(0.05)

    asyncio.run(run())
    assert "".join(reads) == "abcabcab"


def test_what_is_long_is_read_in_turns_alone() -> None:
    """Of 16 connections at once that send a megabyte each, over sockets."""
    outside: list[int] = []
    inside = 0
    read: list[int] = []

    class Counted(Turns):
        def _next(self) -> None:
            nonlocal inside
            inside += 1
            super()._next()
            inside -= 1

    class Protocol(LimitedProtocol):
        turns = Counted()

        def read_on(self) -> None:
            if not inside:
                outside.append(self._came)
            super().read_on()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        size = 0
        while (message := await receive()).get("more_body"):
            size += len(message["body"])
        read.append(size + len(message["body"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def post(port: int) -> None:
        data = bytes(1 << 20)
        head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            connection.sendall(head + data)
            assert connection.recv(100).startswith(b"HTTP/1.1 204")

    async def run() -> None:
        config = uvicorn.Config(app, http=Protocol, log_config=None, lifespan="off")
        config.load()
        loop = asyncio.get_running_loop()
        state = ServerState()
        server = await loop.create_server(
            lambda: Protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        await asyncio.gather(*(asyncio.to_thread(post, port) for _ in range(16)))
        server.close()

    asyncio.run(run())
    assert read == [1 << 20] * 16
    assert max(outside) <= _FREE_BYTES
    assert threading.active_count() < 64
