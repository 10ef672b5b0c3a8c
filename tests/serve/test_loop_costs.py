"""What a chat costs the event loop, through which all requests go one after another: in calls."""

import asyncio
import json
import socket
import sys
from types import FrameType
from typing import Any
from unittest.mock import Mock, call

import pytest
import uvicorn
from uvicorn.server import ServerState

from monolane import Engine
from monolane.serve import Policy, ServerOptions
from monolane.serve._http.protocol import LimitedProtocol, _Joined
from monolane.serve._run.service import Service
from monolane.serve._server import build_app

from .conftest import PATIENCE

CHATS = 20
AS_SERVED: Any = {"proxy_headers": False, "access_log": False, "log_config": None}
# Functions of Python and C that the loop's thread calls for a chat of one token on a connection of
# its own, but for those that C calls. They were 2,320 while a choice ran in a task, its reply was
# written and counted on the loop, and each part of it was a write; 1,740 while h11 read and wrote
# HTTP; and are 1,180. How often the loop looks at its sockets while it waits for threads differs
# from run to run, by some 25 calls each time.
MOST = 1_340


def ask(port: int) -> None:
    """Ask for one token on a new connection, and read all of the reply."""
    chat = {"messages": [{"role": "user", "content": "def f(x):"}], "max_tokens": 1}
    data = json.dumps(chat).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    reply = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(head.encode() + data)
        while part := connection.recv(1 << 16):
            reply += part
    assert reply.startswith(b"HTTP/1.1 200"), reply


async def calls_of_a_chat() -> float:
    """Return the calls on this thread for each chat; those of other threads do not count."""
    service = Service(lambda: Engine.load("demo"), ServerOptions(policy=Policy(1)))
    await service.start()
    config = uvicorn.Config(build_app(service), http=LimitedProtocol, **AS_SERVED)
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: LimitedProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    calls = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def chats() -> None:
        for _ in range(CHATS):
            ask(port)

    await asyncio.to_thread(chats)  # what is made once is made here
    sys.setprofile(count)
    try:
        await asyncio.to_thread(chats)
    finally:
        sys.setprofile(None)
    server.close()
    await service.close()
    return calls / CHATS


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or coverage calls functions")
def test_a_chat_takes_few_calls_of_the_event_loop() -> None:
    calls = asyncio.run(calls_of_a_chat())
    assert calls < MOST, calls


def test_what_a_turn_of_the_loop_says_is_one_write() -> None:
    async def run() -> Any:
        transport = Mock()
        transport.is_closing.return_value = False
        joined = _Joined(transport, asyncio.get_running_loop())
        for part in (b"head", b"", b"body"):
            joined.write(part)
        assert not transport.write.called
        await asyncio.sleep(0)
        joined.write(b"more")
        joined.write(b"x" * (1 << 16))
        joined.write(b"end")
        joined.close()
        await asyncio.sleep(0)
        return [one for one in transport.mock_calls if one != call.is_closing()]

    writes = [call.write(part) for part in (b"headbody", b"more" + b"x" * (1 << 16), b"end")]
    assert asyncio.run(run()) == [*writes, call.close()]
