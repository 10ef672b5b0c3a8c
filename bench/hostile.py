"""What 64 connections of hostile clients do to another client's chat of one token.

    python bench/hostile.py --out bench/results

A server of the demo model, without keys: all come from one address. It has 64 slots, as many as
there can be; of hostile connections that each hold one there are 63, so that one is free. A client
asks for one token again and again, each time on a new connection; in turns it is alone, and beside
connections that a process of their own keeps busy with one kind of hostile request, or with a
quarter of each. A record has the 99th percentile of each round. The goal is that beside them it is
at most 50 ms more. What the hostile process takes of the processor counts, too.
"""

import argparse
import contextlib
import itertools
import json
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from _document import publish
from _server import Address, Server, server
from abuse import CHAT, DEMO, MB, START, connect, head, post, status

from monolane.measure import Record, summary

CONNECTIONS = 64
AMBIGUOUS = "root ::= s\ns ::= s s | s s s | s s s s | [a-z]"
TIMEOUT = 600.0
Send = Callable[[Address], object]


def posted(path: str, **body: object) -> Send:
    """Return what posts a body and waits for the reply."""
    data = json.dumps(body).encode()
    return lambda to: post(to, path, data)


def unread(to: Address) -> None:
    """Ask for a stream and read nothing of it, until the server ends it."""
    body = {"prompt": "def f(x):", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    with connect(to, head("/v1/completions", len(data)) + data) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        time.sleep(5)


KINDS: dict[str, Send] = {
    "bodies of 8 MB to be encoded": posted("/tokenize", prompt=(" " * 63 + "x") * (MB // 8)),
    "an ambiguous grammar": posted("/v1/completions", prompt="x", max_tokens=30, grammar=AMBIGUOUS),
    "chats of 8,000 messages to be rendered": posted(
        "/v1/chat/completions/input_tokens",
        messages=[{"role": "user", "content": "</s>"}] * 8000,
    ),
    "readers that do not read": unread,
}
ALL = "a quarter of each"
HOLDING = ("an ambiguous grammar", "readers that do not read")


def connections(kind: str) -> int:
    """Return how many there are of a kind."""
    return CONNECTIONS - (kind in HOLDING)


def main() -> None:
    """Measure, and write one results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="alone and beside, in turns")
    # As many as see the readers' connections end and come anew together, every 5 s, several times.
    parser.add_argument("--chats", type=int, default=300, help="of a round, each way")
    parser.add_argument("--kind", action="append", choices=[*KINDS, ALL], help="[default: all]")
    parser.add_argument("--attack", nargs=2, metavar=("URL", "KIND"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    if options.attack:
        attack(*options.attack)
        return
    records = []
    for kind in options.kind or (*KINDS, ALL):
        for record in measured(kind, options.rounds, options.chats):
            sys.stderr.write(f"{json.dumps(record)}\n")
            records.append(record)
    publish(records, "hostile", options.out)


def measured(kind: str, rounds: int, chats: int) -> Iterator[Record]:
    """Yield the records of one kind: alone, and beside the hostile connections."""
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    refused = 0
    with server([*DEMO, "--policy", "share:64", "--queue", "64"], START) as demo:
        asked(demo, chats)  # to warm up
        for _ in range(rounds):
            alone.append(asked(demo, chats)[0])
            with attackers(demo, kind):
                times, more = asked(demo, chats)
                beside.append(times)
                refused += more
        peak = status(demo, "VmHWM")
    quiet, loud = (percentile([*itertools.chain(*times)]) for times in (alone, beside))
    for what, rows in (("alone", alone), (f"beside {connections(kind)}: {kind}", beside)):
        samples = [percentile(one) for one in rows]
        found: Record = {"name": "hostile", "engine": "monolane", "attack": what}
        found |= summary(samples, f"ms: 99th percentile of a chat of one token, {what}")
        found["median_chat"] = statistics.median(itertools.chain(*rows))
        found["chats"] = rounds * chats
        if rows is beside:
            found |= {"more_ms": loud - quiet, "refused": refused, "peak_mb": peak}
        yield found


def asked(to: Server, chats: int) -> tuple[list[float], int]:
    """Return the milliseconds of so many chats, and how many more were refused."""
    data = json.dumps(CHAT | {"max_tokens": 1}).encode()
    request = head("/v1/chat/completions", len(data)) + data
    times: list[float] = []
    refused = 0
    while len(times) < chats:
        begun = time.perf_counter()
        with connect(to, request) as connection:
            reply = whole(connection)
        if reply[9:12] == b"200":
            times.append((time.perf_counter() - begun) * 1e3)
        else:
            refused += 1
        time.sleep(0.01)
    return times, refused


def whole(connection: socket.socket) -> bytes:
    """Return a reply, with its head, to its last byte."""
    reply = b""
    while not (found := re.search(rb"content-length: (\d+).*?\r\n\r\n", reply, re.S)) or (
        len(reply) < found.end() + int(found[1])
    ):
        if not (part := connection.recv(1 << 16)):
            raise ConnectionError(f"expected a whole reply, got {reply[:200]!r}")
        reply += part
    return reply


def percentile(times: Sequence[float]) -> float:
    """Return the 99th."""
    return statistics.quantiles(times, n=100, method="inclusive")[98]


@contextmanager
def attackers(on: Server, kind: str) -> Iterator[None]:
    """Keep hostile clients busy in a process of their own."""
    command = [sys.executable, __file__, "--attack", on.url, kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        process.stdout.readline()  # all have connected
        time.sleep(1)
        yield
    finally:
        process.kill()
        process.wait()
        time.sleep(1)


def attack(url: str, kind: str) -> None:
    """Send hostile requests until killed."""
    to = Address(url)
    kinds = list(KINDS.values()) if kind == ALL else [KINDS[kind]]
    ready = threading.Barrier(connections(kind) + 1)
    for i in range(connections(kind)):
        send = kinds[i % len(kinds)]
        threading.Thread(target=_again, args=(send, to, ready), daemon=True).start()
    ready.wait()
    print("ready", flush=True)
    threading.Event().wait()


def _again(send: Send, to: Address, ready: threading.Barrier) -> None:
    ready.wait()
    while True:
        with contextlib.suppress(OSError):
            send(to)


if __name__ == "__main__":
    main()
