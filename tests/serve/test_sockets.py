"""The connections that the server accepts."""

import asyncio
import socket

import pytest

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
