"""Kept prefixes in a file, so that a server that starts again goes on where the last one ended.

    monolane prefixes 1\\n      the version of this layout
    8 bytes, little-endian     bytes of the header
    header                     JSON: the binding, and of each node namespace, number of tokens,
                               shape of its rows, bytes of its tail (-1: none)
    arrays                     of each node its tokens (int32), its rows and its tail (bytes)
    32 bytes                   SHA-256 of all of that

The binding names model, arithmetic and plan, on which every bit of keys and values depends. Prompts
can be read out of such a file: it is made for its owner only.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BufferedReader
from math import prod
from pathlib import Path

import numpy as np

from monolane._regular_files import check_parts, open_regular
from monolane.engine._prefix_tree import Tokens
from monolane.errors import RequestError
from monolane.executor_api import KeptBytes

_MAGIC = b"monolane prefixes 1\n"
_DIGEST = hashlib.sha256().digest_size
_PIECES, _PIECE = 64, 4096  # of a model's file that are looked at

Node = tuple[str, Tokens, KeptBytes]  # as PrefixTree.nodes


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a hash of a model's files: names, sizes, times of change, and pieces of their bytes.

    Reading all of some gigabytes would take longer than starting does.
    """
    found = hashlib.sha256()
    for path in sorted(paths):
        about = path.stat()
        found.update(f"{path.name} {about.st_size} {about.st_mtime_ns}\n".encode())
        with open_regular(path) as file:
            for i in range(_PIECES):
                file.seek(i * max(0, about.st_size - _PIECE) // (_PIECES - 1))
                found.update(file.read(_PIECE))
    return found.hexdigest()


def check_writable(path: Path) -> None:
    """Raise RequestError where no file can be written, before the work that would be lost."""
    partial = _partial(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if path.exists() and not path.is_file():  # a pipe, which would be waited for, or a device
            raise OSError(errno.EINVAL, "it is no plain file")
        partial.touch(mode=0o600)
        partial.unlink()
    except OSError as error:
        raise RequestError(
            f"prefix_file: {path}: expected a file that can be written, got: {error.strerror}; "
            "make its folder, or name another file"
        ) from None


def _place(path: Path) -> Path:
    """Return where a path leads: a link stays, and what it names is replaced."""
    return Path(os.path.realpath(path))


def _partial(path: Path) -> Path:
    place = _place(path)
    return place.with_name(f".{place.name}.{os.getpid()}")


def write_prefixes(path: Path, binding: str, nodes: Iterable[Node]) -> None:
    """Write nodes in their order, in place of what was there; OSError if that cannot be."""
    nodes = list(nodes)
    about = [
        [name, len(tokens), kept.rows.shape, -1 if kept.tail is None else kept.tail.size]
        for name, tokens, kept in nodes
    ]
    header = json.dumps({"binding": binding, "nodes": about}).encode()
    partial = _partial(path)
    digest = hashlib.sha256()
    try:
        partial.touch(mode=0o600)
        with partial.open("wb") as file:

            def write(data: bytes | memoryview) -> None:
                digest.update(data)
                file.write(data)

            write(_MAGIC + len(header).to_bytes(8, "little") + header)
            for _, tokens, kept in nodes:
                for array in (tokens, kept.rows, kept.tail):
                    if array is not None and array.size:
                        write(np.ascontiguousarray(array).reshape(-1).data)
            file.write(digest.digest())
        partial.replace(_place(path))  # at once: nobody finds half a file
    finally:
        with suppress(OSError):
            partial.unlink()


def read_prefixes(path: Path, binding: str) -> list[Node]:
    """Return the nodes of a file; RequestError says why it is not to be used, OSError also."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        return list(_read(file, size, binding))


def _read(file: BufferedReader, size: int, binding: str) -> Iterator[Node]:
    digest = hashlib.sha256()
    left = size - _DIGEST

    def read(count: int) -> bytearray:
        nonlocal left
        left -= count
        if left < 0:
            raise RequestError("it is damaged: it ends too early")
        data = bytearray(count)
        if file.readinto(data) != count:
            raise RequestError("it is damaged: it ends too early")
        digest.update(data)
        return data

    if size < len(_MAGIC) or read(len(_MAGIC)) != _MAGIC:
        raise RequestError(f"expected a file that begins with {_MAGIC.decode().strip()!r}")
    header = read(int.from_bytes(read(8), "little"))
    try:
        said = header.decode("utf-8")
        check_parts(said)
        about = json.loads(said)
        nodes = [_checked(*node) for node in about["nodes"]]
        bound = about["binding"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RequestError("it is damaged: its header cannot be read") from None
    if bound != binding:
        raise RequestError("it was written for another model, dtype, cache dtype, plan or version")
    found = [_arrays(read, *node) for node in nodes]
    if left != 0 or file.read() != digest.digest():
        raise RequestError("it is damaged: its checksum is another")
    yield from found


def _checked(
    name: object, tokens: object, rows: object, tail: object
) -> tuple[str, int, tuple[int, ...], int]:
    if not isinstance(name, str) or not isinstance(rows, list) or len(rows) != 3:
        raise ValueError
    numbers = [tokens, *rows, tail]
    if any(type(n) is not int or n < -1 for n in numbers) or min(numbers[:-1]) < 0:
        raise ValueError
    return name, numbers[0], tuple(numbers[1:4]), numbers[4]


def _arrays(
    read: Callable[[int], bytearray], name: str, count: int, rows: tuple[int, ...], tail: int
) -> Node:
    tokens = np.frombuffer(read(4 * count), np.int32)
    kept = np.frombuffer(read(prod(rows)), np.uint8).reshape(rows)
    end = None if tail < 0 else np.frombuffer(read(tail), np.uint8)
    return name, tokens, KeptBytes(kept, end)
