"""The corpus: the source files of the running Python's own standard library.

Every machine with Python has it, so the demo needs no download, and its licence is known. The
library's own tests are in: they are more than half of the text, and 3 M tokens of library code
alone would be read eight times in an hour. What is out is not written by hand (codec tables,
build settings, the documentation dump) or not Python (fixtures of syntax errors, other encodings).
"""

import hashlib
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from monolane.errors import TextError

# Not part of the library: installed packages, caches, and the fixtures of 2to3 and the parser.
_EXCLUDED_FOLDERS = frozenset({"site-packages", "__pycache__", "pydoc_data", "data", "badsyntax"})
# Build settings of one machine (with its paths), and files that must not parse.
_EXCLUDED_NAMES = re.compile(r"_sysconfigdata.*|bad_.*|badsyntax.*|nosyntax.*")
# "generated from 'MAPPINGS/...' with gencodec.py" and its like open the first docstring.
_GENERATED = re.compile(r"generated (?:from|by|with)|do not edit", re.IGNORECASE)
_GENERATED_WITHIN = 400  # characters
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
class Corpus:
    """Documents to train on and documents that training never sees."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over both halves: a run resumes only on the corpus that it began with."""
        state = hashlib.sha256()
        for half in (self.train, self.held_out):
            for document in half:
                state.update(bytes.fromhex(document.digest))
            state.update(b"|")
        return state.hexdigest()


def collect_library(root: Path | None = None) -> tuple[Document, ...]:
    """Return the library's distinct source files below ``root``, sorted by name."""
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    documents: dict[str, Document] = {}
    for document in _read_all(root):
        documents.setdefault(document.digest, document)
    if not documents:
        raise TextError(
            f"expected the standard library's .py files below {root}, found none; this Python "
            "may keep it in a zip archive: train with a full installation"
        )
    return tuple(documents.values())


def split_corpus(documents: Iterable[Document], held_out_share: float) -> Corpus:
    """Hold out about ``held_out_share`` of the files, each by the hash of its own content.

    So a file stays in its half whatever files come or go around it, in any order.
    """
    train: list[Document] = []
    held_out: list[Document] = []
    for document in documents:
        draw = int(document.digest[:16], 16) / 2**64  # uniform in [0, 1)
        (held_out if draw < held_out_share else train).append(document)
    return Corpus(tuple(train), tuple(held_out))


def _read_all(root: Path) -> Iterator[Document]:
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        name = path.relative_to(root).as_posix()
        if not _is_excluded(PurePosixPath(name)):
            document = _read(path, name)
            if document is not None:
                yield document


def _is_excluded(name: PurePosixPath) -> bool:
    return (
        not _EXCLUDED_FOLDERS.isdisjoint(name.parts[:-1])
        or _EXCLUDED_NAMES.fullmatch(name.stem) is not None
    )


def _read(path: Path, name: str) -> Document | None:
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None  # fixtures that test other encodings
    if not text.strip() or _GENERATED.search(text[:_GENERATED_WITHIN]):
        return None
    return Document(name, text)
