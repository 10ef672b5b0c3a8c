"""API keys: many bits of chance, kept as SHA-256 only, compared in constant time.

A plain hash and no slow one: a key is made by us from 256 random bits, so nobody guesses it from
its hash. Somebody who reads the file of keys, in a backup say, learns no key.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from monolane.errors import RequestError

_LINE = re.compile(
    r"([A-Za-z0-9._-]{1,64})\s+sha256:([0-9a-f]{64})(?:\s+priority=(-?\d{1,5}(?:\.\d+)?))?"
)
GUEST = b"guest"  # stands for the hash of a key where somebody asks without one
_LONGEST = 86_400  # seconds of a priority
_SHORTEST = 16  # characters of a key that was not made by us


@dataclass(frozen=True, slots=True)
class Keys:
    """The hashes of all valid keys; without any, nobody needs one.

    ``priorities`` of those that have one: a request is taken as though it had come so many seconds
    earlier (or later, below 0). So it overtakes, and yet nobody waits for ever.
    """

    hashes: tuple[bytes, ...] = ()
    priorities: Mapping[bytes, float] = field(default_factory=dict)

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
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"API keys: cannot read {path}: {error}") from None
        found = _read_hashes(text, path)
        if not found:
            raise RequestError(f"API keys: {path} has none; 'monolane key {path}' adds one")
        return Keys(tuple(found), {known: first for known, first in found.items() if first})

    def __add__(self, other: "Keys") -> "Keys":
        return Keys(self.hashes + other.hashes, {**self.priorities, **other.priorities})


def add_key(path: Path, name: str, priority: float = 0.0) -> str:
    """Add the hash of a new key to a file that only its owner may read; return the key.

    RequestError where that fails; a file that holds something else than keys stays as it is.
    """
    if not _LINE.fullmatch(f"{name} sha256:{'0' * 64}"):
        raise RequestError(f"name: expected 1 to 64 of A-Z a-z 0-9 . _ -, got {name!r:.80}")
    if not -_LONGEST <= priority <= _LONGEST:
        raise RequestError(f"priority: expected -{_LONGEST} to {_LONGEST} s, got {priority:g}")
    key = "ml-" + secrets.token_urlsafe(32)
    try:
        path.touch(mode=0o600, exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            file.seek(0)
            held = file.read()
            _read_hashes(held, path)
            begin = "\n" if held and not held.endswith("\n") else ""
            more = f" priority={priority:.16g}" if priority else ""
            file.write(f"{begin}{name} sha256:{key_hash(key.encode()).hex()}{more}\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"API keys: {path} cannot be read and added to: {error}; name a file of keys, or a "
            "new one in a folder that is there"
        ) from None
    return key


def _read_hashes(text: str, path: Path) -> dict[bytes, float]:
    """Return the hashes of a file and their priorities; RequestError names a line that is none."""
    found_hashes: dict[bytes, float] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if not found:
            raise RequestError(
                f"{path}, line {number}: expected 'NAME sha256:' and 64 hex digits, maybe with "
                "' priority=SECONDS' behind them, as 'monolane key FILE' writes it"
            )
        found_hashes[bytes.fromhex(found[2])] = float(found[3] or 0)
    return found_hashes


def key_hash(key: bytes) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key).digest()
