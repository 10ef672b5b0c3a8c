"""A campaign's results as a page: what both suites' pages have, and how tables are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from monolane._results import Document, Record

Cell = Callable[[Record], str]
Lines = list[str]
_LEFT_OUT = 40  # lines about what was not measured


def page(title: str, document: Document, *sections: Lines) -> str:
    """A title, the sections of a suite, and what every campaign tells about itself."""
    records = document["records"]
    every = (
        _head(title, document), *sections, _kernels(records), _clocks(records),
        _trouble(records), _parts(records),
    )  # fmt: skip
    return "\n".join(line for lines in every if lines for line in (*lines, ""))


def _head(title: str, document: Document) -> Lines:
    device = document["device"]
    bandwidth = device["read_bandwidth_gb_s"]
    reads = "not measured" if bandwidth is None else f"{bandwidth:,.0f} GB/s"
    return [
        f"# {title} on {device['name']}, {document['date']}",
        "",
        (
            f"Commit `{document['commit'][:12]}`, driver {device['driver']}, {device['cores']} "
            f"SMs, read bandwidth {reads}. `{document['command']}`"
        ),
    ]


def _kernels(records: Sequence[Record]) -> Lines:
    found = [kernel for x in records if x["name"] == "kernels" for kernel in x.get("kernels", ())]
    columns: dict[str, Cell] = {
        "kernel": lambda x: x["kernel"],
        "width": lambda x: str(x.get("width", "")),
        "registers": lambda x: str(x.get("registers", "")),
        "bytes spilled": lambda x: str(x.get("spill_bytes", "")),
        "ring": lambda x: ring(x) if "ring_slots" in x else "",
        "shared": lambda x: f"{x['shared_bytes']:,}" if "shared_bytes" in x else "",
    }
    return section("Kernels", columns, found)


# ---- the run itself ------------------------------------------------------------------------------
def _clocks(records: Sequence[Record]) -> Lines:
    clocks = next((x for x in records if x["name"] == "clocks" and "throttled" in x), None)
    if clocks is None:
        return []
    rows = []
    for name in ("sm_mhz", "memory_mhz", "power_w", "temperature_c"):
        during = clocks.get(name) or {}
        cells = (clocks["before"].get(name), during.get("min"), during.get("median"),
                 during.get("max"), clocks["after"].get(name))  # fmt: skip
        rows.append([name, *map(cell, cells)])
    heads = ("", "before", "least", "median", "most", "after")
    throttled = f"Throttled: {clocks['throttled']} ({clocks['throttle_reasons_seen']})."
    return ["## Clocks", "", throttled, "", *table(heads, rows)]


def _trouble(records: Sequence[Record]) -> Lines:
    failed = [_why(x, "error", "**failed**") for x in records if "error" in x]
    left_out = [_why(x, "not_measured", "not measured") for x in records if "not_measured" in x]
    lines = failed + left_out[:_LEFT_OUT]
    if len(left_out) > _LEFT_OUT:
        lines.append(f"- and {len(left_out) - _LEFT_OUT} more not measured: see the JSON")
    return ["## Trouble", "", *lines] if lines else []


def _why(record: Record, key: str, kind: str) -> str:
    return f"- {_name(record)}: {kind}: {' '.join(str(record[key]).split())[:300]}"


def _name(record: Record) -> str:
    labels = ("part", "golden", "dtype", "context", "width")
    return " ".join([record["name"], *(str(record[key]) for key in labels if key in record)])


def _parts(records: Sequence[Record]) -> Lines:
    columns: dict[str, Cell] = {
        "part": lambda x: x["part"],
        "begun at, s": lambda x: number(x["begun_at_s"]),
        "took, s": lambda x: number(x["took_s"]),
    }
    return section("Time of the parts", columns, [x for x in records if x["name"] == "part"])


# ---- tables --------------------------------------------------------------------------------------
def section(title: str, columns: dict[str, Cell], found: Sequence[Record]) -> Lines:
    """A table of records, or nothing if there are none."""
    if not found:
        return []
    rows = [[cell(record) for cell in columns.values()] for record in found]
    return [f"## {title}", "", *table(list(columns), rows)]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    """The lines of a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(x.replace("|", "\\|") for x in line) + " |" for line in lines]


def with_bounds(record: Record) -> str:
    """A median between its bounds, or what came instead."""
    if "median" not in record:
        return "failed" if "error" in record else "not measured"
    return f"**{record['median']:,.4g}** ({record['min']:,.4g} to {record['max']:,.4g})"


def number(value: float | None, form: str = ",.1f") -> str:
    """A figure, or an empty cell."""
    return "" if value is None else format(value, form)


def cell(value: Any) -> str:
    """Anything as a cell."""
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def ring(record: Record) -> str:
    """Slots of a ring, and their size."""
    return f"{record['ring_slots']} x {record['slot_bytes'] >> 10} KB"
