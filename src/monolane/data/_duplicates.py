"""Copies across all sources, exact and near: datatrove's sorted signature files, kept in priority.

Signatures are sorted on disk and merged, so memory does not grow with the corpus. One step is ours:
of a cluster of near copies datatrove keeps whichever roots its union-find tree; here it is the
first document of the first shard, and shards stand in the order of priority.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from datatrove.data import Document
from datatrove.pipeline.dedup import (
    ExactDedupConfig,
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupFilter,
    MinhashDedupSignature,
)

from monolane.data._filter_stats import Tally
from monolane.data._filters import HASHES, WORDS
from monolane.data._prepare_state import Work

Documents = Iterable[Document]
_PRIORITY_LEVELS = 65_535  # datatrove's; more shards than that share the lowest


def exact_signatures(work: Work, documents: Documents, rank: int) -> None:
    """Write the hash of each document of a shard."""
    folder = work.subfolder("exact", "signatures")
    step = ExactDedupSignature(str(folder), _exact_config(rank))
    step.run(iter(documents), rank, len(work.shards))


def find_exact(work: Work, _: int = 0) -> None:
    """Write which documents have an equal one before them, for each shard."""
    folders = [str(work.subfolder("exact", name)) for name in ("signatures", "found")]
    ExactFindDedups(*folders, _exact_config(0)).run(None, 0, 1)


def near_signatures(work: Work, documents: Documents, rank: int) -> None:
    """Write the MinHash signature of each document of a shard."""
    folder = work.subfolder("near", "signatures")
    step = MinhashDedupSignature(str(folder), _near_config(work), language=WORDS)
    step.run(iter(documents), rank, len(work.shards))


def find_near(work: Work, bucket: int) -> None:
    """Write the pairs of documents that agree in a bucket of their signatures."""
    folders = [str(work.subfolder("near", name)) for name in ("signatures", "pairs")]
    step = MinhashDedupBuckets(*folders, config=_near_config(work))
    step.run(None, bucket, work.recipe.duplicates.buckets)


def cluster_near(work: Work, _: int = 0) -> None:
    """Join pairs into clusters, and write all but the first document of each, for each shard."""
    files = sorted(work.subfolder("near", "pairs").glob("*.dups"))
    pairs = [np.fromfile(file, dtype="<u4").reshape(-1, 4).astype(np.int64) for file in files]
    pairs_P4 = np.concatenate(pairs) if pairs else np.zeros((0, 4), dtype=np.int64)
    # A document as one number that sorts by shard, then by place in it.
    removed = np.array(_not_first(pairs_P4[:, ::2] << 32 | pairs_P4[:, 1::2]), dtype=np.int64)
    for rank in range(len(work.shards)):
        own = removed[removed >> 32 == rank] & 0xFFFFFFFF
        path = work.subfolder("near", "removed") / f"{rank:06d}.remove"
        np.sort(own).astype("<u4").tofile(path)


def without_copies(work: Work, documents: Documents, rank: int, tally: Tally) -> Iterator[Document]:
    """Yield the documents of a shard that stay, once all copies are known."""
    if work.recipe.duplicates.exact:
        tally.filter("exact duplicate")  # the filters of a tally stand in their order
        documents = without_exact(work, documents, rank, tally)
    if work.recipe.duplicates.near:
        folder = str(work.subfolder("near", "removed"))
        step = MinhashDedupFilter(folder, exclusion_writer=tally.filter("near duplicate"))
        documents = step.run(iter(documents), rank, len(work.shards))
    yield from documents


def without_exact(work: Work, documents: Documents, rank: int, tally: Tally) -> Iterator[Document]:
    """Yield the documents of a shard that have no equal one before them."""
    step = ExactDedupFilter(
        str(work.subfolder("exact", "found")),
        _exact_config(rank),
        exclusion_writer=tally.filter("exact duplicate"),
    )
    yield from step.run(iter(documents), rank, len(work.shards))


def _content(document: Document) -> str:
    # datatrove picks its hash by the annotation of what this returns.
    text: str = document.text
    return text


def _exact_config(rank: int) -> Any:
    """Return the settings of a shard: the earlier its place, the higher its priority."""
    priority = max(1, _PRIORITY_LEVELS - rank)
    return ExactDedupConfig(
        content_getter=_content, document_priority=lambda _: priority, hash_config=HASHES
    )


def _near_config(work: Work) -> Any:
    duplicates = work.recipe.duplicates
    return MinhashConfig(
        n_grams=duplicates.ngram,
        num_buckets=duplicates.buckets,
        hashes_per_bucket=duplicates.hashes,
        hash_config=HASHES,
    )


def _not_first(pairs_P2: np.ndarray) -> list[int]:
    """Return every number that a chain of pairs joins to a smaller one."""
    above: dict[int, int] = {}

    def root(number: int) -> int:
        while (parent := above.get(number, number)) != number:
            above[number] = above.get(parent, parent)  # halve the path for the next
            number = parent
        return number

    for left, right in pairs_P2.tolist():
        first, second = sorted((root(left), root(right)))
        above[second] = first
    return [number for number in above if root(number) != number]
