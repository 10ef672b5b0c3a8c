"""Where ranks of other hosts listen, and the key that they share with rank 0."""

import socket
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from monolane import _env
from monolane.errors import BackendError, RequestError

_SHORTEST = 16  # bytes of a key


@dataclass(frozen=True, slots=True)
class RankAddresses:
    """The ranks 1.. by address ("host:port"), as seen from rank 0 and from each other.

    key   what proves to each that the other may join
    """

    addresses: tuple[str, ...]
    key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not self.addresses or len(set(self.addresses)) < len(self.addresses):
            raise RequestError(
                f"ranks: expected a different host:port for each rank, got {self.addresses}"
            )
        for address in self.addresses:
            split_address(address)
        check_key(self.key)

    @staticmethod
    def parse(text: str, key_file: Path | None = None) -> "RankAddresses":
        """Read "host:port,host:port" and a key; RequestError, or BackendError. See ``read_key``."""
        return RankAddresses(tuple(map(str.strip, text.split(","))), read_key(key_file))

    @property
    def on_this_host(self) -> bool:
        """Whether all ranks share this host's cores."""
        return all(is_loopback(address) for address in self.addresses)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[host]:port"; RequestError."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise RequestError(f"address: expected host:port, as 10.0.0.2:7000, got {address!r:.80}")
    return host, int(port)


def is_loopback(address: str) -> bool:
    """Whether only processes of this host can reach an address; RequestError, BackendError."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BackendError(f"address: {address}: cannot find this host: {error}") from None
    return all(ip_address(str(place[4][0]).partition("%")[0]).is_loopback for place in found)


def check_key(key: bytes) -> None:
    """Raise BackendError where the key is missing, or too short to be safe.

    On this host, too: any user of it can connect to loopback.
    """
    if not key:
        raise BackendError(
            f"key: expected one that all ranks share, got none: name a file that holds it with "
            f"--key-file, or set {_env.RANK_KEY.name}; 'monolane rank' without a key makes one, "
            "and so does 'openssl rand -hex 32'"
        )
    if len(key) < _SHORTEST:
        raise BackendError(f"key: expected at least {_SHORTEST} characters, got {len(key)}")


def read_key(path: Path | None) -> bytes:
    """Return the key in a file, without what surrounds it; BackendError.

    Without a file, what MONOLANE_RANK_KEY says; empty if that is not set.
    """
    if path is None:
        return _env.RANK_KEY.get().text.strip().encode()
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise BackendError(f"key: cannot read {path}: {error.strerror}") from None
    if not key:
        raise BackendError(f"key: {path} is empty; 'openssl rand -hex 32' makes a key")
    return key
