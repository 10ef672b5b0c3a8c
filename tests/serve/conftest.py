"""Servers in processes of their own: the demo model, and one whose tokens come at a set pace."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # what tests share lies in modules beside them

from operated import Process, Start

KEY = "ml-a-key-for-tests-only"

# Seconds that a test waits for what must come, and fails without it. Waiting ends with the event,
# so a long limit costs nothing; it covers a machine that stands still for seconds, or is many times
# slower. What tests would wait for in vain takes longer, or never comes.
PATIENCE = 120.0


class ServerProcess:
    """A server at a port of its own; ``command`` prints "at URL" to stderr."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.log = tempfile.NamedTemporaryFile(prefix="monolane-serve-", suffix=".log")  # noqa: SIM115
        clean = {key: v for key, v in os.environ.items() if not key.startswith("MONOLANE_")}
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env={**clean, "HF_HUB_OFFLINE": "1", **environment},
            stdout=subprocess.DEVNULL,
            stderr=self.log,
        )
        self.url = self._wait_for_url()
        self.port = int(self.url.rpartition(":")[2])

    @property
    def words(self) -> str:
        """What it has written to stderr."""
        return Path(self.log.name).read_text()

    def _wait_for_url(self) -> str:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            over = self.process.poll() is not None  # looked at first: its words are whole then
            if found := re.search(r"at (https?://\S+:\d+)$", self.words, re.MULTILINE):
                return found[1]
            assert not over, self.words
            time.sleep(0.02)
        raise AssertionError(f"no server within {PATIENCE:.0f} s: {self.words}")

    def wait_ready(self) -> "ServerProcess":
        """Wait until it has loaded its model."""
        end = time.monotonic() + PATIENCE
        while self.health()[0] != 200:
            assert self.process.poll() is None, self.words
            assert time.monotonic() < end, self.words
            time.sleep(0.02)
        return self

    def health(self) -> tuple[int, str]:
        """Return the status and the word of /health."""
        reply = httpx.get(f"{self.url}/health", timeout=PATIENCE)
        return reply.status_code, reply.json()["status"]

    def status(self, field: str) -> int:
        """Return a number of /proc/PID/status, such as VmRSS in kB or Threads."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{field}:\s+(\d+)", text, re.MULTILINE)[1])

    def open_files(self) -> int:
        """Return how many file descriptors it has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def connections(self) -> int:
        """Return how many connections it has open."""
        found = 0
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            ours = int(fields[1].rpartition(":")[2], 16) == self.port
            # State 0A is the listener; without an inode a connection is nobody's any more.
            found += ours and fields[3] != "0A" and fields[9] != "0"
        return found

    def cpu_seconds(self) -> float:
        """Return the processor time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metric(self, name: str, key: str = KEY) -> float:
        """Return the value of a metric without labels other than the model's."""
        headers = {"Authorization": f"Bearer {key}"}
        text = httpx.get(f"{self.url}/metrics", headers=headers, timeout=PATIENCE).text
        return float(re.search(rf"^{re.escape(name)}{{[^}}]*}} (\S+)$", text, re.MULTILINE)[1])

    def is_idle(self) -> bool:
        """Tell whether nothing runs or waits."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return all(self.metric(name) == 0 for name in names)

    def connect(self) -> socket.socket:
        """Return a bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
        self.log.close()


def wait_until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for a condition, and fail where it does not come to hold."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold in time"
        time.sleep(0.02)


def demo_command(*more: str) -> list[str]:
    return ["-m", "monolane", "serve", "--port", "0", "--no-bandwidth", *more]


@pytest.fixture(scope="session")
def demo_server() -> Iterator[ServerProcess]:
    """The demo model, four sequences at a time, no key."""
    server = ServerProcess(demo_command("--policy", "share:4"))
    yield server.wait_ready()
    server.close()


@pytest.fixture(scope="session")
def keyed_server() -> Iterator[ServerProcess]:
    """The demo model behind KEY."""
    server = ServerProcess(demo_command(), MONOLANE_API_KEY=KEY)
    yield server.wait_ready()
    server.close()


@pytest.fixture
def paced() -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers that draw at a pace: ``paced(tokens_per_second=..., policy=..., ...)``.

    They are ready, but for one that is to be so ``ready_with`` a file.
    """
    servers: list[ServerProcess] = []

    def start(**options: Any) -> ServerProcess:
        script = str(Path(__file__).with_name("paced_server.py"))
        servers.append(ServerProcess([script, json.dumps(options)]))
        return servers[-1] if "ready_with" in options else servers[-1].wait_ready()

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def api_key() -> str:
    """The key of ``keyed_server``."""
    return KEY


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """``eventually(condition, seconds=...)`` waits for a condition; fails where it stays out."""
    return wait_until


@pytest.fixture
def start() -> Iterator[Callable[..., ServerProcess]]:
    """Starts ``monolane serve`` with more options and environment variables."""
    servers: list[ServerProcess] = []

    def begin(*options: str, **environment: str) -> ServerProcess:
        servers.append(ServerProcess(demo_command(*options), **environment))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


@pytest.fixture
def client(keyed_server: Any, api_key: str) -> Iterator[httpx.Client]:
    """A client of ``keyed_server`` that has its key."""
    headers = {"Authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=keyed_server.url, headers=headers, timeout=120) as client:
        yield client


@pytest.fixture
def operate(tiny_model: Path) -> Iterator[Start]:
    """Start ``monolane serve`` of the tiny model, at a free port, with options and variables."""
    made: list[Process] = []

    def start(*options: str, **environment: str) -> Process:
        made.append(Process(tiny_model, *options, **environment))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.wait()
        each.log.close()
