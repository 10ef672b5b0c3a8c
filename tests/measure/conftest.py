"""Servers to be loaded: a plain one of a script, and ``monolane serve`` in a process of its own."""

import importlib.util
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

KEY = "ml-a-key-for-tests-only"


@pytest.fixture
def plain() -> Iterator[Callable[..., Any]]:
    """Starts servers in threads: ``plain(tokens_per_second=..., usage=False, ...)``."""
    path = Path(__file__).with_name("plain_server.py")
    spec = importlib.util.spec_from_file_location("plain_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    servers: list[Any] = []

    def start(**options: Any) -> Any:
        servers.append(module.PlainServer(**options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def demo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The demo model behind KEY, two sequences at a time."""
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [sys.executable, "-m", "monolane", "serve", "--port", "0", "--no-bandwidth"]
    clean = {name: v for name, v in os.environ.items() if not name.startswith("MONOLANE_")}
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--policy", "share:2"], stderr=file, env={**clean, "MONOLANE_API_KEY": KEY}
        )
    try:
        yield wait_ready(process, log)
    finally:
        process.terminate()
        process.wait(timeout=120)


def wait_ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"at (http://\S+:\d+)$", log.read_text(), re.MULTILINE):
            try:
                with urllib.request.urlopen(f"{found[1]}/health", timeout=60):
                    return found[1]
            except urllib.error.HTTPError as error:
                error.close()
        time.sleep(0.02)
    raise AssertionError(f"no server within 120 s: {log.read_text()}")


@pytest.fixture(scope="session")
def demo_key() -> str:
    """The key of ``demo_url``."""
    return KEY
