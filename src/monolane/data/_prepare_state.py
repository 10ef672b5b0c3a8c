"""An unfinished preparation: its recipe, its shards, and where each stage keeps what it made.

A shard is some files of one source, 16 MB or so. What shards there are follows from the files
alone, never from the number of processes, and so does the corpus. A task is one stage on one shard;
its record is written when all else is, so a killed preparation repeats only unfinished tasks.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from monolane._version import __version__
from monolane.data._figures import human_size
from monolane.data._recipe import CorpusRecipe
from monolane.data._sources import list_files
from monolane.errors import DataError

_SHARD = 16_000_000  # bytes of files
_SHARDS = 512  # of a source at most: finding duplicates opens a file of each at once
_BYTES_PER_TOKEN = 4  # of text: what large vocabularies give on prose; small ones give more tokens
_BYTES_PER_DOCUMENT = 2_000  # of text: for counting signatures, which are per document
_PACKED = {".gz": 4, ".parquet": 3}  # bytes of text in a byte of file, about


@dataclass(frozen=True)
class Shard:
    """Files of one source; ``number`` counts within the source."""

    source: str
    number: int
    files: tuple[str, ...]
    bytes: int  # of text, about


@dataclass(frozen=True)
class Work:
    """A preparation: the recipe, the folder that becomes the corpus, and the shards.

    Shards of a source whose copies are kept come before those of the next.
    """

    recipe: CorpusRecipe
    folder: Path
    shards: tuple[Shard, ...]

    @property
    def scratch(self) -> Path:
        """What only preparation needs; gone at its end."""
        return self.folder / "work"

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer, given or trained."""
        return self.subfolder("tokenizer")

    def subfolder(self, *parts: str) -> Path:
        """Return a folder for what a stage keeps; it is there."""
        path = self.scratch.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def is_done(self, stage: str, rank: int) -> bool:
        """Return whether a task has written its record."""
        return self._record(stage, rank).is_file()

    def record(self, stage: str, rank: int) -> dict[str, Any]:
        """Return what a finished task recorded."""
        value: dict[str, Any] = json.loads(self._record(stage, rank).read_text(encoding="utf-8"))
        return value

    def finish(self, stage: str, rank: int, record: dict[str, Any]) -> None:
        """Write a task's record, whole or not at all."""
        path = self._record(stage, rank)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(record), encoding="utf-8")
        partial.replace(path)

    def of_source(self, name: str) -> Iterator[int]:
        """Yield the ranks of a source's shards."""
        return (rank for rank, shard in enumerate(self.shards) if shard.source == name)

    def _record(self, stage: str, rank: int) -> Path:
        return self.subfolder("done") / f"{stage}-{rank:05d}.json"


def plan_work(recipe: CorpusRecipe, folder: Path) -> Work:
    """Find the files and cut them into shards; go on with what lies in ``folder``, if it is ours.

    DataError: another recipe, or other files, were being prepared there.
    """
    shards: list[Shard] = []
    state = hashlib.sha256(__version__.encode())  # stages may differ from version to version
    state.update(json.dumps(asdict(recipe), sort_keys=True).encode())
    for source in recipe.by_priority():
        sizes = []
        for path in list_files(source):
            status = path.stat()
            sizes.append((str(path), status.st_size * _PACKED.get(path.suffix, 1)))
            state.update(os.fsencode(path))
            state.update(f"\n{status.st_size}\n{status.st_mtime_ns}\n".encode())
        shards += _shards(source.name, sizes)
    begun = folder / "work" / "recipe.sha256"
    digest = state.hexdigest()
    if begun.is_file() and begun.read_text() != digest:
        raise DataError(
            f"{folder}: expected nothing, or this recipe on these files half done, found another "
            "preparation; remove the folder, or bring recipe and files back"
        )
    begun.parent.mkdir(parents=True, exist_ok=True)
    begun.write_text(digest)
    return Work(recipe, folder, tuple(shards))


@contextmanager
def alone(work: Work) -> Iterator[None]:
    """Hold a preparation while this process does it; DataError where another process does.

    Two would write the same files, one while the other reads them. The kernel lets go when the
    holder dies, in whatever way.
    """
    with (work.scratch / "lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise DataError(
                f"{work.folder}: expected nobody to prepare it, but process "
                f"{file.read(32).strip() or '?'} does; wait for it, or stop it and run the same "
                "command again"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def check_disk(work: Work, say: Callable[[str], object]) -> None:
    """Say about how much disk a preparation takes; DataError where it cannot hold the corpus.

    The sizes follow from what the stages write: texts once more as JSONL, MinHash signatures, and
    tokens twice while a shard is shuffled.
    """
    text = sum(shard.bytes for shard in work.shards)
    width = 4 if work.recipe.tokenizer.vocabulary > 1 << 16 or work.recipe.tokenizer.path else 2
    corpus = text // _BYTES_PER_TOKEN * width
    duplicates = work.recipe.duplicates
    signature = duplicates.buckets * (8 * duplicates.hashes + 4) if duplicates.near else 0
    signatures = text // _BYTES_PER_DOCUMENT * (signature + 14 * duplicates.exact)
    peak = text * 11 // 10 + signatures + corpus  # at the worst moment
    count = len(work.shards)
    say(
        f"{count} shard{'s' * (count != 1)}, {human_size(text)} of text to read; about "
        f"{human_size(peak)} of disk while it is prepared, {human_size(corpus)} for the corpus"
    )
    free = shutil.disk_usage(work.folder).free
    if free < corpus:
        raise DataError(
            f"{work.folder}: expected {human_size(corpus)} free for the corpus alone, got "
            f"{human_size(free)}; make room, or name a folder on another disk"
        )


def _shards(source: str, files: list[tuple[str, int]]) -> list[Shard]:
    """Cut a sorted list of (path, bytes) into shards of at least some bytes each."""
    wanted = max(_SHARD, sum(size for _, size in files) // _SHARDS)
    shards: list[Shard] = []
    taken: list[str] = []
    size = 0
    for place, (path, count) in enumerate(files):
        taken.append(path)
        size += count
        if size >= wanted or place == len(files) - 1:
            shards.append(Shard(source, len(shards), tuple(taken), size))
            taken, size = [], 0
    return shards
