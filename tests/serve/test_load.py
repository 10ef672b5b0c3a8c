"""Many clients, rude clients, a server's end: nothing stays behind, and nobody else suffers."""

import contextlib
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

COMPLETIONS = "/v1/completions"


def ask(server: Any, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{COMPLETIONS}", json={"prompt": "x", **body}, timeout=60)


def open_stream(server: Any, **body: Any) -> socket.socket:
    """Return a connection on which an answer has begun to come."""
    connection = begin(server, stream=True, **body)
    assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    return connection


def begin(server: Any, **body: Any) -> socket.socket:
    """Return a connection on which a request has been sent."""
    connection = server.connect()
    data = json.dumps({"prompt": "x", **body}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def drop(connection: socket.socket) -> None:
    """Close with a reset, as the kernel does for a killed process with unread data."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_stops_the_decode(
    paced: Callable[..., Any], eventually: Callable[..., None], stream: bool
) -> None:
    server = paced(tokens_per_second=200)
    connection = begin(server, stream=stream, max_tokens=100_000)
    eventually(lambda: server.metric("vllm:generation_tokens_total") > 5)
    drop(connection)
    gone = time.monotonic()
    eventually(server.is_idle)
    assert time.monotonic() - gone < 1
    drawn = server.metric("vllm:generation_tokens_total")
    time.sleep(0.1)
    assert server.metric("vllm:generation_tokens_total") == drawn
    assert ask(server, max_tokens=2).status_code == 200


def test_one_that_waits_leaves_the_queue(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    server = paced(tokens_per_second=100)
    with open_stream(server, max_tokens=100_000):
        waiting = begin(server, max_tokens=1)
        eventually(lambda: server.metric("vllm:num_requests_waiting") == 1)
        drop(waiting)
        eventually(lambda: server.metric("vllm:num_requests_waiting") == 0)
    eventually(server.is_idle)


def test_requests_are_served_in_their_order(paced: Callable[..., Any]) -> None:
    server = paced(tokens_per_second=2000)
    ended: list[int] = []

    def one(index: int) -> None:
        assert ask(server, max_tokens=200).status_code == 200
        ended.append(index)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.03)
    for thread in threads:
        thread.join()
    assert ended == [0, 1, 2, 3]


def test_short_ones_overtake_where_the_policy_says_so(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    server = paced(tokens_per_second=1000, policy="latency:short-first")
    ended: list[str] = []

    def one(name: str, tokens: int) -> None:
        assert ask(server, max_tokens=tokens).status_code == 200
        ended.append(name)

    threads = []
    for place, (name, tokens) in enumerate([("first", 500), ("long", 1000), ("short", 10)]):
        threads.append(threading.Thread(target=one, args=(name, tokens)))
        threads[-1].start()
        eventually(lambda: server.metric("vllm:num_requests_running") == 1)
        eventually(lambda: server.metric("vllm:num_requests_waiting") == place)
    for thread in threads:
        thread.join()
    assert ended == ["first", "short", "long"]


def test_shared_sequences_advance_together(paced: Callable[..., Any]) -> None:
    server = paced(tokens_per_second=200, policy="share:4")
    begin = time.monotonic()
    threads = [
        threading.Thread(target=ask, args=(server,), kwargs={"max_tokens": 100}) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begin < 1.5  # one after the other they would take 2 s
    reply = ask(server, max_tokens=100, n=4)
    assert time.monotonic() - begin < 3.0
    assert reply.json()["usage"]["completion_tokens"] == 400


def test_a_full_queue_is_said_and_told_when_to_come_back(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    server = paced(tokens_per_second=100, queue_limit=2)
    with contextlib.ExitStack() as open_ones:
        open_ones.enter_context(open_stream(server, max_tokens=100_000))
        for _ in range(2):
            open_ones.enter_context(begin(server, max_tokens=100_000))
        eventually(lambda: server.metric("vllm:num_requests_waiting") == 2)
        refused = ask(server, max_tokens=1)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json()["error"]["type"] == "RateLimitError"
        assert httpx.get(f"{server.url}/health").status_code == 200
    eventually(server.is_idle)
    assert ask(server, max_tokens=1).status_code == 200


def test_a_deadline_ends_a_request_wherever_it_is(paced: Callable[..., Any]) -> None:
    server = paced(tokens_per_second=100, deadline_seconds=5)
    begin = time.monotonic()
    reply = ask(server, max_tokens=100_000, deadline=0.3)
    assert reply.status_code == 504
    assert reply.json()["error"]["type"] == "DeadlineExceededError"
    assert time.monotonic() - begin < 2
    with open_stream(server, max_tokens=100_000):
        assert ask(server, max_tokens=1, deadline=0.3).status_code == 504
    reply = ask(server, max_tokens=100_000, deadline=0.3, stream=True)
    assert reply.status_code == 200
    *_, error, done, _ = reply.text.split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 504
    assert done == "data: [DONE]"


def test_a_slow_reader_stalls_nobody_and_loses_its_answer(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    """It reads nothing: its buffer fills, its request ends; a neighbour's pace stays as it was."""
    server = paced(tokens_per_second=3000, policy="share:2", buffer_tokens=500, send_seconds=1.0)
    small = server.connect()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = {"prompt": "x", "stream": True, "max_tokens": 30_000, "timings_per_token": True}
    data = json.dumps(body).encode()
    small.sendall(
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    reply = ask(server, max_tokens=6000)
    speed = reply.json()["timings"]["predicted_per_second"]
    assert speed == pytest.approx(3000, rel=0.1)
    eventually(server.is_idle, 20)
    assert server.metric("vllm:generation_tokens_total") < 30_000
    eventually(lambda: ": buffer, " in server.words)  # when the connection has been let go
    small.close()


def test_one_that_never_reads_its_last_words_is_let_go(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    """The answer is whole, but its reader stands still: the connection is closed all the same."""
    server = paced(tokens_per_second=100_000, send_seconds=0.5)
    before = server.open_files()
    connection = server.connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = {"prompt": ["x"] * 256, "stream": True, "max_tokens": 2000, "timings_per_token": True}
    data = json.dumps(body).encode()
    connection.sendall(
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    eventually(lambda: server.metric("vllm:generation_tokens_total") > 0)
    eventually(server.is_idle, 20)
    eventually(lambda: server.open_files() == before, 10)
    connection.close()


def test_health_while_loading_and_when_nothing_moves(
    paced: Callable[..., Any], start: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    loading = start("--bandwidth")  # the last in a row: half a second in which it is not ready
    seen = httpx.get(f"{loading.url}/health")
    if seen.status_code == 503:  # a fast machine may be through
        assert seen.json() == {"status": "loading"}
        reply = httpx.get(f"{loading.url}/v1/models")
        assert (reply.status_code, reply.json()["error"]["message"]) == (503, "Loading model")
        assert reply.json()["error"]["type"] == "unavailable_error"
    loading.wait_ready()
    server = paced(tokens_per_second=0.5, stall_seconds=0.3)
    with begin(server, max_tokens=10):
        eventually(lambda: server.metric("vllm:num_requests_running") == 1)
        time.sleep(0.5)
        reply = httpx.get(f"{server.url}/health")
        assert (reply.status_code, reply.json()) == (503, {"status": "stalled"})
    eventually(lambda: httpx.get(f"{server.url}/health").status_code == 200)


def test_a_prompt_that_is_being_read_is_no_stall(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    """Two seconds of prompt, at a stall of 0.4: movement, though no token is drawn."""
    server = paced(tokens_per_second=1000, prefill=500, stall_seconds=0.4)
    seen = []
    with begin(server, prompt=[5] * 1000, max_tokens=2):
        eventually(lambda: server.metric("vllm:num_requests_running") == 1)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            seen.append(httpx.get(f"{server.url}/health").status_code)
            time.sleep(0.05)
        assert server.metric("vllm:generation_tokens_total") == 0
    assert set(seen) == {200}
    eventually(server.is_idle)


def test_the_event_loop_is_the_same_whatever_is_installed(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """uvicorn would take uvloop where it finds it, as beside Ray; here it finds one that fails."""
    (tmp_path / "uvloop.py").write_text("raise RuntimeError('uvloop was taken')")
    server = start(PYTHONPATH=str(tmp_path)).wait_ready()
    assert ask(server, max_tokens=2).status_code == 200


def test_a_model_that_cannot_be_loaded_ends_the_server(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    server = start("--model", str(tmp_path))
    assert server.process.wait(timeout=30) == 1
    assert "config.json" in server.words
    assert "Traceback" not in server.words


def test_a_taken_port_is_named(demo_server: Any) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "monolane", "serve", "--port", str(demo_server.port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1, port {demo_server.port}" in ended.stderr


def test_sigterm_lets_requests_end(paced: Callable[..., Any]) -> None:
    server = paced(tokens_per_second=500)
    replies: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: replies.append(ask(server, max_tokens=250)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    assert server.stop() == 0
    for thread in threads:
        thread.join()
    assert [reply.status_code for reply in replies] == [200, 200]
    assert [reply.json()["usage"]["completion_tokens"] for reply in replies] == [250, 250]
    with pytest.raises(httpx.ConnectError):
        ask(server, max_tokens=1)


def test_what_outlasts_the_drain_is_told_so(paced: Callable[..., Any]) -> None:
    server = paced(tokens_per_second=100, drain_seconds=0.5)
    with open_stream(server, max_tokens=100_000) as connection:
        server.process.send_signal(signal.SIGTERM)
        parts = []
        while part := connection.recv(65_536):
            parts.append(part)
    assert b'"code": 503' in b"".join(parts[-3:])
    assert b"data: [DONE]" in b"".join(parts[-3:])
    assert server.process.wait(timeout=20) == 0


def test_kill_leaves_nothing_behind(paced: Callable[..., Any], start: Callable[..., Any]) -> None:
    for server in (paced(tokens_per_second=100), start().wait_ready()):
        with open_stream(server, max_tokens=1000):
            pid = server.process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            threads = [path.name for path in Path(f"/proc/{pid}/task").iterdir()]
            assert children == ""
            assert len(threads) > 1
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError):
                if process.name.isdigit():
                    fields = (process / "stat").read_text().rpartition(")")[2].split()
                    assert fields[1] != str(pid), f"{process} is its child"
        with pytest.raises(OSError, match="refused"):
            server.connect()


def kill_mid_stream(server: Any, count: int, together: int) -> None:
    """Open streams, ``together`` at a time, and reset each at another moment."""
    for first in range(0, count, together):
        connections = [
            begin(server, stream=True, max_tokens=100_000)
            for _ in range(min(together, count - first))
        ]
        for place, connection in enumerate(connections):
            if place % 3 == 0:
                connection.settimeout(2)
                with contextlib.suppress(TimeoutError):
                    connection.recv(200)
            drop(connection)


def baseline(
    server: Any, eventually: Callable[..., None], count: int, together: int, most: int
) -> None:
    """Files and threads are as before, and ``most`` kB are the most that memory grows by."""
    kill_mid_stream(server, 3 * together, together)  # whatever is made once, is made here
    eventually(server.is_idle, 30)
    eventually(lambda: server.open_files() <= 32, 10)
    before = server.status("VmRSS"), server.open_files(), server.status("Threads")
    kill_mid_stream(server, count, together)
    eventually(server.is_idle, 60)
    eventually(lambda: server.open_files() <= before[1], 10)
    after = server.status("VmRSS"), server.open_files(), server.status("Threads")
    # Pools of threads fill as chance has it, up to a few; a leak would be a thread a client.
    assert after[2] - before[2] <= 4
    assert after[0] - before[0] < most
    assert ask(server, max_tokens=4).status_code == 200


def test_killed_clients_leave_no_trace(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    baseline(paced(tokens_per_second=3000, policy="share:4"), eventually, 60, 10, most=2048)


@pytest.mark.slow
def test_a_thousand_killed_clients_leave_no_trace(
    start: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    """With the demo model's real decode: slots, memory, threads and files as before.

    The allocators' pools grow by some MB for each of the first thousands of clients, ever less (by
    0 to 1 MB behind ten thousand). A leaked request holds 10 kB: each thousand would add 10 MB.
    """
    server = start("--policy", "share:4").wait_ready()
    baseline(server, eventually, 1000, 25, most=10_000)
    for _ in range(24):
        before = server.status("VmRSS")
        kill_mid_stream(server, 1000, 25)
        eventually(server.is_idle, 60)
        if server.status("VmRSS") - before < 1500:
            return
    raise AssertionError("memory goes on growing")


def test_a_long_prompt_of_one_does_not_hold_up_another(
    paced: Callable[..., Any], tmp_path: Path
) -> None:
    """While megabytes are parsed and encoded, a stream's gaps stay those of a screen's picture."""
    server = paced(tokens_per_second=1000, context=1 << 20)
    times: list[float] = []
    over = threading.Event()

    def encode() -> None:
        body = {"prompt": "def f(x): return x\n" * 200_000}
        while not over.is_set():
            assert httpx.post(f"{server.url}/tokenize", json=body, timeout=60).status_code == 200

    thread = threading.Thread(target=encode)
    thread.start()
    time.sleep(0.3)
    with httpx.stream(
        "POST",
        f"{server.url}{COMPLETIONS}",
        json={"prompt": "x", "max_tokens": 1500, "stream": True},
        timeout=60,
    ) as reply:
        for _ in reply.iter_raw():
            times.append(time.monotonic())
    over.set()
    thread.join()
    gaps = sorted(later - sooner for sooner, later in itertools.pairwise(times))
    assert len(gaps) > 20
    assert gaps[len(gaps) // 2] < 0.1
    assert gaps[-1] < 1.0, gaps[-5:]


def test_an_error_in_one_request_harms_no_other(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    server = paced(tokens_per_second=1000)
    for body in (b"{", b"[]", b'{"prompt": 1}', os.urandom(100)):
        headers = {"Content-Type": "application/json"}
        reply = httpx.post(f"{server.url}{COMPLETIONS}", content=body, headers=headers)
        assert reply.status_code == 400
    assert ask(server, max_tokens=2).status_code == 200
    assert httpx.get(f"{server.url}/health").status_code == 200
