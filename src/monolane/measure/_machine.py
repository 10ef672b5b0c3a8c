"""The machine that a result belongs to, and a document of what was just measured on it."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monolane._results import Document, Record, build_document, current_commit


def describe_machine(read_bandwidth: float | None = None) -> dict[str, Any]:
    """Return the fields of a result's ``device``; ``read_bandwidth`` in bytes/s, as measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    measured = None if read_bandwidth is None else round(read_bandwidth / 1e9, 2)
    return {
        "name": _processor(),
        "driver": f"{platform.system()} {platform.release()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "read_bandwidth_gb_s": measured,
    }


def document_here(
    records: Sequence[Record], command: str, checkout: Path, *, timed: bool = True, **more: Any
) -> Document:
    """Return the document of records that were taken on this machine, with the code of a checkout.

    timed  whether other programs' load changes the figures, so that it belongs beside them
    more   fields of the document beside those that each has
    """
    if timed:
        more["load_average"] = round(load_average(), 2)
    bandwidth = next((r["median"] * 1e9 for r in records if r["name"] == "read_bandwidth"), None)
    machine = describe_machine(bandwidth)
    return build_document(machine, command, records, current_commit(checkout), **more)


def drop_from_page_cache(path: Path) -> None:
    """Have a file read from disk again, as after a restart; a mapping may then get huge pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())  # pages that are not written yet cannot be dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load_average() -> float:
    """Return how many threads of all programs have wanted a core in the last minute, on average."""
    return os.getloadavg()[0]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else []:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
