"""The results as a page: what is right, how fast, and where the remaining microseconds are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench._results import Document, Record

Cell = Callable[[Record], str]
# Names of the records that say whether something is right, and what each means.
CHECKS = {
    "kernels": "every kernel compiles",
    "golden": "golden models: logits, bits of all widths, greedy tokens",
    "full_model": "full shape: the same bits at every width, run twice, alone and in company",
    "reference_torch": "full shape: no further from float32 than torch in bfloat16; greedy tokens",
    "reference_numpy": "a few tokens of the model beside NumPy in float32",
    "sanitizer": "compute-sanitizer over a small model",
    "soak": "many sequences; the same bits for a fixed prompt before and after",
}
DECODES = ("decode", "decode_temperature", "decode_top_p", "decode_float8", "decode_again")


def render(document: Document) -> str:
    """The page of a results document."""
    records = document["records"]
    sections = (
        _head(document), _checks(records), _decode(records), _prefill(records), _passes(records),
        *(_phases(x, document) for x in records if x["name"] == "phases" and "phases" in x),
        _variants(records), _kernels(records), _bandwidth(records), _clocks(records),
        _trouble(records), _parts(records),
    )  # fmt: skip
    return "\n".join(line for section in sections if section for line in (*section, ""))


def _head(document: Document) -> list[str]:
    device = document["device"]
    bandwidth = device["read_bandwidth_gb_s"]
    reads = "not measured" if bandwidth is None else f"{bandwidth:,.0f} GB/s"
    return [
        f"# The monokernel on {device['name']}, {document['date']}",
        "",
        (
            f"Commit `{document['commit'][:12]}`, driver {device['driver']}, {device['cores']} "
            f"SMs, read bandwidth {reads}. `{document['command']}`"
        ),
    ]


# ---- right or wrong ------------------------------------------------------------------------------
def _checks(records: Sequence[Record]) -> list[str]:
    rows = []
    for name, meaning in CHECKS.items():
        found = [x for x in records if x["name"] == name]
        failed = [x for x in found if "error" in x]
        left_out = [x for x in found if "not_measured" in x]
        if failed:
            verdict = f"**WRONG**: {failed[0]['error'][:200]}"
        elif len(left_out) == len(found):
            verdict = "not run" + (f": {left_out[0]['not_measured'][:120]}" if left_out else "")
        else:
            verdict = f"right ({_detail(found)})"
        rows.append([meaning, verdict])
    return ["## Right or wrong", "", *_table(("what", "verdict"), rows)]


def _detail(found: Sequence[Record]) -> str:
    good = [x for x in found if "error" not in x and "not_measured" not in x]
    parts = [f"{len(good)} of {len(found)}"] if len(found) > 1 else []
    for key, text in (
        ("relative_error", "error {:.2g} of the logits"),
        ("relative_error_of_torch_bfloat16", "torch's own {:.2g}"),
        ("largest_error", "largest error {:.2g}"),
    ):
        if values := [x[key] for x in good if key in x]:
            parts.append(text.format(max(values)))
    if drawn := sum(x.get("tokens_drawn", 0) for x in good):
        equal = [x["tokens_equal"] for x in good if "tokens_equal" in x]
        parts.append(f"{sum(equal)} of {drawn} tokens equal" if equal else f"{drawn:,} tokens")
    if tools := [f"{x['tool']}: {x['summary']}" for x in good if "tool" in x]:
        parts += tools
    return ", ".join(parts) or "done"


# ---- how fast ------------------------------------------------------------------------------------
def _decode(records: Sequence[Record]) -> list[str]:
    found = [x for x in records if x["name"] in DECODES]
    columns: dict[str, Cell] = {
        "engine": lambda x: str(x["engine"]),
        "drawn": lambda x: x["name"].removeprefix("decode").strip("_") or "greedy",
        "behind": lambda x: f"{x.get('context', 0):,}",
        "tokens/s": _with_bounds,
        "us/token": lambda x: _number(x.get("us_per_token")),
        "GB/s": lambda x: _number(x.get("gb_per_s"), ",.0f"),
        "MBU": lambda x: _number(x.get("mbu"), ".1%"),
        "to the best peer": lambda x: _number(x.get("ratio_to_best_peer"), ".2f"),
    }
    return _section("Decode, one sequence", columns, found)


def _prefill(records: Sequence[Record]) -> list[str]:
    columns: dict[str, Cell] = {
        "prompt": lambda x: f"{x['tokens']:,}",
        "first token, ms": lambda x: _number(x.get("ttft_ms")),
        "tokens/s": _with_bounds,
    }
    return _section("Prefill", columns, [x for x in records if x["name"] == "prefill"])


def _passes(records: Sequence[Record]) -> list[str]:
    columns: dict[str, Cell] = {
        "what": lambda x: "a pass of a prompt" if x["name"] == "pass" else "as many sequences",
        "rows": lambda x: str(x["width"]),
        "us/pass": lambda x: _number(
            x.get("median") if x["name"] == "pass" else x.get("us_per_pass")
        ),
        "tokens/s": lambda x: _number(
            1e6 * x["width"] / x["median"] if x["name"] == "pass" and "median" in x
            else x.get("tokens_per_s"), ",.0f"
        ),
    }  # fmt: skip
    found = [x for x in records if x["name"] in ("pass", "batch")]
    return _section("Widths", columns, found)


# ---- where the microseconds are ------------------------------------------------------------------
def _phases(record: Record, document: Document) -> list[str]:
    bandwidth = document["device"]["read_bandwidth_gb_s"]
    rows = [_phase_row(x, bandwidth) for x in record["phases"]]
    total: dict[str, float | None] = {}
    for key in ("waiting", "working", "between", "sum", "floor", "lost"):
        values = [row[key] for row in rows]
        total[key] = None if None in values else sum(float(value) for value in values)
    total |= {"phase": "all", "calls": sum(row["calls"] for row in rows)}  # type: ignore[dict-item]
    columns = ("phase", "calls", "waiting", "working", "between", "sum", "floor", "lost",
               "spread", "slowest")  # fmt: skip
    cells = [[_cell(row.get(name)) for name in columns] for row in (*rows, total)]
    behind = f" behind {record['context']:,}" if record.get("context") else ""
    lines = [
        f"## Where the microseconds are: {record['case']}, {record['rows']} rows{behind}",
        "",
        (
            f"Microseconds of a pass, medians over {record['passes']} passes; a pass takes "
            f"{record['us_per_pass']:,.1f} us (p90 {record['us_per_pass_p90']:,.1f}). The clock "
            f"ticks every {record['clock_step_ns']} ns."
        ),
    ]
    if "us_per_token" in record:
        lines.append(
            f"Without the trace a token takes {record['us_per_token']:,.1f} us, with it "
            f"{record['us_per_token_traced']:,.1f}."
        )
    layers = ", ".join(f"{x:.1f}" for x in record["layer_us"])
    return [*lines, "", *_table(columns, cells), "", f"Layers, us each: {layers}"]


def _phase_row(phase: Record, bandwidth: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"phase": phase["phase"], "calls": phase["calls"]}
    for name in ("waiting", "working", "between", "spread", "slowest"):
        row[name] = phase[f"{name}_us"]
    row["sum"] = row["waiting"] + row["working"] + row["between"]
    row["floor"] = phase["bytes"] / bandwidth / 1e3 if bandwidth else None
    row["lost"] = None if row["floor"] is None else row["sum"] - row["floor"]
    return row


def _variants(records: Sequence[Record]) -> list[str]:
    found = [x for x in records if x["name"] == "decode_variant"]
    usual = next(
        (x["us_per_token"] for x in found if x["variant"] == "product" and "median" in x), None
    )

    def change(x: Record) -> str:
        if usual is None or "us_per_token" not in x:
            return ""
        return f"{x['us_per_token'] - usual:+.1f}"

    columns: dict[str, Cell] = {
        "constants": lambda x: x["variant"],
        "us/token": lambda x: _number(x.get("us_per_token")),
        "to the product": change,
        "ring": lambda x: f"{x['ring_slots']} x {x['slot_bytes'] >> 10} KB" if "warps" in x else "",
        "warps": lambda x: str(x.get("warps", "")),
        "blocks": lambda x: str(x.get("blocks", "")),
        "chunk": lambda x: str(x.get("chunk", "")),
        "": lambda x: (x.get("error") or x.get("not_measured") or "")[:120],
    }
    return _section("Constants", columns, found)


def _kernels(records: Sequence[Record]) -> list[str]:
    found = [kernel for x in records if x["name"] == "kernels" for kernel in x.get("kernels", ())]
    columns: dict[str, Cell] = {
        "kernel": lambda x: x["kernel"],
        "width": lambda x: str(x["width"]),
        "registers": lambda x: str(x.get("registers", "")),
        "bytes spilled": lambda x: str(x.get("spill_bytes", "")),
        "ring": lambda x: f"{x['ring_slots']} x {x['slot_bytes'] >> 10} KB",
        "shared": lambda x: f"{x['shared_bytes']:,}",
    }
    return _section("Kernels", columns, found)


def _bandwidth(records: Sequence[Record]) -> list[str]:
    found = [x for x in records if x["name"] == "read_bandwidth" and "median" in x]
    columns: dict[str, Cell] = {
        "kernel": lambda x: x["kernel"],
        "blocks": lambda x: str(x["blocks"]),
        "ring": lambda x: f"{x['ring_bytes'] >> 10} KB of {x['copy_bytes'] / 1024:g}",
        "order": lambda x: x["order"],
        "GB/s": _with_bounds,
    }
    return _section("Reading memory", columns, found)


# ---- the run itself ------------------------------------------------------------------------------
def _clocks(records: Sequence[Record]) -> list[str]:
    clocks = next((x for x in records if x["name"] == "clocks" and "throttled" in x), None)
    if clocks is None:
        return []
    rows = []
    for name in ("sm_mhz", "memory_mhz", "power_w", "temperature_c"):
        during = clocks.get(name) or {}
        cells = (clocks["before"].get(name), during.get("min"), during.get("median"),
                 during.get("max"), clocks["after"].get(name))  # fmt: skip
        rows.append([name, *map(_cell, cells)])
    heads = ("", "before", "least", "median", "most", "after")
    throttled = f"Throttled: {clocks['throttled']} ({clocks['throttle_reasons_seen']})."
    return ["## Clocks", "", throttled, "", *_table(heads, rows)]


def _trouble(records: Sequence[Record]) -> list[str]:
    lines = [
        f"- {_name(x)}: {kind}: {' '.join(str(x[key]).split())[:300]}"
        for key, kind in (("error", "**failed**"), ("not_measured", "not measured"))
        for x in records
        if key in x
    ]
    return ["## Trouble", "", *lines] if lines else []


def _name(record: Record) -> str:
    labels = ("part", "golden", "dtype", "context", "width")
    return " ".join([record["name"], *(str(record[key]) for key in labels if key in record)])


def _parts(records: Sequence[Record]) -> list[str]:
    columns: dict[str, Cell] = {
        "part": lambda x: x["part"],
        "begun at, s": lambda x: _number(x["begun_at_s"]),
        "took, s": lambda x: _number(x["took_s"]),
    }
    return _section("Time of the parts", columns, [x for x in records if x["name"] == "part"])


# ---- tables --------------------------------------------------------------------------------------
def _section(title: str, columns: dict[str, Cell], found: Sequence[Record]) -> list[str]:
    if not found:
        return []
    rows = [[cell(record) for cell in columns.values()] for record in found]
    return [f"## {title}", "", *_table(list(columns), rows)]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(x.replace("|", "\\|") for x in line) + " |" for line in lines]


def _with_bounds(record: Record) -> str:
    if "median" not in record:
        return "failed" if "error" in record else "not measured"
    return f"**{record['median']:,.4g}** ({record['min']:,.4g} to {record['max']:,.4g})"


def _number(value: float | None, form: str = ",.1f") -> str:
    return "" if value is None else format(value, form)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else str(value)
