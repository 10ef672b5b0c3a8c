"""The results format: one JSON file per measurement worth quoting, the same for every bench.

`{"schema": 1, "date", "commit", "device": {"name", "driver", "cores", "memory_gb",
"read_bandwidth_gb_s"}, "command", "records": [...]}`. A record has a `name` and either figures
(`runs`, `min`, `median`, `max`, and whatever more it needs), or `error` (its check failed), or
`not_measured` (and why): never a figure next to a failed check. Plain dicts and one validator, so
that a bench needs nothing but the standard library to write its file.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import subprocess
from pathlib import Path
from typing import Any

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


class ResultsError(ValueError):
    """A results document that breaks the format."""


def check_record(record: Record) -> None:
    """Raises ResultsError unless `record` is one of the three shapes."""
    if not isinstance(record.get("name"), str) or not record["name"]:
        raise ResultsError(f"expected a record with a non-empty name, got {record!r}")
    name = record["name"]
    outcomes = [k for k in ("error", "not_measured") if k in record]
    figures = [k for k in FIGURES if record.get(k) is not None]
    if outcomes and figures:
        raise ResultsError(
            f"record {name!r} has {outcomes[0]!r} and figures {figures}: a figure whose check "
            "failed must not be written; drop the figures"
        )
    if len(outcomes) == 2:
        raise ResultsError(f"record {name!r} has both 'error' and 'not_measured'; keep one")
    if outcomes and not str(record[outcomes[0]]).strip():
        raise ResultsError(f"record {name!r}: {outcomes[0]!r} is empty; say why")
    for key in figures:
        value = record[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ResultsError(f"record {name!r}: expected a number in {key!r}, got {value!r}")
        if not math.isfinite(value):
            raise ResultsError(f"record {name!r}: {key!r} is {value}; expected a finite number")
    low, mid, high = (record.get(k) for k in ("min", "median", "max"))
    if None not in (low, mid, high) and not low <= mid <= high:  # type: ignore[operator]
        raise ResultsError(
            f"record {name!r}: expected min <= median <= max, got {low}, {mid}, {high}"
        )


def validate(document: Document) -> None:
    """Raises ResultsError, naming the first thing that breaks the format."""
    if document.get("schema") != SCHEMA:
        raise ResultsError(f"expected schema {SCHEMA}, got {document.get('schema')!r}")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", str(document.get("date"))):
        raise ResultsError(f"expected a date YYYY-MM-DD, got {document.get('date')!r}")
    for key in ("commit", "command"):
        if not isinstance(document.get(key), str):
            raise ResultsError(f"expected a string in {key!r}, got {document.get(key)!r}")
    device = document.get("device")
    if not isinstance(device, dict) or any(k not in device for k in DEVICE_FIELDS):
        raise ResultsError(f"expected device fields {DEVICE_FIELDS}, got {device!r}")
    if not isinstance(document.get("records"), list):
        raise ResultsError("expected a list in 'records'")
    for record in document["records"]:
        check_record(record)


def current_commit(repository: Path) -> str:
    """The commit of a checkout (with "-dirty" where files differ), or "unknown"."""
    try:
        git = ["git", "-C", str(repository)]
        commit = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
        status = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + ("-dirty" if status.stdout.strip() else "")


def build(
    *, device: dict[str, Any], command: str, records: list[Record], commit: str, **more: Any
) -> Document:
    """A validated document of today; `more` goes in beside the required fields."""
    document: Document = {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit,
        "device": {k: device.get(k) for k in DEVICE_FIELDS} | device,
        "command": command,
        **more,
        "records": records,
    }
    validate(document)
    return document


def file_name(document: Document, what: str) -> str:
    """`<date>-<device>-<what>.json`, with the device's name reduced to a slug."""
    slug = re.sub(r"[^a-z0-9]+", "-", str(document["device"]["name"]).lower()).strip("-")
    return f"{document['date']}-{slug or 'unknown'}-{what}.json"


def write(path: Path, document: Document) -> None:
    """Writes the validated document so that a reader never sees half of it."""
    validate(document)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(path)
