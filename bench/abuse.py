"""What one client can do to a server and to others, beside what the first version let it do.

    python bench/abuse.py --out bench/results

Servers of their own, reached over bare sockets. ``before`` is the figure of commit 906d0b1 on a
machine of the same kind, and ``goal`` what was to be reached; both are quoted, not measured here.
Stalls are the longest time in which a stream of 1,000 tokens/s (a paced engine) got nothing while
another client's body was read; one event holds 5 ms, so 5 to 7 ms are no stall. What holds the
process up for moments shows in single runs, so a record has the least and the largest, too.
"""

import argparse
import http.client
import itertools
import json
import re
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from _document import publish
from _server import Address, Server, server

from monolane.measure import Record, paced_engine, summary
from monolane.serve import Policy, ServerOptions, serve

DEMO = [sys.executable, "-m", "monolane", "serve", "--port", "0", "--no-bandwidth"]
PACED = [sys.executable, __file__, "--paced"]  # and its context and tokens/s
SLOW = [*DEMO, "--backend", "reference"]
START = 120.0  # seconds for a server
MB = 1_000_000
JSON = "Content-Type: application/json\r\n"
DIGITS = json.dumps({"prompt": "7" * (8 * MB)}).encode()
CHAT = {"messages": [{"role": "user", "content": "def f(x):"}]}
CHUNK = b"1\r\nx\r\n"


def text_body(piece: str) -> bytes:
    """Return a chat of 7 MB of a piece, as JSON spells it."""
    text = piece * (7 * MB // len(piece.encode()))
    return f'{{"messages": [{{"role": "user", "content": "{text}"}}], "max_tokens": 1}}'.encode()


# A body of 7 MB each, and the route that it goes to.
BODIES: dict[str, tuple[str, bytes]] = {
    "nothing else": ("", b""),
    "JSON in a field that nobody reads": (
        "/v1/completions",
        b'{"prompt": "x", "max_tokens": 1, "junk": [' + b"{}," * (7 * MB // 3) + b"{}]}",
    ),
    r"a text of \n": ("/v1/chat/completions", text_body(r"\n")),
    r"a text of \u4e2d": ("/v1/chat/completions", text_body(r"\u4e2d")),
    "a text of Chinese": ("/v1/chat/completions", text_body("中")),
    "a field's name of escapes": (
        "/v1/completions",
        b'{"prompt": "x", "max_tokens": 1, "' + rb"\n" * (7 * MB // 2) + b'": 1}',
    ),
    "280,000 token ids": (
        "/v1/completions",
        b'{"prompt": [' + b"5," * 279_998 + b'5], "max_tokens": true}',
    ),
    "digits, to be encoded": ("/tokenize", json.dumps({"prompt": "7" * (7 * MB)}).encode()),
}


def main() -> None:
    """Measure, and write one results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="of what varies from run to run")
    parser.add_argument("--what", action="append", choices=PARTS, help="repeatable [default: all]")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    records = []
    for name in options.what or PARTS:
        for record in PARTS[name](options.runs):
            sys.stderr.write(f"{json.dumps(record)}\n")
            records.append(record)
    publish(records, "abuse", options.out)


def record(attack: str, samples: list[float], unit: str, **more: Any) -> Record:
    """Return a record; ``more`` has ``before`` and ``goal``, where there are such."""
    unit = f"{unit}: {attack}"
    if "before" in more:
        unit += f"; before {more['before']:g}"
    if "goal" in more:
        unit += f"; goal {more['goal']}"
    return {
        "name": "abuse",
        "engine": "monolane",
        "attack": attack,
        **summary(samples, unit),
        **more,
    }


def digits(runs: int) -> Iterator[Record]:
    """Megabytes to be encoded: the time of one and of four at once, and memory."""
    with server(DEMO, START) as demo:
        rest = status(demo, "VmRSS")
        yield record(
            "memory after the start", [rest], "MB", before=600.0, goal="150 beside the model's 9"
        )
        times = [timed(lambda: post(demo, "/tokenize", DIGITS)) for _ in range(runs)]
        yield record("8 MB of digits to /tokenize", times, "s", before=8.4)
        four = [timed(lambda: together(demo, 4)) for _ in range(runs)]
        yield record("four of them at once", four, "s", before=42.0)
        yield record("their peak of memory", [status(demo, "VmHWM")], "MB", before=6400.0)
        time.sleep(3)  # memory is given back a second after a large request
        kept = status(demo, "VmRSS") - rest
        yield record("memory that they leave behind", [kept], "MB", before=3300.0)
        chats = []
        for _ in range(runs):
            for _ in range(6):
                connect(demo, head("/tokenize", len(DIGITS)) + DIGITS).close()
            chats.append(timed(lambda: chat(demo, max_tokens=1)))
        yield record("a chat of one token behind six that were abandoned", chats, "s", before=26.0)


def stalls(runs: int) -> Iterator[Record]:
    """The longest pause of a stream while another client's body is read."""
    known: dict[str, Any] = {
        "JSON in a field that nobody reads": {"before": 1600.0},
        "nothing else": {},
    }
    with server([*PACED, "32768", "1000"], START) as paced:
        for name, (path, body) in BODIES.items():
            attack = partial(post, paced, path, body) if path else (lambda: None)
            found = [longest_gap(paced, attack) for _ in range(runs)]
            yield record(f"stall: {name}", found, "ms", goal="20", **known.get(name, {}))
        found = [longest_gap(paced, lambda: small_chunks(paced)) for _ in range(runs)]
        yield record("stall: 300,000 chunks of one byte", found, "ms", goal="20")


def longest_gap(paced: Server, attack: Callable[[], object]) -> float:
    """Return milliseconds; the stream runs before and after the attack, too."""
    times: list[float] = []
    begun, over = threading.Event(), threading.Event()

    def read() -> None:
        body = {"prompt": [5], "max_tokens": 30_000, "ignore_eos": True, "stream": True}
        data = json.dumps(body).encode()
        with connect(paced, head("/v1/completions", len(data)) + data) as stream:
            while not over.is_set() and stream.recv(1 << 16):
                times.append(time.perf_counter())
                begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    begun.wait()
    time.sleep(0.2)
    attack()
    time.sleep(0.2)
    over.set()
    thread.join()
    return max(later - sooner for sooner, later in itertools.pairwise(times[2:])) * 1e3


def small_chunks(paced: Server) -> None:
    """Send a body in chunks of one byte, and wait for the answer."""
    start = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
    with connect(paced, start + JSON.encode() + b"\r\n") as connection:
        for _ in range(300):
            connection.sendall(CHUNK * 1000)
        connection.sendall(b"0\r\n\r\n")
        connection.recv(1000)


def life(runs: int) -> Iterator[Record]:
    """Signals and the queue."""
    times = []
    for _ in range(runs):
        with server([*DEMO, "--drain", "1000"], START) as demo, ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(stream_of(demo, "/v1/completions", prompt="x", max_tokens=1000))
            demo.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            demo.process.send_signal(signal.SIGTERM)
            times.append(timed(demo.process.wait))
    yield record(
        "from a second SIGTERM to the end, eight requests open", times, "s", goal="at once"
    )
    with server([*SLOW, "--queue", "80"], START) as slow, ExitStack() as stack:
        taken = 0
        for _ in range(100):
            one = stack.enter_context(
                stream_of(slow, "/v1/completions", prompt=[5], max_tokens=1000)
            )
            taken += one.recv(12) == b"HTTP/1.1 200"
    yield record("taken of 100 with --queue 80, one of which runs", [taken], "requests", goal="81")


def speeds(runs: int) -> Iterator[Record]:
    """What HTTP adds to the engine's own times, and what forced tokens count."""
    schema = {"const": {"a_rather_long_name": "and a long value that nobody draws", "x": [1, 2]}}
    with server(DEMO, START) as demo:
        timings = chat(demo, json_schema=schema)["timings"]
        yield record(
            f"speed told of {timings['predicted_n']} tokens, all of them forced",
            [timings["predicted_per_second"]],
            "tokens/s",
            goal="0",
        )
        firsts = []
        connection = http.client.HTTPConnection(demo.url.removeprefix("http://"))
        for _ in range(10 * runs):
            body = CHAT | {"stream": True, "max_tokens": 2, "timings_per_token": True}
            begun = time.perf_counter()
            connection.request(
                "POST",
                "/v1/chat/completions",
                json.dumps(body),
                {"Content-Type": "application/json"},
            )
            reply = connection.getresponse()
            while not (line := reply.readline()).startswith(b"data: {"):
                pass
            first = (time.perf_counter() - begun) * 1e3
            firsts.append(first - json.loads(line[6:])["timings"]["prompt_ms"])
            reply.read()
        yield record(
            "first event on a kept connection, beyond the engine's time", firsts, "ms", goal="3"
        )
        yield from shares(demo, "the demo model", 900, runs)
    with server([*PACED, "16384", "3000"], START) as paced:
        yield from shares(paced, "a paced engine of 3,000 tokens/s", 9000, runs)


def shares(of: Server, engine: str, tokens: int, runs: int) -> Iterator[Record]:
    """The share of the engine's speed that arrives through each API."""
    fields = {"temperature": 0, "ignore_eos": True}
    message = {"messages": [{"role": "user", "content": "x"}], "max_tokens": tokens}
    cases: tuple[tuple[str, bytes, dict[str, Any]], ...] = (
        ("/v1/chat/completions", b"data: ", message),
        ("/v1/responses", b"output_text.delta", {"input": "x", "max_output_tokens": tokens}),
        ("/v1/messages", b"content_block_delta", message),
    )
    for path, delta, body in cases:
        found = [streamed_share(of, path, delta, body | fields, tokens) for _ in range(runs)]
        yield record(
            f"{path}: share of the speed of {engine} that arrives",
            [100 * share for share, _ in found],
            "%",
            engine_tokens_per_s=statistics.median(speed for _, speed in found),
            goal="97",
        )


def streamed_share(
    of: Server, path: str, delta: bytes, body: dict[str, Any], tokens: int
) -> tuple[float, float]:
    """Return the share of the engine's speed in one request that a client sees, and that speed.

    Both are of the tokens behind the first, over the time from the first to the last: the engine's
    by its own clock, from /metrics.
    """
    before = decode_seconds(of)
    times = []
    with stream_of(of, path, **body) as stream:
        while data := stream.recv(1 << 16):
            if delta in data:
                times.append(time.perf_counter())
            if (
                b"[DONE]" in data
                or b"message_stop" in data
                or b"response.completed" in data
                or b"response.incomplete" in data
            ):
                break
    while (engine := decode_seconds(of) - before) == 0:
        time.sleep(0.01)
    return engine / (times[-1] - times[0]), (tokens - 1) / engine


def decode_seconds(of: Server) -> float:
    """Return the seconds of decode so far, by the server's clock."""
    text = request(of, "GET", "/metrics")[1].decode()
    found = re.search(r"^vllm:request_decode_time_seconds_sum\S* (\S+)$", text, re.M)
    assert found
    return float(found[1])


def head(path: str, length: int) -> bytes:
    """Return the head of a posted request."""
    start = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{JSON}"
    return f"{start}Content-Length: {length}\r\n\r\n".encode()


def connect(to: Address, data: bytes) -> socket.socket:
    """Return a connection on which this has been sent."""
    connection = socket.create_connection(
        ("127.0.0.1", int(to.url.rpartition(":")[2])), timeout=300
    )
    connection.sendall(data)
    return connection


def stream_of(to: Server, path: str, **body: Any) -> socket.socket:
    """Return a connection on which a streamed answer has been asked for."""
    data = json.dumps(body | {"stream": True}).encode()
    return connect(to, head(path, len(data)) + data)


def request(to: Address, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Return status and body of a reply."""
    connection = http.client.HTTPConnection(to.url.removeprefix("http://"), timeout=300)
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    reply = connection.getresponse()
    found = reply.status, reply.read()
    connection.close()
    return found


def post(to: Address, path: str, body: bytes) -> None:
    """Post a body, whatever comes of it."""
    request(to, "POST", path, body)


def chat(to: Server, **fields: Any) -> dict[str, Any]:
    """Return the answer to a short chat."""
    code, data = request(to, "POST", "/v1/chat/completions", json.dumps(CHAT | fields).encode())
    assert code == 200, data
    return dict(json.loads(data))


def together(to: Server, count: int) -> None:
    """Post the digits several times at once."""
    threads = [threading.Thread(target=post, args=(to, "/tokenize", DIGITS)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def status(of: Server, field: str) -> float:
    """Return a number of /proc/PID/status, in MB."""
    text = Path(f"/proc/{of.process.pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+)", text, re.M)
    assert found
    return int(found[1]) / 1e3


PARTS: dict[str, Callable[[int], Iterator[Record]]] = {
    "digits": digits,
    "stalls": stalls,
    "life": life,
    "speeds": speeds,
}


def serve_paced() -> None:
    """Be a server whose tokens come at a set pace."""
    context, pace = map(int, sys.argv[2:4])
    options = ServerOptions(port=0, policy=Policy(4), model_name="paced")
    serve(
        lambda: paced_engine(pace, slots=4, context=context),
        options,
        announce=lambda url: print(f"at {url}", flush=True),
    )


if __name__ == "__main__":
    serve_paced() if sys.argv[1:2] == ["--paced"] else main()
