"""Requests as bytes on a bare socket, where a client library would mend what it sends."""

import re
import socket
from typing import Any

import httpx

COMPLETIONS = "/v1/completions"


def exchange(server: Any, data: bytes) -> tuple[int, bytes]:
    """Send bytes; return the status and all that comes until the server closes."""
    with server.connect() as connection:
        connection.sendall(data)
        return read_reply(connection)


def read_reply(connection: socket.socket) -> tuple[int, bytes]:
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    reply = b"".join(parts)
    found = re.match(rb"HTTP/1.1 (\d{3})", reply)
    return (int(found[1]) if found else 0), reply


def get(path: str, host: str = "127.0.0.1", *more: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: close", *more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def still_serves(client: httpx.Client) -> None:
    reply = client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 2})
    assert reply.status_code == 200, reply.text
    assert client.get("/health").status_code == 200
