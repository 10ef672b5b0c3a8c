"""Reading documents from files: text, source code, JSONL, Parquet, the standard library.

Not datatrove's readers: they note a line that is no JSON, or a file that is no UTF-8, in a log and
go on. Here a broken file is an error that names its line, and a text that cannot be used is counted
among what was dropped, with its name.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from monolane.data._library import is_generated, library_files, library_folder
from monolane.data._recipe import EvaluationSet, SourceRecipe
from monolane.errors import DataError, MissingExtraError

_BATCH = 256  # rows of a Parquet file in memory at once


@dataclass(frozen=True)
class Text:
    """One document: a name that finds it again, and its text; None where it is no UTF-8."""

    name: str
    text: str | None


def list_files(source: SourceRecipe) -> list[Path]:
    """Return the files of a source, sorted by name; DataError where there are none."""
    root = source_root(source)
    if root.is_file():
        return [root]
    if source.kind == "python-library":
        found = set(library_files(root))
    else:
        found = set(chain.from_iterable(root.glob(pattern) for pattern in source.patterns))
    files = sorted(
        (path for path in found if path.is_file()), key=lambda p: p.relative_to(root).as_posix()
    )
    if not files:
        hint = (
            "this Python may keep its library in a zip archive: use a full installation"
            if source.kind == "python-library"
            else "mend path or pattern"
        )
        raise DataError(
            f"sources.{source.name}: expected files {' or '.join(source.patterns)} below {root}, "
            f"found none; {hint}"
        )
    return files


def source_root(source: SourceRecipe) -> Path:
    """Return the file or folder that a source names."""
    return Path(source.path) if source.path else library_folder()


def read_file(source: SourceRecipe, path: Path) -> Iterator[Text]:
    """Yield the documents of one file; DataError names the line or row that cannot be read."""
    root = source_root(source)
    name = path.name if path == root else path.relative_to(root).as_posix()
    reader: Callable[[Path, str, str], Iterator[Text]] = {
        "jsonl": _read_jsonl,
        "parquet": _read_parquet,
    }.get(source.kind, _read_whole)
    try:
        yield from reader(path, name, source.field)
    except (OSError, EOFError) as error:
        raise DataError(
            f"{path}: expected a readable file, got: {error}; mend or remove it"
        ) from None


def library_texts(root: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield name and text of the files of Python's library that a preparation keeps by default.

    That is without those that are blank, generated or no UTF-8, and of equal ones the first; sorted
    by name. ``root``: the running Python's library if None. DataError where it has no files.
    """
    source = SourceRecipe("library", "python-library", "" if root is None else str(root))
    seen: set[str] = set()
    for path in list_files(source):
        for name, text in ((found.name, found.text) for found in read_file(source, path)):
            if text is not None and text.strip() and not is_generated(text) and text not in seen:
                seen.add(text)
                yield name, text


def read_evaluation(given: EvaluationSet) -> Iterator[str]:
    """Yield the text of each task of an evaluation set; DataError names the line at fault."""
    path = Path(given.path)
    if not path.is_file():
        raise DataError(
            f"decontamination.sets.{given.name}: expected a JSONL file {path}, found none; "
            "mend its path"
        )
    for number, value in _json_lines(path):
        fields = given.fields or [key for key in value if isinstance(value[key], str)]
        texts = [value.get(field) for field in fields]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"{path}, line {number}: expected strings {', '.join(fields) or 'of any name'}, "
                f"got fields {', '.join(value)}; set the fields of the set {given.name}"
            )
        yield "\n".join(map(str, texts))


def _read_whole(path: Path, name: str, _: str) -> Iterator[Text]:
    try:
        yield Text(name, path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError:
        yield Text(name, None)


def _read_jsonl(path: Path, name: str, field: str) -> Iterator[Text]:
    for number, value in _json_lines(path):
        yield _text(value, field, f"{name}:{number}", f"{path}, line {number}")


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line that is not blank."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise ValueError(type(value).__name__)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {number}: expected a JSON object, got: {error}; "
                    "mend or remove the line"
                ) from None
            yield number, value


def _read_parquet(path: Path, name: str, field: str) -> Iterator[Text]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("reading Parquet", "data") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if field not in file.schema_arrow.names:
                raise DataError(
                    f"{path}: expected a column {field!r}, got "
                    f"{', '.join(file.schema_arrow.names)}; set the source's field"
                )
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH, columns=[field]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    yield _text({field: value}, field, f"{name}:{number}", f"{path}, row {number}")
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: expected a Parquet file, got: {error}; mend it") from None


def _text(value: dict[str, Any], field: str, name: str, where: str) -> Text:
    text = value.get(field)
    if not isinstance(text, str):
        found = type(text).__name__ if text is not None else "nothing"
        raise DataError(
            f"{where}: expected a string {field!r}, got {found}; set the source's field, or mend it"
        )
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell half a character: "\ud800"
        return Text(name, None)
    return Text(name, text)
