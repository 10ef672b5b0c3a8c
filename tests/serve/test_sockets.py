"""The connections that the server accepts."""

import asyncio
import socket
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from monolane.serve._http import protocol
from monolane.serve._http.protocol import LimitedProtocol
from monolane.serve._server import _listen


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_no_connection_waits_for_more_to_send(host: str) -> None:
    """Nagle's algorithm would hold back the second write of each reply for 40 ms."""

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ours = writer.get_extra_info("socket")
            found.set_result(ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with _listen(host, 0) as listener:
            async with await asyncio.start_server(accepted, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
                nodelay = await found
                writer.close()
        return nodelay

    assert asyncio.run(option()) != 0


class Pausing(asyncio.Transport):
    """A transport of which only pausing is of interest."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.closed = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        self.closed = True

    close = abort


CHUNK = b"1\r\nx\r\n"
MOST = protocol._TURN_EVENTS + protocol._STEP_BYTES // len(CHUNK)  # events of a turn
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("ends", [False, True])
def test_what_comes_at_once_is_read_in_turns(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """A body in chunks of one byte: others have their turn in between, and no more is taken."""
    monkeypatch.setattr(protocol, "_REST_SECONDS", 0.0)
    body: list[bytes] = []
    turns = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            body.append(message["body"])

    async def run() -> None:
        nonlocal turns
        config = Config(app, lifespan="off", log_config=None)
        config.load()
        transport = Pausing()
        connection = LimitedProtocol(config, ServerState(), {})
        connection.connection_made(transport)
        connection.data_received(CHUNKED + CHUNK * 4000)
        assert transport.paused
        connection.data_received(CHUNK * 100)  # had come before reading was paused
        while transport.paused:
            turns += 1
            assert turns < 1000
            before = len(b"".join(body))
            await asyncio.sleep(0)  # the application takes what there is, and asks for more
            assert len(b"".join(body)) - before <= MOST
            if ends and turns == 3:
                transport.abort()
                connection.connection_lost(None)
                break
        await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0)

    asyncio.run(run())
    if ends:
        assert 0 < len(b"".join(body)) < 4100
    else:
        assert b"".join(body) == b"x" * 4100
        assert turns >= 4100 // MOST


def test_a_body_of_known_length_is_read_in_large_steps() -> None:
    """And what comes behind it in small ones again: that may be chunks, or many heads."""
    parts: list[int] = []
    steps: list[int] = []

    class Counted(LimitedProtocol):
        def on_body(self, body: bytes) -> None:
            parts.append(len(body))
            super().on_body(body)

        def _read(self, step: memoryview) -> None:
            steps.append(len(step))
            super()._read(step)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> None:
        config = Config(app, lifespan="off", log_config=None)
        config.load()
        connection = Counted(config, ServerState(), {})
        connection.connection_made(Pausing())
        size = 200 << 10
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        connection.data_received(head + bytes(size) + CHUNKED + CHUNK * 2000)
        while sum(parts) < size + 2000:
            await asyncio.sleep(0.001)
        connection.connection_lost(None)
        await asyncio.sleep(0)

    asyncio.run(run())
    of_body = [size for size in parts if size > 1]
    assert sum(of_body) == 200 << 10
    assert len(of_body) <= 1 + 200 // 64 + 1
    behind = next(i for i, size in enumerate(parts) if size == 1)
    assert behind == len(of_body)
    assert max(steps[len(of_body) :]) <= protocol._STEP_BYTES
