"""The machine that a result belongs to, and a document of what was just measured on it."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monolane._results import Document, Record, build_document, current_commit

# AMD's processors by family: of each microarchitecture the models, as Linux has them in
# arch/x86/kernel/cpu/amd.c. Virtual machines call them all "AMD EPYC", and they are as different as
# two processors are: Zen 3 has no AVX-512.
_ZEN: Mapping[int, Mapping[str, Sequence[range]]] = {
    0x17: {
        "Zen": (range(0x30), range(0x50, 0x60)),
        "Zen 2": (range(0x30, 0x50), range(0x60, 0x80), range(0x90, 0x92), range(0xA0, 0xB0)),
    },
    0x19: {
        "Zen 3": (range(0x10), range(0x20, 0x60)),
        "Zen 4": (range(0x10, 0x20), range(0x60, 0xB0)),
    },
    0x1A: {"Zen 5": (range(0x30), range(0x40, 0x50), range(0x60, 0x80))},
}


def describe_machine(read_bandwidth: float | None = None) -> dict[str, Any]:
    """Return the fields of a result's ``device``; ``read_bandwidth`` in bytes/s, as measured.

    The name says the microarchitecture of AMD's processors too: "AMD EPYC (Zen 3)", and of Intel's
    whether they have tiles: "Intel(R) Xeon(R) Processor (AMX)".
    """
    info = Path("/proc/cpuinfo")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    measured = None if read_bandwidth is None else round(read_bandwidth / 1e9, 2)
    return {
        "name": processor_name(info.read_text() if info.is_file() else ""),
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


def processor_name(info: str) -> str:
    """Return the name of the first processor that a text like /proc/cpuinfo's describes."""
    first = info.partition("\n\n")[0].splitlines()
    fields = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in first)}
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    kind = _microarchitecture(fields)
    return f"{fields['model name']} ({kind})" if kind else fields["model name"]


def _microarchitecture(fields: Mapping[str, str]) -> str | None:
    if fields.get("vendor_id") == "GenuineIntel":
        # Hosts hide the model, and call all of them "Intel(R) Xeon(R) Processor"; tiles are what
        # other kernels run for.
        return "AMX" if "amx_tile" in fields.get("flags", "").split() else None
    if fields.get("vendor_id") != "AuthenticAMD":
        return None
    family, model = int(fields.get("cpu family", 0)), int(fields.get("model", -1))
    known = _ZEN.get(family, {})
    return next((n for n, models in known.items() if any(model in r for r in models)), None)
