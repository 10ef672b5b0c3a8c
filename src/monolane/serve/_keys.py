"""API keys: many bits of chance, kept as SHA-256 only, compared in constant time.

A plain hash and no slow one: a key is made by us from 256 random bits, so nobody guesses it from
its hash. Somebody who reads the file of keys, in a backup say, learns no key.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from monolane.errors import RequestError

_LINE = re.compile(r"([A-Za-z0-9._-]{1,64})\s+sha256:([0-9a-f]{64})")
_SHORTEST = 16  # characters of a key that was not made by us


@dataclass(frozen=True, slots=True)
class Keys:
    """The hashes of all valid keys; without any, nobody needs one."""

    hashes: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.hashes)

    def admit(self, key: bytes) -> bool:
        """Tell whether a key is one of ours; takes as long whichever it is."""
        given, found = key_hash(key), False
        for known in self.hashes:
            found |= hmac.compare_digest(given, known)
        return found

    @staticmethod
    def of(keys: Iterable[str]) -> "Keys":
        """Return the hashes of plain keys; RequestError for one that is too short to be safe."""
        found = []
        for key in keys:
            if len(key) < _SHORTEST:
                raise RequestError(
                    f"API key: expected at least {_SHORTEST} characters, got {len(key)}; "
                    "'monolane key FILE' makes one"
                )
            found.append(key_hash(key.encode()))
        return Keys(tuple(found))

    @staticmethod
    def read(path: Path) -> "Keys":
        """Read a file of lines "NAME sha256:HEX"; RequestError names the line that is none."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"API keys: cannot read {path}: {error}") from None
        hashes = []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            found = _LINE.fullmatch(line.strip())
            if not found:
                raise RequestError(
                    f"{path}, line {number}: expected 'NAME sha256:' and 64 hex digits, as "
                    "'monolane key FILE' writes it"
                )
            hashes.append(bytes.fromhex(found[2]))
        if not hashes:
            raise RequestError(f"API keys: {path} has none; 'monolane key {path}' adds one")
        return Keys(tuple(hashes))

    def __add__(self, other: "Keys") -> "Keys":
        return Keys(self.hashes + other.hashes)


def add_key(path: Path, name: str) -> str:
    """Add the hash of a new key to a file that only its owner may read; return the key.

    Raises RequestError for a name that is none, and for a file that cannot be written.
    """
    if not _LINE.fullmatch(f"{name} sha256:{'0' * 64}"):
        raise RequestError(f"name: expected 1 to 64 of A-Z a-z 0-9 . _ -, got {name!r:.80}")
    key = "ml-" + secrets.token_urlsafe(32)
    line = f"{name} sha256:{key_hash(key.encode()).hex()}\n"
    try:
        path.touch(mode=0o600, exist_ok=True)
        before = path.read_bytes()
        with path.open("ab") as file:
            # An editor may have left the last line without its end.
            file.write((line if before.endswith(b"\n") or not before else "\n" + line).encode())
    except OSError as error:
        raise RequestError(
            f"API keys: cannot add a key to {path}: {error.strerror}; name a file in a folder that "
            "is there and may be written to"
        ) from None
    return key


def key_hash(key: bytes) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key).digest()
