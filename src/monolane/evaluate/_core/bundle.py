"""The tasks of CORE from a folder: which they are, their items in the order of asking, baselines.

The layout is that of the "eval bundle" that nanochat scores with, as DCLM prepared it:

    core.yaml            icl_tasks: label, icl_task_type, dataset_uri, num_fewshot,
                         continuation_delimiter
    eval_meta_data.csv   of each label, in "Random baseline", the percentage that a guess gets right
    eval_data/           the files that dataset_uri names, one JSON object a line
"""

import csv
import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from monolane.errors import DataError, RequestError

TASKS = 22  # of CORE (arXiv 2406.11794)
SOURCE = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"
KEYS = {
    "multiple_choice": ("query", "choices", "gold"),
    "schema": ("context_options", "continuation", "gold"),
    "language_modeling": ("context", "continuation"),
}
_ORDER_SEED = 1337  # nanochat's, of the order from which a limit takes the first
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One task; ``kind`` is one of ``KEYS``, ``baseline`` the share that a guess gets right.

    shots      solved items before each that is asked
    delimiter  what stands between a question and its answer
    rows       the items, in the order of asking
    """

    label: str
    kind: str
    shots: int
    delimiter: str
    baseline: float
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Bundle:
    """All tasks of a folder; ``sha256`` is over the files that they are read from."""

    parts: tuple[Part, ...]
    sha256: str


def read_bundle(data: Sequence[Path], limit: int | None) -> Bundle:
    """Read the first folder of ``data`` that is a bundle, or holds one as ``eval_bundle``.

    ``limit``: items of each task, the first of nanochat's order. DataError: none is there, or it
    is malformed. RequestError: the limit leaves too few items for solved ones.
    """
    folder = _find(data)
    hashed = hashlib.sha256()
    config = _yaml(_bytes(folder / "core.yaml", hashed), folder / "core.yaml")
    baselines = _baselines(_bytes(folder / "eval_meta_data.csv", hashed), folder)
    files: dict[str, list[Row]] = {}
    parts = []
    for task in config:
        uri = task["dataset_uri"]
        if uri not in files:
            path = folder / "eval_data" / uri
            files[uri] = list(_rows(_bytes(path, hashed), path))
        parts.append(_part(task, files[uri], baselines, limit, folder))
    return Bundle(tuple(parts), hashed.hexdigest())


def _part(
    task: Row, rows: Sequence[Row], baselines: Mapping[str, float], limit: int | None, folder: Path
) -> Part:
    label, kind = str(task["label"]), str(task["icl_task_type"])
    if kind not in KEYS:
        raise DataError(f"{folder}/core.yaml, {label}: expected one of {', '.join(KEYS)}: {kind!r}")
    if label not in baselines:
        raise DataError(f"{folder}/eval_meta_data.csv: expected a random baseline of {label}")
    for row in rows:
        missing = [key for key in KEYS[kind] if key not in row]
        if missing:
            uri = task["dataset_uri"]
            raise DataError(f"{uri}: expected {missing[0]!r} in each item, got {row!r:.80}")
    shuffled = list(rows)
    random.Random(_ORDER_SEED).shuffle(shuffled)
    part = Part(
        label,
        kind,
        int(task["num_fewshot"][0]),
        str(task.get("continuation_delimiter", " ")),
        baselines[label],
        shuffled[:limit],
    )
    if len(part.rows) <= part.shots:
        raise RequestError(
            f"--limit: expected more than {part.shots}, since {label} shows {part.shots} solved "
            f"items before each, and they are drawn from those that are asked; got {limit}"
            if limit is not None and len(shuffled) > part.shots
            else f"{label}: expected more than {part.shots} items, got {len(shuffled)}"
        )
    return part


def _find(data: Sequence[Path]) -> Path:
    for path in data:
        for folder in (path, path / "eval_bundle"):
            if (folder / "core.yaml").is_file():
                return folder
    raise DataError(
        "core: expected --data FOLDER with core.yaml, eval_meta_data.csv and eval_data/, found none"
        f"{' in ' if data else ''}{', '.join(map(str, data))}; nanochat's bundle of DCLM's tasks "
        f"(160 MB) is at {SOURCE}: unpack it"
    )


def _bytes(path: Path, hashed: Any) -> bytes:
    try:
        found = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected a file of CORE's bundle: {error.strerror}") from None
    hashed.update(found)
    return found


def _yaml(text: bytes, path: Path) -> list[Row]:
    try:
        tasks = yaml.safe_load(text)["icl_tasks"]
        for task in tasks:
            _ = task["label"], task["icl_task_type"], task["dataset_uri"], task["num_fewshot"][0]
    except (yaml.YAMLError, KeyError, TypeError, IndexError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: expected icl_tasks with label, icl_task_type, dataset_uri and num_fewshot: "
            f"{type(error).__name__} {error!s:.80}"
        ) from None
    return list(tasks)


def _baselines(text: bytes, folder: Path) -> dict[str, float]:
    try:
        rows = csv.DictReader(text.decode("utf-8-sig").splitlines())
        return {row["Eval Task"]: float(row["Random baseline"]) / 100 for row in rows}
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{folder}/eval_meta_data.csv: expected columns 'Eval Task' and 'Random baseline' "
            f"(percent): {type(error).__name__} {error}"
        ) from None


def _rows(text: bytes, path: Path) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: expected a JSON object, got {line[:60]!r}")
        yield row
