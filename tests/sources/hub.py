"""A server on this machine that speaks the Hub's protocol, as its own library asks for it.

Large files (*.gguf, *.safetensors) lie in Git LFS: they are asked for at one host and come from
another, as the Hub's do, in ranges if need be.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server has, what it is asked for, and where it stands still."""

    repos: Mapping[str, Mapping[str, bytes]]  # "ORG/REPO" -> file -> its bytes
    url: str = ""
    asked: list[str] = field(default_factory=list)  # "METHOD path"
    sent: dict[str, list[int]] = field(default_factory=dict)  # file -> first byte of each answer
    hold_after: int | None = None  # bytes of a large file, behind which nothing comes
    held: threading.Event = field(default_factory=threading.Event)  # that point was reached
    gone_on: threading.Event = field(default_factory=threading.Event)
    damaged: bool = False  # large files come with another last byte
    without_ranges: bool = False  # they come whole, whatever is asked for

    def files(self, repo: str) -> Mapping[str, bytes]:
        return self.repos[repo]


def is_large(name: str) -> bool:
    return name.endswith((".gguf", ".safetensors"))


@contextmanager
def serving(repos: Mapping[str, Mapping[str, bytes]]) -> Iterator[Hub]:
    """Serve repositories in here."""
    hub = Hub(repos)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.gone_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        words = path.strip("/").split("/")
        if words[0] == "cdn":
            self._send_large("/".join(words[1:3]), "/".join(words[3:]))
        elif words[:2] == ["api", "models"]:
            self._describe("/".join(words[2:4]), words[4:])
        elif len(words) > 4 and words[2] == "resolve":
            self._resolve("/".join(words[:2]), "/".join(words[4:]))
        else:
            self._send(404, {})

    def _describe(self, repo: str, words: list[str]) -> None:
        if repo not in self.hub.repos:
            told = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            self._send(404, told)
            return
        if words[:1] == ["revision"] and words[1] not in ("main", COMMIT):
            told = {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}
            self._send(404, told)
            return
        files = self.hub.files(repo)
        if words[:1] == ["tree"]:
            self._json(
                [{"type": "file", "path": x, **_entry(x, data)} for x, data in files.items()]
            )
        else:
            siblings = [{"rfilename": x, **_blob(x, data)} for x, data in files.items()]
            self._json({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings})

    def _resolve(self, repo: str, name: str) -> None:
        data = self.hub.files(repo).get(name)
        if data is None:
            self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        elif is_large(name):
            other = self.hub.url.replace("127.0.0.1", "localhost")
            told = {"Location": f"{other}/cdn/{repo}/{name}", "X-Repo-Commit": COMMIT}
            told |= {"X-Linked-Size": f"{len(data)}", "X-Linked-ETag": f'"{_hash(data)}"'}
            self._send(302, told)
        else:
            self._send(200, {"X-Repo-Commit": COMMIT, "ETag": f'"{_oid(data)}"'}, data)

    def _send_large(self, repo: str, name: str) -> None:
        data = self.hub.files(repo)[name]
        if self.hub.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        first = 0
        if (asked := self.headers.get("Range")) and not self.hub.without_ranges:
            first = int(asked.removeprefix("bytes=").split("-")[0])
        self.hub.sent.setdefault(name, []).append(first)
        rest = data[first:]
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", f"{len(rest)}")
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.hub.hold_after is not None:
            self.wfile.write(rest[: self.hub.hold_after])
            self.wfile.flush()
            self.hub.held.set()
            self.hub.gone_on.wait(60)
            self.close_connection = True
            return
        self.wfile.write(rest)

    def _json(self, value: Any) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _send(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": f"{len(body)}"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _oid(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _entry(name: str, data: bytes) -> dict[str, Any]:
    large = {"lfs": {"oid": _hash(data), "size": len(data), "pointerSize": 130}}
    return {"oid": _oid(data), "size": len(data), **(large if is_large(name) else {})}


def _blob(name: str, data: bytes) -> dict[str, Any]:
    large = {"lfs": {"sha256": _hash(data), "size": len(data), "pointerSize": 130}}
    return {"blobId": _oid(data), "size": len(data), **(large if is_large(name) else {})}
