"""From files to a corpus folder, by a recipe: the stages in their order, then the name.

All is made in ``<out>.partial``, which becomes ``<out>`` when it is whole. A killed preparation
goes on with the same command.
"""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from monolane._processor import read_processor
from monolane._progress import shown_progress
from monolane.data._corpus import HELD_OUT_BYTES, Corpus
from monolane.data._disk import disk_told
from monolane.data._filter_stats import Summary, Tally
from monolane.data._manifest import MANIFEST, Half, Manifest, Source
from monolane.data._pool import Pool
from monolane.data._prepare_state import Work, alone, check_disk, plan_work
from monolane.data._recipe import CorpusRecipe, read_recipe
from monolane.data._tokens import ENDS, Part
from monolane.data._write import copy_tokenizer, start_manifest
from monolane.errors import ConfigError, DataError, MissingExtraError

_NEEDED = ("datatrove", "pyarrow", "regex")


def prepare(
    recipe: CorpusRecipe | Path,
    out: Path,
    *,
    workers: int | None = None,
    progress: bool = True,
    say: Callable[[str], object] = lambda line: sys.stderr.write(line + "\n"),
) -> Corpus:
    """Prepare the corpus of a recipe (or of its TOML file) in the folder ``out``, and open it.

    ``workers`` processes share the work, one for each core if None; the corpus is
    the same for any number. A script that calls this needs ``if __name__ == "__main__":``.
    ConfigError: the recipe. DataError: ``out`` exists or is being prepared, a file cannot be read,
    the disk refuses.
    MissingExtraError: datatrove is not installed.
    """
    recipe = read_recipe(recipe) if isinstance(recipe, Path) else recipe
    if not all(map(find_spec, _NEEDED)):
        raise MissingExtraError("preparing a corpus", "data")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers: expected 1 or more, got {workers}")
    if out.exists():
        raise DataError(f"{out}: expected no folder there yet; remove it, or name another")
    partial = out.with_name(f"{out.name}.partial")
    with disk_told(partial, DataError, "run the same command again"):
        if (partial / MANIFEST).is_file():
            _check_whole(recipe, partial)
        else:
            _make(recipe, partial, workers or read_processor().workers, progress, say)
        shutil.rmtree(partial / "work", ignore_errors=True)
        partial.rename(out)
    return Corpus.open(out)


def _make(
    recipe: CorpusRecipe, partial: Path, workers: int, progress: bool, say: Callable[[str], object]
) -> None:
    from monolane.data._stages import stages  # and datatrove

    work = plan_work(recipe, partial)
    with alone(work):
        check_disk(work, say)
        if recipe.tokenizer.path:
            copy_tokenizer(recipe.tokenizer, work.tokenizer)
        with (
            Pool(work, min(workers, len(work.shards))) as pool,
            shown_progress(shown=progress) as bars,
        ):
            for stage in stages(work):
                pool.run(stage, bars)
        _finish(work)


def _check_whole(recipe: CorpusRecipe, partial: Path) -> None:
    """Check that a corpus that only lacks its name is that of the recipe."""
    # Through JSON on both sides, which makes lists of tuples.
    if json.dumps(Manifest.read(partial).recipe) != json.dumps(asdict(recipe)):
        raise DataError(
            f"{partial}: expected nothing, or this recipe half done, found a corpus of another; "
            "rename it to keep it, or remove it"
        )


def _finish(work: Work) -> None:
    """Join what the tasks recorded into the manifest, which makes the folder a corpus."""
    manifest = start_manifest(
        work.folder, work.tokenizer, recipe=asdict(work.recipe), stages=work.recipe.stages
    )
    sets = range(len(work.recipe.decontamination.sets))
    summary = Summary(evaluation=[work.record("evaluation", index) for index in sets])
    sources = []
    for recipe in work.recipe.sources:
        tally, encoded = Tally(), []
        for rank in work.of_source(recipe.name):
            encoded.append(work.record("encode", rank))
            tally.join(work.record("filter", rank))
            tally.join(encoded[-1]["tally"])
        parts = {half: [record[half] for record in encoded] for half in ("train", "held_out")}
        halves = {half: _join(work.folder, records) for half, records in parts.items()}
        _join_sizes(work, recipe.name, halves["held_out"])
        dropped = {name: one.documents for name, one in tally.dropped.items()}
        sources.append(Source(recipe.name, **halves, read=tally.read, dropped=dropped))
        lengths = {
            half: np.sum([record["lengths"] for record in records], axis=0).tolist()
            for half, records in parts.items()
        }
        summary.sources[recipe.name] = {**asdict(tally), "lengths": lengths}
    if not any(source.train.documents for source in sources):
        raise DataError(
            f"{work.folder}: expected documents to train on, got none: filters dropped "
            f"{sum(sum(source.dropped.values()) for source in sources):,} of "
            f"{sum(source.read for source in sources):,}; loosen them in the recipe"
        )
    summary.write(work.folder)
    replace(manifest, sources=tuple(sources)).write(work.scratch)
    (work.scratch / MANIFEST).replace(work.folder / MANIFEST)  # in one step: what has one is whole


def _join(folder: Path, records: list[dict[str, Any]]) -> Half:
    """Return a half of a source; parts without documents are left out, and their files removed."""
    parts = [Part(**record["part"]) for record in records]
    for part in parts:
        if not part.documents:
            for suffix in (".ds", ".ds.index"):
                (folder / f"{part.stem}{suffix}").unlink(missing_ok=True)
    size = sum(record["bytes"] for record in records)
    return Half(size, tuple(part for part in parts if part.documents))


def _join_sizes(work: Work, source: str, held_out: Half) -> None:
    folder = work.subfolder("encode")
    sizes = [np.fromfile(folder / f"{part.stem}.bytes", dtype=ENDS) for part in held_out.parts]
    joined = np.concatenate(sizes) if sizes else np.zeros(0, dtype=ENDS)
    joined.tofile(work.folder / source / HELD_OUT_BYTES)
