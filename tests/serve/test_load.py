"""Many clients, rude clients, a server's end: nothing stays behind, and nobody else suffers.

What must happen is waited for, and what must not would take minutes at the pace of the server: a
machine that stands still for seconds changes no outcome. FOREVER tokens are more than any test
waits for.
"""

import contextlib
import itertools
import json
import os
import re
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
FOREVER = 100_000  # tokens: 100 s and more at a pace of 1,000 and below
SECONDS = 60.0  # of a request, in which none of FOREVER tokens can end


def ask(server: Any, *, name: str = "", **body: Any) -> httpx.Response:
    """Ask and return the whole reply; ``name`` goes into the server's log."""
    headers = {"X-Request-Id": name} if name else {}
    url, content = f"{server.url}{COMPLETIONS}", {"prompt": "x", **body}
    return httpx.post(url, json=content, headers=headers, timeout=SECONDS)


def open_stream(server: Any, **body: Any) -> socket.socket:
    """Return a connection on which an answer has begun to come."""
    connection = begin(server, stream=True, **body)
    assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    return connection


def begin(server: Any, *, receive_buffer: int | None = None, **body: Any) -> socket.socket:
    """Return a connection on which a request has been sent."""
    connection = server.connect()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    data = json.dumps({"prompt": "x", **body}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def read_until(connection: socket.socket, wanted: bytes) -> None:
    """Read on until something comes; fail where the connection ends, or gives nothing for long."""
    seen = b""
    while wanted not in seen:
        part = connection.recv(65_536)
        assert part, f"the connection ended before {wanted!r}"
        seen = seen[-1000:] + part


def runs(server: Any, running: int, waiting: int) -> bool:
    """Tell whether so many sequences run and so many wait."""
    wanted = {"vllm:num_requests_running": running, "vllm:num_requests_waiting": waiting}
    return all(server.metric(name) == count for name, count in wanted.items())


def drop(connection: socket.socket) -> None:
    """Close with a reset, as the kernel does for a killed process with unread data."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_stops_the_decode(
    paced: Callable[..., Any], eventually: Callable[..., None], stream: bool
) -> None:
    server = paced(tokens_per_second=200)
    connection = begin(server, stream=stream, max_tokens=FOREVER)
    eventually(lambda: server.metric("vllm:generation_tokens_total") > 5)
    drop(connection)
    # A few hundredths of a second; one that sees it at its next comment takes 15 s, else 500 s.
    eventually(server.is_idle, 12)
    drawn = server.metric("vllm:generation_tokens_total")
    time.sleep(0.1)
    assert server.metric("vllm:generation_tokens_total") == drawn
    assert ask(server, max_tokens=2).status_code == 200


def test_one_that_waits_leaves_the_queue(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    server = paced(tokens_per_second=100)
    with open_stream(server, max_tokens=FOREVER):
        waiting = begin(server, max_tokens=1)
        eventually(lambda: runs(server, 1, 1))
        drop(waiting)
        eventually(lambda: runs(server, 1, 0))
    eventually(server.is_idle)


def test_requests_are_served_in_their_order(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    server = paced(tokens_per_second=2000)
    threads = []
    with open_stream(server, max_tokens=FOREVER):  # while it runs, the others line up
        eventually(lambda: runs(server, 1, 0))
        for place in range(4):
            options = {"max_tokens": 200, "name": f"request-{place}"}
            threads.append(threading.Thread(target=ask, args=(server,), kwargs=options))
            threads[-1].start()
            eventually(lambda: runs(server, 1, place + 1))
    for thread in threads:
        thread.join()

    def ended() -> list[str]:  # by the server's log: who is told last may have been served first
        return re.findall(r"(request-\d) POST .*: done,", server.words)

    eventually(lambda: len(ended()) == 4)
    assert ended() == [f"request-{place}" for place in range(4)]


def test_short_ones_overtake_where_the_policy_says_so(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    server = paced(tokens_per_second=1000, policy="latency:short-first")
    replies: list[httpx.Response] = []
    short = threading.Thread(target=lambda: replies.append(ask(server, max_tokens=10)))
    with contextlib.ExitStack() as open_ones:
        first = open_ones.enter_context(open_stream(server, max_tokens=FOREVER))
        eventually(lambda: runs(server, 1, 0))
        open_ones.enter_context(begin(server, max_tokens=FOREVER))
        eventually(lambda: runs(server, 1, 1))
        short.start()
        eventually(lambda: runs(server, 1, 2))
        first.close()
        short.join()  # behind the long one it would wait for 100 s, and give up before
        eventually(lambda: runs(server, 1, 0))  # which has its turn now
    assert [reply.status_code for reply in replies] == [200]


def test_shared_sequences_advance_together(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    """Each begins while none is over: one after the other, the second would wait for 500 s."""
    server = paced(tokens_per_second=200, policy="share:4")
    with contextlib.ExitStack() as open_ones:
        for _ in range(4):
            one = open_ones.enter_context(begin(server, stream=True, max_tokens=FOREVER))
            read_until(one, b'"text":')
        assert runs(server, 4, 0)
    eventually(server.is_idle)
    with begin(server, stream=True, max_tokens=FOREVER, n=4) as answers:
        for index in range(4):
            read_until(answers, b'"index":%d' % index)
    eventually(server.is_idle)
    assert ask(server, max_tokens=100, n=4).json()["usage"]["completion_tokens"] == 400


def test_a_full_queue_is_said_and_told_when_to_come_back(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    server = paced(tokens_per_second=100, queue_limit=2)
    with contextlib.ExitStack() as open_ones:
        open_ones.enter_context(open_stream(server, max_tokens=FOREVER))
        for _ in range(2):
            open_ones.enter_context(begin(server, max_tokens=FOREVER))
        eventually(lambda: server.metric("vllm:num_requests_waiting") == 2)
        refused = ask(server, max_tokens=1)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json()["error"]["type"] == "RateLimitError"
        assert server.health() == (200, "ok")
    eventually(server.is_idle)
    assert ask(server, max_tokens=1).status_code == 200


def test_a_deadline_ends_a_request_wherever_it_is(paced: Callable[..., Any]) -> None:
    """The request's own deadline: the server's is longer than any of them is waited for."""
    server = paced(tokens_per_second=100, deadline_seconds=2 * SECONDS)
    reply = ask(server, max_tokens=FOREVER, deadline=0.3)
    assert reply.status_code == 504
    assert reply.json()["error"]["type"] == "DeadlineExceededError"
    with open_stream(server, max_tokens=FOREVER):
        assert ask(server, max_tokens=1, deadline=0.3).status_code == 504
    reply = ask(server, max_tokens=FOREVER, deadline=0.3, stream=True)
    assert reply.status_code == 200
    *_, error, done, _ = reply.text.split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 504
    assert done == "data: [DONE]"


@pytest.mark.parametrize("signals", [1, 2])
def test_an_end_with_streams_that_nobody_reads_logs_no_failure(
    paced: Callable[..., Any], eventually: Callable[..., None], signals: int
) -> None:
    server = paced(
        tokens_per_second=20_000, policy="share:4", drain_seconds=0.5, send_seconds=10 * SECONDS
    )
    body = {"stream": True, "max_tokens": FOREVER, "timings_per_token": True}
    with contextlib.ExitStack() as open_ones:
        for _ in range(3):
            open_ones.enter_context(begin(server, receive_buffer=4096, **body))
        # The sender waits for its reader once what the kernel takes is full.
        eventually(lambda: server.metric("vllm:generation_tokens_total") > 15_000)
        for _ in range(signals - 1):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)  # else the two are one
        assert server.stop() == 0
    assert "Traceback" not in server.words, server.words
    assert "Exception" not in server.words


def test_what_a_client_did_leaves_no_traceback(start: Callable[..., Any]) -> None:
    """A grammar that turns out too large amid an answer."""
    server = start().wait_ready()
    for stream in (False, True):
        reply = ask(server, max_tokens=400, guided_regex=r"(\p{L}{1,200}){1,100}", stream=stream)
        assert "cannot be followed" in reply.text, reply.text[:300]
    assert "Traceback" not in server.words, server.words


def test_a_slow_reader_stalls_nobody_and_loses_its_answer(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    """It reads nothing: its buffer fills, its request ends; a neighbour is answered meanwhile."""
    server = paced(tokens_per_second=1000, policy="share:8", buffer_tokens=500, send_seconds=60)
    options = {"stream": True, "max_tokens": 30_000, "timings_per_token": True}
    with begin(server, receive_buffer=4096, n=4, **options):
        # 2 s of tokens; what four answers send fills the kernel's buffers within one. Whoever
        # waited for the reader would do so for the minute that it may take.
        begun = time.monotonic()
        assert ask(server, max_tokens=2000).status_code == 200
        assert time.monotonic() - begun < 20
        eventually(server.is_idle)
        assert server.metric("vllm:generation_tokens_total") < 4 * 30_000
        assert ": buffer, " not in server.words  # its connection has not been let go yet
    eventually(lambda: ": buffer, " in server.words)


def test_one_that_never_reads_its_last_words_is_let_go(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    """Its answer is over, but the reader stands still: the connection is closed all the same."""
    server = paced(tokens_per_second=100_000, send_seconds=0.5)
    options = {"stream": True, "max_tokens": 2000, "timings_per_token": True}
    with begin(server, receive_buffer=4096, prompt=["x"] * 256, **options):
        eventually(lambda: server.metric("vllm:generation_tokens_total") > 0)
        eventually(server.is_idle)
        eventually(lambda: server.connections() == 0)


def test_health_while_loading(
    paced: Callable[..., Any], eventually: Callable[..., None], tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    server = paced(tokens_per_second=1000, ready_with=str(ready))
    eventually(lambda: f"waits for {ready}" in server.words)
    assert server.health() == (503, "loading")
    reply = httpx.get(f"{server.url}/v1/models", timeout=SECONDS)
    assert (reply.status_code, reply.json()["error"]["message"]) == (503, "Loading model")
    assert reply.json()["error"]["type"] == "unavailable_error"
    ready.touch()
    eventually(lambda: server.health() == (200, "ok"))


def test_health_when_nothing_moves(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    server = paced(tokens_per_second=0.001, stall_seconds=0.3)  # a token in 1000 s
    with begin(server, max_tokens=10):
        eventually(lambda: server.metric("vllm:num_requests_running") == 1)
        eventually(lambda: server.health() == (503, "stalled"))
    eventually(lambda: server.health() == (200, "ok"))


def test_a_prompt_that_is_being_read_is_no_stall(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    """A prompt of 200 s, at a stall of 0.4: movement, though no token is drawn.

    Where the machine stands still, nothing moves indeed, for some looks; taken for a stall, the
    prompt itself would be one at every look from the first.
    """
    server = paced(tokens_per_second=1000, prefill=25, stall_seconds=0.4)
    with begin(server, prompt=[5] * 5000, max_tokens=2):
        eventually(lambda: server.metric("vllm:num_requests_running") == 1)
        time.sleep(1.0)
        seen = []
        for _ in range(30):
            seen.append(server.health())
            time.sleep(0.05)
        assert server.metric("vllm:generation_tokens_total") == 0
    assert set(seen) <= {(200, "ok"), (503, "stalled")}
    assert seen.count((200, "ok")) > len(seen) / 2
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
    assert server.process.wait(timeout=SECONDS) == 1
    assert "config.json" in server.words
    assert f"monolane starts {tmp_path} at http" in server.words  # it serves nothing yet
    assert "Traceback" not in server.words


def test_a_taken_port_is_named(demo_server: Any) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "monolane", "serve", "--port", str(demo_server.port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1, port {demo_server.port}" in ended.stderr


def test_sigterm_lets_requests_end(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    """One runs, for 6 s, and one waits: both become whole."""
    server = paced(tokens_per_second=50, drain_seconds=SECONDS)
    replies: dict[int, httpx.Response] = {}

    def one(tokens: int) -> None:
        replies[tokens] = ask(server, max_tokens=tokens)

    threads = []
    for waiting, tokens in enumerate((300, 20)):
        threads.append(threading.Thread(target=one, args=(tokens,)))
        threads[-1].start()
        eventually(lambda: runs(server, 1, waiting))
    assert server.stop() == 0
    for thread in threads:
        thread.join()
    assert {reply.status_code for reply in replies.values()} == {200}
    assert {reply.json()["usage"]["completion_tokens"] for reply in replies.values()} == {300, 20}
    with pytest.raises(httpx.ConnectError):
        ask(server, max_tokens=1)


def test_an_end_on_request_says_nothing(start: Callable[..., Any]) -> None:
    """nanobind reports objects that the collector was kept from: twenty lines for each SIGTERM."""
    server = start().wait_ready()
    assert ask(server, max_tokens=2).status_code == 200
    assert server.stop() == 0
    assert "leaked" not in server.words


def test_what_outlasts_the_drain_is_told_so(paced: Callable[..., Any]) -> None:
    server = paced(tokens_per_second=100, drain_seconds=0.5)
    with open_stream(server, max_tokens=FOREVER) as connection:
        server.process.send_signal(signal.SIGTERM)
        parts = []
        while part := connection.recv(65_536):
            parts.append(part)
    last = b"".join(parts)[-1000:]
    assert b'"code": 503' in last
    assert b"data: [DONE]" in last
    assert server.process.wait(timeout=SECONDS) == 0


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
            begin(server, stream=True, max_tokens=FOREVER)
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
    """Files and threads are as before, and ``most`` kB are the most that memory grows by.

    In one of three rounds: where the machine stands still, thousands of tokens become due at once,
    and the allocator keeps the room that they took. A leak shows in every round.
    """
    kill_mid_stream(server, 3 * together, together)  # whatever is made once, is made here
    eventually(server.is_idle)
    eventually(lambda: server.connections() == 0)
    grown = []
    for _ in range(3):
        before = server.status("VmRSS"), server.open_files(), server.status("Threads")
        kill_mid_stream(server, count, together)
        eventually(server.is_idle)
        eventually(lambda: server.connections() == 0)
        after = server.status("VmRSS"), server.open_files(), server.status("Threads")
        assert after[1] <= before[1]
        # Pools of threads fill as chance has it, up to a few; a leak would be a thread a client.
        assert after[2] - before[2] <= 4
        grown.append(after[0] - before[0])
        if grown[-1] < most:
            break
    assert min(grown) < most, grown
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

    Pools grow by 10 to 13 MB for each of the first three to five thousands of clients, which come
    before anything is measured, and by 0 to 3 MB then. A leaked request holds 10 kB: each thousand
    would add 10 MB.
    """
    server = start("--policy", "share:4").wait_ready()
    kill_mid_stream(server, 5000, 25)
    baseline(server, eventually, 1000, 25, most=10_000)
    for _ in range(24):
        before = server.status("VmRSS")
        kill_mid_stream(server, 1000, 25)
        eventually(server.is_idle)
        if server.status("VmRSS") - before < 1500:
            return
    raise AssertionError("memory goes on growing")


@pytest.mark.alone
def test_a_long_prompt_of_one_does_not_hold_up_another(
    paced: Callable[..., Any], tmp_path: Path
) -> None:
    """While megabytes are parsed and encoded, a stream's gaps stay those of a screen's picture.

    Held up, it would stand for as long as an encoding takes: seconds. The best of three streams is
    looked at, since a machine that stands still makes gaps of its own.
    """
    server = paced(tokens_per_second=1000, context=1 << 20)
    tried = []
    for _ in range(3):
        gaps, encoding = gaps_while_encoding(server)
        assert len(gaps) > 20
        tried.append((sorted(gaps)[len(gaps) // 2], max(gaps), encoding))
        middle, longest, _ = tried[-1]
        if middle < 0.1 and longest < encoding / 2:
            return
    raise AssertionError(f"median and longest gap, seconds of an encoding: {tried}")


def gaps_while_encoding(server: Any) -> tuple[list[float], float]:
    """Return the seconds between the parts of a stream, and those of an encoding beside it."""
    times: list[float] = []
    seconds: list[float] = []
    over = threading.Event()

    def encode() -> None:
        body = {"prompt": "def f(x): return x\n" * 200_000}
        while not over.is_set():
            begun = time.monotonic()
            reply = httpx.post(f"{server.url}/tokenize", json=body, timeout=2 * SECONDS)
            assert reply.status_code == 200
            seconds.append(time.monotonic() - begun)

    thread = threading.Thread(target=encode)
    thread.start()
    time.sleep(0.3)
    body = {"prompt": "x", "max_tokens": 1500, "stream": True}
    with httpx.stream("POST", f"{server.url}{COMPLETIONS}", json=body, timeout=SECONDS) as reply:
        times += [time.monotonic() for _ in reply.iter_raw()]
    over.set()
    thread.join()
    return [later - sooner for sooner, later in itertools.pairwise(times)], min(seconds)


def test_an_error_in_one_request_harms_no_other(
    paced: Callable[..., Any], eventually: Callable[..., None]
) -> None:
    server = paced(tokens_per_second=1000)
    for body in (b"{", b"[]", b'{"prompt": 1}', os.urandom(100)):
        headers = {"Content-Type": "application/json"}
        url = f"{server.url}{COMPLETIONS}"
        reply = httpx.post(url, content=body, headers=headers, timeout=SECONDS)
        assert reply.status_code == 400
    assert ask(server, max_tokens=2).status_code == 200
    assert server.health() == (200, "ok")
