"""A proxy between an agent and its model's server, which keeps when each request came and went."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from monolane.measure._agent_loop.call import Call, is_answer, read_call
from monolane.measure._load_exchange import LoadTarget
from monolane.measure._writing import writing_told

_RECORDED = ("/completions", "/responses", "/messages")
_KEPT_BACK = {"host", "connection", "content-length", "accept-encoding", "transfer-encoding"}
_KEPT_BACK_OF_REPLY = {"connection", "content-length", "transfer-encoding", "keep-alive"}
_SECONDS = 3600.0  # of one request
_LAST = 10.0  # of those that are in flight when the agent has ended


class RecordingProxy:
    """Listens at ``url`` on this machine, passes all on, and keeps a line for each answer.

    Requests and replies go through as they are; a stream goes through chunk by chunk.
    """

    def __init__(self, target: LoadTarget, path: Path) -> None:
        self.calls: list[Call] = []
        self._begin = time.monotonic()
        with writing_told(path):
            self._file = path.open("w", encoding="utf-8")
        self._changed = threading.Condition()
        self._in_flight = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(target, self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def now(self) -> float:
        """Return seconds since the proxy began."""
        return time.monotonic() - self._begin

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Count a request as in flight."""
        with self._changed:
            self._in_flight += 1
        try:
            yield
        finally:
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()

    def keep(self, call: Call) -> None:
        """Keep a call, on disk too."""
        with self._changed:
            self.calls.append(call)
            self._file.write(json.dumps(asdict(call)) + "\n")
            self._file.flush()

    def settle(self) -> list[Call]:
        """Return the calls by their begins, once none is in flight, or 10 s later.

        A client may be gone as soon as it has read the last word of a stream.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight, timeout=_LAST)
            return sorted(self.calls, key=lambda call: call.begin)

    def __enter__(self) -> "RecordingProxy":
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._file.close()


def _handler(target: LoadTarget, proxy: RecordingProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Passes one request on; HTTP/1.0, so the end of a reply is the end of its connection."""

        def do_POST(self) -> None:
            with proxy.passing():
                self._pass(self._body())

        # Names that the base class looks for.
        do_GET = do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts: list[bytes] = []
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():  # fields behind the last chunk
                pass
            return b"".join(parts)

        def _pass(self, body: bytes) -> None:
            begin = proxy.now()
            connection = _connect(target)
            lines = _Lines(proxy.now)
            status, answered = 502, False
            try:
                connection.request(self.command, target.path + self.path, body, self._headers())
                reply = connection.getresponse()
                status, answered = reply.status, True
                self._head(status, reply.getheaders())
                while block := reply.read1(65536):
                    lines.add(block)
                    self.wfile.write(block)
                    self.wfile.flush()
            except (OSError, http.client.HTTPException) as error:
                if not answered:
                    self._refuse(error)
            finally:
                connection.close()
            if self.command == "POST" and self.path.partition("?")[0].endswith(_RECORDED):
                proxy.keep(read_call(begin, proxy.now(), status, lines.body, lines.events))

        def _headers(self) -> dict[str, str]:
            found = {k: v for k, v in self.headers.items() if k.lower() not in _KEPT_BACK}
            if target.key:
                found["Authorization"] = f"Bearer {target.key}"
            return found

        def _head(self, status: int, headers: list[tuple[str, str]]) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in _KEPT_BACK_OF_REPLY:
                    self.send_header(name, value)
            self.end_headers()

        def _refuse(self, error: Exception) -> None:
            message = {"error": {"message": f"{target.url}: {error}", "type": "proxy_error"}}
            self._head(502, [("Content-Type", "application/json")])
            self.wfile.write(json.dumps(message).encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler


class _Lines:
    """What has come of a reply, and when its lines with some of an answer did."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.body, self.events = b"", list[float]()
        self._now, self._read = now, 0

    def add(self, block: bytes) -> None:
        self.body += block
        end = self.body.rfind(b"\n") + 1
        if any(is_answer(line) for line in self.body[self._read : end].split(b"\n")):
            self.events.append(self._now())
        self._read = max(self._read, end)


def _connect(target: LoadTarget) -> http.client.HTTPConnection:
    if target.scheme == "https":
        return http.client.HTTPSConnection(target.host, target.port, timeout=_SECONDS)
    return http.client.HTTPConnection(target.host, target.port, timeout=_SECONDS)
