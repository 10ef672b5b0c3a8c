"""How a benchmark ends: its records become a results document, which is printed or written."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _command import ROOT, shown_command

from monolane.errors import ConfigError
from monolane.measure import Record, document_here, result_name, write_document


def publish(records: Sequence[Record], what: str, out: Path | None, **more: Any) -> None:
    """Print a document of these records, or write it where ``out`` says, and say where that is.

    ConfigError if it cannot be written; it is printed then, since it may have taken hours.

    out    a file, if it ends in .json; else the folder of a file that is named after date, device
           and ``what``
    more   as of ``document_here``
    """
    document = document_here(records, shown_command(sys.argv), ROOT, **more)
    if out is None:
        print(json.dumps(document, indent=1))
        return
    path = out if out.suffix == ".json" else out / result_name(document, what)
    try:
        write_document(path, document)
    except OSError as error:
        print(json.dumps(document, indent=1))
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; the document is on stdout instead"
        ) from None
    sys.stderr.write(f"written to {path}\n")
