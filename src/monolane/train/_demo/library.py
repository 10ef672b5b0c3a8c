"""The demo's text: the running Python's own standard library, file by file, in two halves.

Not a corpus made by ``prepare``: the card tells the library's tests from the library proper, and
compressors are measured on text, so files keep their names and their text here. Which files there
are, and which are held out, is said by the package ``data`` all the same.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from monolane.data import is_held_out, library_texts

_TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})


@dataclass(frozen=True)
class Document:
    """One source file: its path inside the library, and its text."""

    name: str
    text: str

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text's UTF-8, as hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def size(self) -> int:
        """Bytes of the text in UTF-8."""
        return len(self.text.encode())

    @property
    def is_test(self) -> bool:
        """Whether the file belongs to a test suite."""
        return not _TEST_FOLDERS.isdisjoint(PurePosixPath(self.name).parts[:-1])


@dataclass(frozen=True)
class Library:
    """Documents to train on and documents that training never sees."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over both halves: a run resumes only on the library that it began with."""
        state = hashlib.sha256()
        for half in (self.train, self.held_out):
            for document in half:
                state.update(bytes.fromhex(document.digest))
            state.update(b"|")
        return state.hexdigest()


def read_library(root: Path | None, held_out_share: float) -> Library:
    """Read the library below ``root`` (the running Python's if None); DataError if it is empty."""
    train: list[Document] = []
    held_out: list[Document] = []
    for name, text in library_texts(root):
        half = held_out if is_held_out(text, held_out_share) else train
        half.append(Document(name, text))
    return Library(tuple(train), tuple(held_out))
