"""examples/scale_out on this machine: two real replicas, of which one is killed.

Everything runs in a Ray of its own, in a process of its own, over loopback, and ends with the test.
"""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("ray", reason="the example needs Ray: pip install 'monolane[scale]'")
pytestmark = pytest.mark.slow

APP = Path(__file__).parents[2] / "examples" / "scale_out" / "app.py"
PREFIXES = [f"# project {number}\n" for number in range(24)]  # all on one replica: not in practice
ENGINE = "ray::ServeReplica:monolane:engine"
KEY = "ml-a-key-for-tests-only"
LONG = {"max_tokens": 1000, "n": 16, "ignore_eos": True}  # sixteen answers in turn: seconds
PATIENCE = 300.0  # seconds in which what must come comes on the slowest machine
HEADERS = {"Authorization": f"Bearer {KEY}"}


class Cluster:
    """The example; its processes are known by a mark in their environment."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url, self.log = f"http://127.0.0.1:{port}", folder / "log"
        self.mark = f"MONOLANE_TEST_MARK={os.getpid()}-{port}"
        name, _, value = self.mark.partition("=")
        command = [sys.executable, str(APP), "--replicas", "2", "--cores", "1", "--port", str(port)]
        clean = {key: v for key, v in os.environ.items() if not key.startswith("MONOLANE_")}
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                command,
                stderr=file,
                stdout=file,
                env={**clean, name: value, "MONOLANE_API_KEY": KEY},
            )

    def wait_ready(self) -> None:
        wait_until(lambda: " at http" in self.log.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    def processes(self, title: str) -> list[int]:
        """Return the ids of its processes whose title has a text in it."""
        found = []
        for path in Path("/proc").iterdir():
            try:
                if title in (path / "cmdline").read_bytes().decode("utf-8", "replace"):
                    marked = self.mark.encode() in (path / "environ").read_bytes()
                    found += [int(path.name)] if marked else []
            except (OSError, ValueError):
                continue
        return found

    def replica(self, name: str) -> int:
        """Return the process of a replica, which has its log open."""
        for pid in self.processes(ENGINE):
            links = [path.readlink().name for path in Path(f"/proc/{pid}/fd").iterdir()]
            if any(link.endswith(f"_{name}.log") for link in links):
                return pid
        raise AssertionError(f"no process of replica {name}")

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)  # SIGINT is ignored by what a shell put aside
        try:
            self.process.wait(timeout=PATIENCE)
        finally:
            for pid in self.processes(""):
                os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    """Return a port that nobody is given by chance before it is used: below those of the system."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it did not come to hold in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Under /tmp: the paths of Ray's sockets must be short.
    made = Cluster(tmp_path_factory.mktemp("scale"))
    try:
        made.wait_ready()
        yield made
    finally:
        made.close()


def ask(cluster: Cluster, prompt: str, **more: object) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **more}
    return httpx.post(f"{cluster.url}/v1/completions", json=body, headers=HEADERS, timeout=PATIENCE)


def owners(cluster: Cluster) -> dict[str, str]:
    """Return which replica answered each prefix."""
    replies = {prefix: ask(cluster, prefix + "def f(x):") for prefix in PREFIXES}
    assert {reply.status_code for reply in replies.values()} == {200}
    return {prefix: reply.headers["x-monolane-replica"] for prefix, reply in replies.items()}


def test_requests_that_begin_alike_go_to_one_replica(cluster: Cluster) -> None:
    first = owners(cluster)
    for turn in range(3):
        for prefix in PREFIXES:
            long = prefix + "x = 1\n" * 60
            replies = [ask(cluster, long + end) for end in ("", f"y = {turn}\n")]
            assert len({reply.headers["x-monolane-replica"] for reply in replies}) == 1
    assert owners(cluster) == first
    spread = {ask(cluster, f"# {n}\n").headers["x-monolane-replica"] for n in range(40)}
    assert len(spread) == 2


def test_conversations_stream_whole(cluster: Cluster) -> None:
    messages = [{"role": "user", "content": "def f(x):"}]
    where = set()
    for _ in range(3):
        body = {"messages": messages, "max_tokens": 64, "ignore_eos": True, "stream": True}
        body["stream_options"] = {"include_usage": True}
        with httpx.stream(
            "POST",
            f"{cluster.url}/v1/chat/completions",
            json=body,
            headers=HEADERS,
            timeout=PATIENCE,
        ) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            where.add(reply.headers["x-monolane-replica"])
            *events, done, _ = reply.read().decode().split("\n\n")
        assert done == "data: [DONE]"
        assert json.loads(events[-1].removeprefix("data: "))["usage"]["completion_tokens"] == 64
        messages += [{"role": "assistant", "content": "..."}, {"role": "user", "content": "more"}]
    assert len(where) == 1


def test_faults_come_through_as_they_are(cluster: Cluster) -> None:
    reply = ask(cluster, "x", max_tokens=-1)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "BadRequestError"
    assert httpx.get(f"{cluster.url}/v1/models", timeout=PATIENCE).status_code == 401
    assert httpx.get(f"{cluster.url}/health", timeout=PATIENCE).status_code == 200
    large = httpx.post(
        f"{cluster.url}/v1/completions",
        content=b"x" * (9 << 20),
        headers=HEADERS,
        timeout=PATIENCE,
    )
    assert large.status_code == 413


def test_a_client_that_goes_away_stops_the_decode(cluster: Cluster) -> None:
    body = {"prompt": "def g(x):", **LONG, "stream": True}
    route = f"{cluster.url}/v1/completions"
    with httpx.stream("POST", route, json=body, headers=HEADERS, timeout=PATIENCE) as reply:
        next(reply.iter_raw())

    def was_ended() -> bool:
        reply = httpx.get(f"{cluster.url}/metrics", headers=HEADERS, timeout=PATIENCE)
        text = reply.text  # of either replica
        return (
            re.search(r'request_success_total{.*"abort".*} [1-9]', text, re.MULTILINE) is not None
        )

    wait_until(was_ended)


def test_service_goes_on_when_a_replica_is_killed(cluster: Cluster) -> None:
    before = owners(cluster)
    gone, kept = sorted(set(before.values()))
    victim, survivor = cluster.replica(gone), cluster.replica(kept)
    os.kill(victim, signal.SIGKILL)
    after = owners(cluster)  # at once, before Ray has noticed
    assert set(after.values()) == {kept}  # who was there stays; the others have moved to it
    wait_until(lambda: is_whole(cluster, without=victim, given=survivor))
    # The new one takes its share of the ring from all, a third of what the survivor had; the rest
    # stays, and all of it holds.
    owned = owners(cluster)
    assert [p for p in PREFIXES if before[p] == kept == owned[p]]
    assert owners(cluster) == owned


def test_what_a_killed_replica_had_begun(cluster: Cluster) -> None:
    """An answer of which nothing was sent comes from another; a stream ends with an error."""
    prefix = PREFIXES[0]
    replies: list[httpx.Response] = []

    def whole() -> None:
        replies.append(ask(cluster, prefix, **LONG))

    threads = [threading.Thread(target=whole) for _ in range(2)]
    # Four times as long: the stream is not over before the kill, however late that comes.
    body = {"prompt": [prefix] * 4, **LONG, "stream": True}
    route = f"{cluster.url}/v1/completions"
    with httpx.stream("POST", route, json=body, headers=HEADERS, timeout=PATIENCE) as reply:
        place = reply.headers["x-monolane-replica"]
        parts = reply.iter_text()
        text = next(parts)
        for thread in threads:  # they wait behind the stream
            thread.start()
        time.sleep(0.5)
        busy = cluster.replica(place)
        os.kill(busy, signal.SIGKILL)
        text += "".join(parts)
    for thread in threads:
        thread.join()
    assert [reply.status_code for reply in replies] == [200, 200]
    assert all(reply.headers["x-monolane-replica"] != place for reply in replies)
    *_, error, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", ""), text[-500:]
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 500, text[-500:]
    wait_until(lambda: is_whole(cluster, without=busy))


def is_whole(cluster: Cluster, *, without: int, given: int | None = None) -> bool:
    """Tell whether two replicas are there again, and both are asked."""
    there = cluster.processes(ENGINE)
    if len(there) != 2 or without in there or given not in (None, *there):
        return False
    replies = [ask(cluster, f"# {n}\n") for n in range(20)]
    return len({reply.headers["x-monolane-replica"] for reply in replies}) == 2
