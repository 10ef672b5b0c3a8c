"""The results format: one JSON file per measurement worth quoting, the same for every bench.

    {"schema": 1, "date", "commit",
     "device": {"name", "driver", "cores", "memory_gb", "read_bandwidth_gb_s"},
     "command", "records": [...]}

A record has a ``name`` and either figures or the reason why it has none: ``error`` (its check
failed) or ``not_measured``. Never a figure next to a failed check.

A leaf beside ``errors``: benches on GPUs write the format where no native core is built, which
``monolane.measure`` needs.
"""

import datetime
import json
import math
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monolane.errors import MonolaneError

SCHEMA = 1
DEVICE_FIELDS = ("name", "driver", "cores", "memory_gb", "read_bandwidth_gb_s")
FIGURES = (
    "min",
    "median",
    "max",
    "tokens_per_s",
    "us_per_token",
    "bytes_per_token",
    "gb_per_s",
    "mbu",
)

Record = dict[str, Any]
Document = dict[str, Any]


class ResultsError(MonolaneError, ValueError):
    """A results document breaks the format."""


def validate_document(document: Mapping[str, Any]) -> None:
    """Raise ResultsError, naming the first thing that breaks the format."""
    _check(document.get("schema") == SCHEMA, f"schema {SCHEMA}", document.get("schema"))
    date = document.get("date")
    _check(re.fullmatch(r"\d{4}-\d\d-\d\d", str(date)) is not None, "a date YYYY-MM-DD", date)
    for key in ("commit", "command"):
        _check(isinstance(document.get(key), str), f"a string in {key!r}", document.get(key))
    device = document.get("device")
    whole = isinstance(device, dict) and all(key in device for key in DEVICE_FIELDS)
    _check(whole, f"device fields {', '.join(DEVICE_FIELDS)}", device)
    records = document.get("records")
    _check(isinstance(records, list), "a list in 'records'", records)
    for record in records or ():
        check_record(record)


def check_record(record: Any) -> None:
    """Raise ResultsError unless a record has figures, or one reason why it has none."""
    name = record.get("name") if isinstance(record, dict) else None
    _check(isinstance(name, str) and bool(name), "a record with a name", record)
    outcomes = [key for key in ("error", "not_measured") if key in record]
    figures = [key for key in FIGURES if record.get(key) is not None]
    reasoned = len(outcomes) == 1 and not figures and bool(str(record[outcomes[0]]).strip())
    _check(
        not outcomes or reasoned,
        f"record {name!r} with figures or one reason for their absence, not both",
        sorted(record),
    )
    for key in figures:
        number = isinstance(record[key], int | float) and not isinstance(record[key], bool)
        _check(
            number and math.isfinite(record[key]),
            f"record {name!r}: a finite number in {key!r}",
            record[key],
        )
    ordered = [record[key] for key in ("min", "median", "max") if record.get(key) is not None]
    _check(ordered == sorted(ordered), f"record {name!r}: min <= median <= max", ordered)


def _check(holds: bool, expected: str, got: object) -> None:
    if not holds:
        raise ResultsError(f"results: expected {expected}, got {got!r:.200}")


def build_document(
    device: Mapping[str, Any],
    command: str,
    records: Sequence[Record],
    commit: str,
    **more: Any,
) -> Document:
    """Return a validated document of today; ``more`` goes in beside the required fields."""
    document: Document = {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit,
        "device": {key: device.get(key) for key in DEVICE_FIELDS} | dict(device),
        "command": command,
        **more,
        "records": list(records),
    }
    validate_document(document)
    return document


def current_commit(folder: Path) -> str:
    """Return the commit of a checkout, with "-dirty" where files differ, or "unknown"."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        return commit + ("-dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def shown_word(word: str, root: Path | None = None) -> str:
    """Return a word of a command line as others could give it, without places on this machine.

    What leads to such a place is shown from ``root`` on, or by its last name outside it.
    """
    # "--option=PATH" and "NAME=PATH"; in a path itself an equals sign says nothing.
    option, equals, value = word.partition("=")
    if not equals or os.sep in option:
        option, equals, value = "", "", word
    path = Path(value)
    if path.is_absolute() or ".." in path.parts:
        value = shown_path(path.resolve(), root)
    return option + equals + value


def shown_path(path: Path, root: Path | None) -> str:
    """Return an absolute path as seen from ``root``, or its last name outside it."""
    return str(path.relative_to(root)) if root and path.is_relative_to(root) else path.name


def result_name(document: Mapping[str, Any], what: str) -> str:
    """Return the file name that a document goes by: date, device and what was measured."""
    slug = re.sub(r"[^a-z0-9]+", "-", str(document["device"]["name"]).lower()).strip("-")
    what = re.sub(r"[^\w.-]+", "-", what)  # a server may call itself what it likes
    return f"{document['date']}-{slug or 'unknown'}-{what}.json"


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a validated document so that no reader ever sees half of it."""
    validate_document(document)
    text = json.dumps(document, indent=1) + "\n"
    if path.exists() and not path.is_file():  # a device or a pipe stays what it is
        path.write_text(text, encoding="utf-8")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
