"""Where to listen, and which pages may ask, as people write it."""

from pathlib import Path

import httpx
import pytest

from monolane.errors import RequestError
from monolane.serve import ServerOptions

from .conftest import ServerProcess, demo_command, wait_until


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "https://chat.example",
        "app://obsidian.md",
        "chrome-extension://abcdefghijklmnop",
        "capacitor://localhost",
        "http://[::1]:8080",
    ],
)
def test_any_origin_may_be_allowed(origin: str) -> None:
    assert ServerOptions(allowed_origins=(origin,)).allowed_origins == (origin,)


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "*", "", "http://a:80", "https://a:443", "app://a/b", "App://a", "app:a"),
        *("http://A", "http://a ", "1app://a", "http://user@a", "http://a?b"),
    ],
)
def test_what_is_no_origin_is_named(origin: str) -> None:
    with pytest.raises(RequestError, match="allowed_origins: expected origins such as"):
        ServerOptions(allowed_origins=(origin,))


def test_an_address_may_stand_in_brackets_as_in_a_url() -> None:
    options = ServerOptions(host="[::1]")
    assert (options.host, options.is_loopback, options.socket) == ("::1", True, None)
    with pytest.raises(RequestError, match="host: :: can be reached from other machines"):
        ServerOptions(host="[::]")


@pytest.mark.parametrize("before", ["", "unix:"])
def test_a_server_at_a_unix_socket(tmp_path: Path, before: str) -> None:
    """No key is needed, any Host will do, and the socket is gone with the server."""
    path = tmp_path / "m.sock"
    server = Listening(demo_command("--host", f"{before}{path}"))
    try:
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://any.example") as client:
            wait_until(lambda: client.get("/health").status_code == 200)
            assert client.get("/v1/models").json()["data"][0]["id"] == "demo"
    finally:
        server.stop()
        server.close()
    assert not path.exists()


class Listening(ServerProcess):
    """A server that tells the path of its socket."""

    def _wait_for_url(self) -> str:
        wait_until(lambda: "unix:" in self.words)
        return "unix:0"
