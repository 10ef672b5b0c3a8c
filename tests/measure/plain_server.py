"""A server of one script: what other servers do that ours does not, one frame per token included.

    python plain_server.py '{"tokens_per_second": 10000, ...}'

Raw sockets and frames that are made once, so that it is no bottleneck beside the client.
"""

import contextlib
import json
import socket
import sys
import threading
import time
from typing import Any

HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class PlainServer:
    """Answers every request alike, each in a thread.

    tokens_per_second  of an answer; 0: as fast as they go out
    per_event          tokens in each frame
    usage, timings     whether the answer tells its count, and llama.cpp's own one
    dies_after         tokens until the connection is closed; error_after: until an error event;
                       silent_after: until nothing more comes, for as long as the client waits
    status             of the answer; models: of /v1/models
    garbage            whether it speaks no HTTP at all
    keeps              requests that it answers on one connection before it closes it
    """

    def __init__(self, **options: Any) -> None:
        self.options = {
            "tokens_per_second": 0,
            "per_event": 1,
            "usage": True,
            "timings": False,
            "dies_after": None,
            "error_after": None,
            "silent_after": None,
            "status": 200,
            "models": 200,
            "garbage": False,
            "keeps": 1,
            **options,
        }
        self.bodies: list[dict[str, Any]] = []
        self.open = self.most_open = 0  # answers on their way: now, and at most
        self.accepted = 0  # connections
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self.serve_one, args=(connection,), daemon=True).start()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()

    def serve_one(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(self.options["keeps"]):
                line, headers = file.readline(), {}
                while line and (header := file.readline()) != b"\r\n":
                    name, _, value = header.lower().partition(b":")
                    headers[name] = value.strip()
                if line:
                    body = file.read(int(headers.get(b"content-length", b"0")))
                    self.answer(connection, line, body)
                if not line or headers.get(b"connection") == b"close":
                    return

    def answer(self, connection: socket.socket, line: bytes, data: bytes) -> None:
        if line.startswith(b"GET"):
            self.plain(connection, self.options["models"], {"data": [{"id": "plain"}]})
            return
        body = json.loads(data)
        self.bodies.append(body)
        if self.options["garbage"]:
            connection.sendall(b"220 mail.example ESMTP\r\n")
            return
        if self.options["status"] != 200:
            self.plain(connection, self.options["status"], {"error": {"message": "no, thanks"}})
            return
        self.count(+1)
        with contextlib.suppress(OSError):  # the client has gone
            self.stream(connection, body)
        self.count(-1)

    def count(self, change: int) -> None:
        with self.lock:
            self.open += change
            self.most_open = max(self.open, self.most_open)

    def plain(self, connection: socket.socket, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def stream(self, connection: socket.socket, body: dict[str, Any]) -> None:
        options, count = self.options, body["max_tokens"]
        per_event, pace = options["per_event"], options["tokens_per_second"]
        chat = "messages" in body
        text = "tok " * per_event
        choice = {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}
        frame = chunk({"id": "x" * 32, "object": "chunk", "choices": [choice]})
        connection.sendall(HEAD.encode())
        begin = time.perf_counter()
        for sent in range(0, count, per_event):
            if pace and (wait := begin + (sent + 1) / pace - time.perf_counter()) > 0:
                time.sleep(wait)
            if options["dies_after"] is not None and sent >= options["dies_after"]:
                return
            if options["error_after"] is not None and sent >= options["error_after"]:
                connection.sendall(chunk({"error": {"message": "out of ideas", "code": 500}}))
                break
            if options["silent_after"] is not None and sent >= options["silent_after"]:
                connection.recv(1)  # nothing, once the client has gone
                return
            connection.sendall(frame)
        last: dict[str, Any] = {"choices": []}
        if options["usage"]:
            last["usage"] = {"prompt_tokens": prompt_tokens(body), "completion_tokens": count}
        if options["timings"]:
            last["timings"] = {"predicted_n": count, "predicted_per_second": 1234.5}
        connection.sendall(chunk(last) + chunk("[DONE]") + b"0\r\n\r\n")


def prompt_tokens(body: dict[str, Any]) -> int:
    """Two tokens a word, and seven for whatever stands around them."""
    text = body["messages"][0]["content"] if "messages" in body else body["prompt"]
    return 2 * len(text.split()) + 7


def chunk(event: dict[str, Any] | str) -> bytes:
    data = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


if __name__ == "__main__":
    server = PlainServer(**json.loads(sys.argv[1]))
    sys.stderr.write(f"at {server.url}\n")
    server.thread.join()
