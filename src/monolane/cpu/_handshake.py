"""How two ranks of different hosts come to trust each other: HMAC over two nonces, both ways.

    the one who joins                        the one who listens
    {"monolane", "version", "nonce", hello} ->
                                            <- {"nonce"}
    {"proof"}                               ->
                                            <- {"proof"}

Each proof is made of the key, both nonces, the hello and who makes it: it is worth nothing on
another connection, nor to the other side. Whoever listens may say {"error"} instead, and hangs up.
What follows is neither secret nor signed: the key keeps strangers out, not who sits on the wire.
"""

import hashlib
import hmac
import json
import secrets
import socket
from typing import Any

from monolane._version import __version__
from monolane.cpu._rank_messages import hear, say
from monolane.errors import BackendError

_PROTOCOL = 3
Hello = dict[str, Any]


class HandshakeError(BackendError):
    """The other end is no rank of ours; the message says why, for people."""


def join(channel: socket.socket, key: bytes, hello: Hello) -> None:
    """Prove to whoever listens that this process may join, and have it prove that it may be joined.

    HandshakeError; OSError where the connection ends or is silent.
    """
    ours = secrets.token_hex(16)
    first = {"monolane": _PROTOCOL, "version": __version__, "nonce": ours, "hello": hello}
    say(channel, first)
    theirs = _said(channel, "nonce")
    say(channel, {"proof": _proof(key, "joins", ours, theirs, hello)})
    if not _same(_said(channel, "proof"), _proof(key, "listens", ours, theirs, hello)):
        raise HandshakeError("has another key: give both hosts the same key file")


def admit(channel: socket.socket, key: bytes) -> Hello:
    """Return the hello of one who joins; HandshakeError, when it has been told why not; OSError."""
    try:
        first = hear(channel)
        protocol, version, hello = (first[name] for name in ("monolane", "version", "hello"))
        ours = first["nonce"]
    except (ValueError, KeyError):
        raise refuse(channel, "expected a rank of monolane, got something else") from None
    if protocol != _PROTOCOL or version != __version__ or not isinstance(hello, dict):
        raise refuse(
            channel,
            f"has monolane {__version__} and was joined by {str(version)[:40]}: install the same "
            "version on each host",
        )
    theirs = secrets.token_hex(16)
    say(channel, {"nonce": theirs})
    try:
        proof = hear(channel)["proof"]
    except (ValueError, KeyError):
        raise refuse(channel, "expected a proof, got something else") from None
    if not _same(proof, _proof(key, "joins", str(ours), theirs, hello)):
        raise refuse(channel, "has another key: give both hosts the same key file")
    say(channel, {"proof": _proof(key, "listens", str(ours), theirs, hello)})
    return hello


def refuse(channel: socket.socket, reason: str) -> HandshakeError:
    """Say why, and return the error to raise."""
    say(channel, {"error": reason})
    return HandshakeError(reason)


def _said(channel: socket.socket, name: str) -> str:
    try:
        word = hear(channel)
    except ValueError:
        raise HandshakeError("answers with something that is not monolane's") from None
    if "error" in word:
        raise HandshakeError(str(word["error"])[:300])
    return str(word.get(name))


def _same(given: object, expected: str) -> bool:
    return hmac.compare_digest(str(given).encode(), expected.encode())


def _proof(key: bytes, who: str, joiner: str, listener: str, hello: Hello) -> str:
    told = json.dumps([who, joiner, listener, hello], sort_keys=True)
    return hmac.new(key, told.encode(), hashlib.sha256).hexdigest()
