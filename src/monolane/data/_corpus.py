"""A prepared corpus: a folder of token files, the tokenizer that made them, and what is in it.

    corpus.json                        what follows, in numbers (written last)
    tokenizer.json, tokenizer_config.json
    <source>/train-00000.ds[.index]    ids, and the ends of documents
    <source>/held_out-00000.ds[.index]
    <source>/held_out.bytes            uint64: bytes of UTF-8 of each held-out document
    report.json                        what the report page shows

Reading needs neither torch nor datatrove.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np

from monolane.data._manifest import Half, Manifest, Source
from monolane.data._tokens import ENDS, TokenFiles
from monolane.errors import ConfigError, DataError
from monolane.text import Tokenizer

TOKENIZER = "tokenizer.json"
HELD_OUT_BYTES = "held_out.bytes"


class Encoded(NamedTuple):
    """A document as ids [T] with its bos and eos, and the bytes of UTF-8 that they stand for."""

    ids: np.ndarray
    bytes: int


class HeldOut(Sequence[Encoded]):
    """The held-out documents of one source, in their order on disk."""

    def __init__(self, tokens: TokenFiles, sizes: np.ndarray) -> None:
        self._tokens = tokens
        self._sizes = sizes  # [documents] uint64, bytes

    def __len__(self) -> int:
        return self._tokens.documents

    @overload
    def __getitem__(self, index: int) -> Encoded: ...
    @overload
    def __getitem__(self, index: slice) -> list[Encoded]: ...
    def __getitem__(self, index: int | slice) -> Encoded | list[Encoded]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return Encoded(self._tokens.document(number), int(self._sizes[number]))


class Corpus:
    """A prepared corpus, open for reading; cheap, as nothing is read before it is asked for."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Use ``open``, which reads the manifest."""
        self.folder = folder
        self.manifest = manifest
        self.sources: Mapping[str, Source] = {source.name: source for source in manifest.sources}
        self._train = {name: self._files(source.train) for name, source in self.sources.items()}
        self._held_out = {
            name: self._files(source.held_out) for name, source in self.sources.items()
        }

    @staticmethod
    def open(folder: Path | str) -> "Corpus":
        """Open a corpus folder; DataError where a file is missing, cut short or of another kind."""
        folder = Path(folder)
        return Corpus(folder, Manifest.read(folder))

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Corpus.open, (self.folder,)

    @property
    def digest(self) -> str:
        """SHA-256 over the tokenizer and all token files, as hex."""
        return self.manifest.digest

    @property
    def vocabulary_size(self) -> int:
        """Ids are below it."""
        return self.manifest.vocabulary_size

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids; DataError if its file is another by now."""
        path = self.folder / TOKENIZER
        got = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
        if got != self.manifest.tokenizer:
            raise DataError(
                f"{path}: expected SHA-256 {self.manifest.tokenizer[:12]}, got {got[:12]}; "
                "put the tokenizer back that the corpus was prepared with"
            )
        tokenizer = Tokenizer.open(self.folder)
        assert tokenizer is not None
        return tokenizer

    def train(self, source: str) -> TokenFiles:
        """Return what training reads of a source; ConfigError names the sources there are."""
        return self._train[self._known(source)]

    def held_out(self, source: str) -> HeldOut:
        """Return what training never sees of a source; ConfigError names the sources there are."""
        tokens = self._held_out[self._known(source)]
        path = self.folder / source / HELD_OUT_BYTES
        expected = tokens.documents * ENDS.itemsize
        if not tokens.documents:
            return HeldOut(tokens, np.zeros(0, dtype=ENDS))
        if not path.is_file() or path.stat().st_size != expected:
            raise DataError(
                f"{path}: expected a file of {expected:,} bytes, got none or another; "
                "copy the corpus again, or prepare it anew"
            )
        return HeldOut(tokens, np.fromfile(path, dtype=ENDS))

    def verify(self) -> None:
        """Read every token file and compare its digest; DataError names the first that differs."""
        for source in self.sources.values():
            for part in (*source.train.parts, *source.held_out.parts):
                got = digest_of(self.folder, part.stem)
                if got != part.digest:
                    raise DataError(
                        f"{self.folder / part.stem}.ds: expected SHA-256 {part.digest[:12]} of ids "
                        f"and index, got {got[:12]}; copy the corpus again"
                    )

    def _files(self, half: Half) -> TokenFiles:
        return TokenFiles(self.folder, half.parts, self.manifest.ids_dtype)

    def _known(self, source: str) -> str:
        if source not in self.sources:
            raise ConfigError(
                f"expected one of the sources {', '.join(self.sources)} of {self.folder}, "
                f"got {source!r}"
            )
        return source


def digest_of(folder: Path, stem: str) -> str:
    """Return the SHA-256 of a part's ids and then of its document ends, as hex."""
    state = hashlib.sha256()
    for suffix in (".ds", ".ds.index"):
        with (folder / f"{stem}{suffix}").open("rb") as file:
            hashlib.file_digest(file, lambda: state)
    return state.hexdigest()
