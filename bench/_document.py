"""How a benchmark ends: its records become a results document, which is printed or written."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _command import ROOT, shown_command

from monolane.measure import (
    Record,
    build_document,
    current_commit,
    describe_machine,
    load_average,
    result_name,
    write_document,
)


def publish(
    records: Sequence[Record], what: str, out: Path | None, timed: bool = True, **more: Any
) -> None:
    """Print a document of these records, or write it where ``out`` says, and say where that is.

    out    a file, if it ends in .json; else the folder of a file that is named after date, device
           and ``what``
    timed  whether other programs' load changes the figures, so that it belongs beside them
    more   fields of the document beside those that each has
    """
    if timed:
        more["load_average"] = round(load_average(), 2)
    bandwidth = next((r["median"] * 1e9 for r in records if r["name"] == "read_bandwidth"), None)
    document = build_document(
        describe_machine(bandwidth), shown_command(sys.argv), records, current_commit(ROOT), **more
    )
    if out is None:
        print(json.dumps(document, indent=1))
        return
    path = out if out.suffix == ".json" else out / result_name(document, what)
    write_document(path, document)
    sys.stderr.write(f"written to {path}\n")
