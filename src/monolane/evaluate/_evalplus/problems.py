"""The problems of HumanEval+ and MBPP+: from a file, or by EvalPlus's own download."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from monolane._env import forbids_downloads
from monolane.errors import DataError, MissingExtraError

_KEYS = ("task_id", "prompt", "entry_point", "canonical_solution", "base_input", "plus_input")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One of EvalPlus's two data sets: ``dataset`` is its name there, ``md5`` the release's."""

    name: str
    title: str
    dataset: str
    prefix: str
    version: str
    md5: str


HUMANEVAL = Benchmark(
    "humaneval+", "HumanEval+", "humaneval", "HumanEval/", "v0.1.10",
    "fe585eb4df8c88d844eeb463ea4d0302",
)  # fmt: skip
MBPP = Benchmark(
    "mbpp+", "MBPP+", "mbpp", "Mbpp/", "v0.2.0", "ee43ecabebf20deef4bb776a405ac5b1"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Problems:
    """The problems of one file; ``released``: it is the release, to the bit."""

    rows: tuple[dict[str, Any], ...]
    sha256: str
    released: bool


def require_evalplus() -> None:
    """Raise MissingExtraError if the scorer is not installed: better before a run than in it."""
    if find_spec("evalplus") is None:
        raise MissingExtraError("scoring code", "eval")


def find_problems(benchmark: Benchmark, data: Sequence[Path]) -> Problems:
    """Return the problems of a benchmark from the first file of ``data`` that has them.

    ``data`` are .jsonl files, also .gz, or folders that hold some. Without any, EvalPlus fetches
    the file from its release on GitHub, once, into its own cache. DataError says what was looked
    for.
    """
    for path in _files(data):
        text = _read(path)
        if _begins_as(benchmark, text):
            return read_problems(text, path)
    if data:
        raise DataError(
            f"--data: expected a .jsonl file, or .jsonl.gz, with the problems of {benchmark.title} "
            f"({benchmark.prefix}...) in {', '.join(map(str, data))}, found none"
        )
    if variable := forbids_downloads():
        raise DataError(
            f"{benchmark.title}: {variable} forbids to download it; give the file with --data"
        )
    return read_problems(*_fetched(benchmark))


def read_problems(text: bytes, path: Path) -> Problems:
    """Read problems, one JSON object a line."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
            missing = [key for key in _KEYS if key not in row]
        except (ValueError, TypeError):
            raise DataError(f"{path}, line {number}: expected a JSON object") from None
        if missing:
            raise DataError(
                f"{path}, line {number}: expected a problem of EvalPlus, with {missing[0]}"
            )
        rows.append(row)
    md5 = hashlib.md5(text, usedforsecurity=False).hexdigest()
    released = md5 in (HUMANEVAL.md5, MBPP.md5)
    return Problems(tuple(rows), hashlib.sha256(text).hexdigest(), released)


def _files(data: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in data:
        if path.is_dir():
            # "Mini" files hold the same problems with fewer inputs: only by name.
            files = [*path.rglob("*.jsonl"), *path.rglob("*.jsonl.gz")]
            found += sorted(file for file in files if "Mini" not in file.name)
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"--data: expected a file or a folder, found none at {path}")
    return found


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: {error}") from None


def _begins_as(benchmark: Benchmark, text: bytes) -> bool:
    try:
        row = json.loads(text.split(b"\n", 1)[0])
    except ValueError:
        return False
    # Plain HumanEval has the same ids and no inputs of EvalPlus's.
    return (
        isinstance(row, dict)
        and "plus_input" in row
        and str(row.get("task_id")).startswith(benchmark.prefix)
    )


def _fetched(benchmark: Benchmark) -> tuple[bytes, Path]:
    require_evalplus()
    try:
        from evalplus.data import humaneval, mbpp

        if benchmark is HUMANEVAL:
            path = Path(humaneval._ready_human_eval_plus_path())
        else:
            path = Path(mbpp._ready_mbpp_plus_path())
        return path.read_bytes(), path
    except ImportError:
        raise MissingExtraError(f"fetching {benchmark.title}", "eval") from None
    except Exception as error:  # whatever its downloader raises
        raise DataError(
            f"{benchmark.title}: EvalPlus could not fetch it ({error!s:.200}); download "
            f"its {benchmark.version} from github.com/evalplus and give the file with --data"
        ) from None
