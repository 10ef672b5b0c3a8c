"""The stages of preparation. A task is one stage on one shard (or on the whole), in any process.

filter      files -> documents that pass the filters of their source
exact       documents -> hashes;                 exact-find: which are copies
near        documents that are no copies -> MinHash;  near-find, near-cluster: which are close
vocabulary  a tokenizer trained on what stays, if the recipe asks for one
encode      what stays -> token files of both halves, training documents in a shuffled order
"""

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document
from datatrove.utils.hashing import create_hash_func

from monolane.data._duplicates import (
    cluster_near,
    exact_signatures,
    find_exact,
    find_near,
    near_signatures,
    without_copies,
    without_exact,
)
from monolane.data._filter_stats import Tally
from monolane.data._filters import HASHES, filters_of, telling_ngrams
from monolane.data._manifest import dtype_name, ids_type
from monolane.data._prepare_state import Work
from monolane.data._sources import is_held_out, read_evaluation, read_file
from monolane.data._tokens import ENDS, Part, TokenFiles
from monolane.data._vocabulary import train_vocabulary, write_vocabulary
from monolane.data._write import PartWriter
from monolane.text import Tokenizer

Record = dict[str, Any]
BINS = 33  # of lengths: bin k counts documents of 2^k to 2^(k + 1) - 1 tokens


@dataclass(frozen=True)
class Stage:
    """A stage: what a task of it does, and how many there are."""

    name: str
    run: Callable[[Work, int], Record | None]
    tasks: int


def stages(work: Work) -> Iterator[Stage]:
    """Yield the stages that a recipe needs, in their order."""
    recipe, shards = work.recipe, len(work.shards)
    if recipe.decontamination.sets:
        yield Stage("evaluation", _hash_evaluation, len(recipe.decontamination.sets))
    yield Stage("filter", _filter, shards)
    if recipe.duplicates.exact:
        yield Stage("exact", _exact, shards)
        yield Stage("exact-find", find_exact, 1)
    if recipe.duplicates.near:
        yield Stage("near", _near, shards)
        yield Stage("near-find", find_near, recipe.duplicates.buckets)
        yield Stage("near-cluster", cluster_near, 1)
    if recipe.tokenizer.vocabulary:
        yield Stage("vocabulary", _train_vocabulary, 1)
    yield Stage("encode", _encode, shards)


def _hash_evaluation(work: Work, index: int) -> Record:
    """Write the hashes of a set's n-grams, in the form that datatrove's filter reads."""
    # Its own indexer is not used: it cannot run without lighteval, which downloads the sets.
    given, count = work.recipe.decontamination.sets[index], work.recipe.decontamination.ngram
    hashed = create_hash_func(HASHES)
    hashes: set[int] = set()
    tasks = short = 0
    for text in read_evaluation(given):
        found = list(telling_ngrams(text, count))
        hashes.update(map(hashed, found))
        tasks += 1
        short += not found
    path = work.subfolder("evaluation") / f"{given.name}.index.hashes"
    np.array(sorted(hashes), dtype="<u8").tofile(path)
    return {"name": given.name, "tasks": tasks, "short": short, "ngrams": len(hashes)}


def _filter(work: Work, rank: int) -> Record:
    shard, recipe = work.shards[rank], work.recipe
    source = recipe.source(shard.source)
    evaluation = work.subfolder("evaluation") if recipe.decontamination.sets else None
    filters = filters_of(source, evaluation, recipe.decontamination.ngram)
    tally = Tally()
    for name in ("not UTF-8", *filters):
        tally.filter(name)  # none dropped is worth saying too
    with _texts(work, rank).open("w", encoding="utf-8") as out:
        for file in shard.files:
            for found in read_file(source, Path(file)):
                tally.read += 1
                if found.text is None:
                    tally.filter("not UTF-8").add(found.name, "")
                    continue
                tally.read_bytes += len(found.text.encode())
                for name, check in filters.items():
                    if (why := check(found.text)) is not None:
                        tally.filter(name).add(found.name, found.text, why)
                        break
                else:
                    out.write(json.dumps([found.name, found.text], ensure_ascii=False) + "\n")
    return asdict(tally)


def _exact(work: Work, rank: int) -> None:
    exact_signatures(work, _documents(work, rank), rank)


def _near(work: Work, rank: int) -> None:
    documents: Any = _documents(work, rank)
    if work.recipe.duplicates.exact:
        documents = without_exact(work, documents, rank, Tally())
    near_signatures(work, documents, rank)


def _train_vocabulary(work: Work, _: int) -> None:
    recipe = work.recipe.tokenizer
    total = sum(shard.bytes for shard in work.shards)
    share = min(1.0, recipe.sample_bytes / max(1, total))

    def texts() -> Iterator[str]:
        for rank, shard in enumerate(work.shards):
            left = share * shard.bytes if share < 1 else float("inf")
            for document in without_copies(work, _documents(work, rank), rank, Tally()):
                if left > 0 and not is_held_out(document.text, work.recipe.held_out):
                    left -= len(document.text.encode())
                    yield document.text

    write_vocabulary(train_vocabulary(texts(), recipe.vocabulary), work.tokenizer)


def _encode(work: Work, rank: int) -> Record:
    shard = work.shards[rank]
    tokenizer = Tokenizer.open(work.tokenizer)
    assert tokenizer is not None
    dtype = ids_type(dtype_name(tokenizer.vocab_size))
    before, after = ([] if i is None else [i] for i in (tokenizer.bos_id, tokenizer.eos_id))
    stems = {half: f"{shard.source}/{half}-{shard.number:05d}" for half in ("train", "held_out")}
    sizes: dict[str, list[int]] = {half: [] for half in stems}
    tally = Tally()
    folder = work.subfolder("encode")
    with (
        PartWriter(folder, stems["train"], dtype) as train,
        PartWriter(folder, stems["held_out"], dtype) as held_out,
    ):
        for document in without_copies(work, _documents(work, rank), rank, tally):
            ids = tokenizer.encode(document.text, add_special_tokens=False)
            held = is_held_out(document.text, work.recipe.held_out)
            (held_out if held else train).add(np.array([*before, *ids, *after]))
            sizes["held_out" if held else "train"].append(len(document.text.encode()))
    seed = (work.recipe.seed, zlib.crc32(shard.source.encode()), shard.number)
    halves = {
        half: _shuffle(work, writer.part(), dtype, sizes[half], seed)
        for half, writer in (("train", train), ("held_out", held_out))
    }
    return {"tally": asdict(tally), **halves}


def _shuffle(
    work: Work, part: Part, dtype: np.dtype, sizes: list[int], seed: tuple[int, ...]
) -> Record:
    """Write a part's documents in a shuffled order where the corpus has them, and measure them."""
    folder = work.subfolder("encode")
    files = TokenFiles(folder, [part], dtype)
    order = np.random.default_rng(seed).permutation(part.documents)
    with PartWriter(work.folder, part.stem, dtype) as writer:
        for number in order.tolist():
            writer.add(files.document(number))
    shuffled = np.array(sizes, dtype=ENDS)[order]
    shuffled.tofile(folder / f"{part.stem}.bytes")
    (folder / f"{part.stem}.ds").unlink()
    bins = np.bincount(np.log2(files.lengths()).astype(int), minlength=BINS)
    return {"part": asdict(writer.part()), "bytes": sum(sizes), "lengths": bins.tolist()}


def _texts(work: Work, rank: int) -> Path:
    return work.subfolder("texts") / f"{rank:05d}.jsonl"


def _documents(work: Work, rank: int) -> Iterator[Document]:
    """Yield the documents of a shard that passed the filters."""
    with _texts(work, rank).open(encoding="utf-8") as lines:
        for line in lines:
            name, text = json.loads(line)
            yield Document(text=text, id=name)
