"""How much disk a preparation takes, said before it begins rather than found out in its last hour.

The figures follow from what the stages write: texts once more as JSONL, MinHash signatures, and
tokens twice while a shard is shuffled. A token of 4 bytes of text is assumed, which is what large
vocabularies give on prose; small ones give more tokens.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from monolane.data._figures import human_size
from monolane.data._work import Work
from monolane.errors import DataError

_BYTES_PER_TOKEN = 4
_BYTES_PER_DOCUMENT = 2_000  # of text: for counting signatures, which are per document


@dataclass(frozen=True)
class DiskNeed:
    """Bytes, about: of text to read, on disk at the worst moment, and of the corpus in the end."""

    text: int
    peak: int
    corpus: int

    def __str__(self) -> str:
        return (
            f"{human_size(self.text)} of text to read; about {human_size(self.peak)} of disk while "
            f"it is prepared, {human_size(self.corpus)} for the corpus"
        )


def disk_need(work: Work) -> DiskNeed:
    """Estimate what a preparation needs from the sizes of its files."""
    text = sum(shard.bytes for shard in work.shards)
    width = 4 if work.recipe.tokenizer.vocabulary > 1 << 16 or work.recipe.tokenizer.path else 2
    corpus = text // _BYTES_PER_TOKEN * width
    duplicates = work.recipe.duplicates
    signature = duplicates.buckets * (8 * duplicates.hashes + 4) if duplicates.near else 0
    signatures = text // _BYTES_PER_DOCUMENT * (signature + 14 * duplicates.exact)
    return DiskNeed(text, text * 11 // 10 + signatures + corpus, corpus)


def check_disk(need: DiskNeed, folder: Path) -> None:
    """Raise DataError where the disk of ``folder`` cannot even hold the corpus."""
    free = shutil.disk_usage(folder).free
    if free < need.corpus:
        raise DataError(
            f"{folder}: expected {human_size(need.corpus)} free for the corpus alone, got "
            f"{human_size(free)}; make room, or name a folder on another disk"
        )
