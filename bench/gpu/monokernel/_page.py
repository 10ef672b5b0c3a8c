"""The results of the monokernel's suite as a page: what is right, how fast, and where the remaining
microseconds are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.gpu._page import Cell, Lines, cell, number, page, ring, section, table, with_bounds
from monolane._results import Document, Record

# Names of the records that say whether something is right, and what each means.
CHECKS = {
    "kernels": "every kernel compiles",
    "golden": "golden models: logits, bits of all widths, greedy tokens",
    "full_model": "full shape: the same bits at every width, run twice, alone and in company",
    "reference_torch": "full shape: no further from float32 than torch in bfloat16; greedy tokens",
    "launch": "a trivial kernel, and a block on every SM at once",
    "first_tokens": "full shape: a few tokens beside NumPy in float32",
    "first_bits": "full shape: the bits of width 1 at the other widths",
    "words": "words of a tiny pass: those of the emulator",
    "sanitizer": "compute-sanitizer over a small model",
    "soak": "many sequences; the same bits for a fixed prompt before and after",
}
DECODES = ("decode", "decode_temperature", "decode_top_p", "decode_float8", "decode_again")


def render(document: Document) -> str:
    """The page of a results document."""
    records = document["records"]
    return page(
        "The monokernel", document, _verdict(records), _checks(records), _decode(records),
        _prefill(records), _passes(records),
        *(_phases(x, document) for x in records if x["name"] == "phases" and "phases" in x),
        _variants(records), _switches(records), _bandwidth(records),
    )  # fmt: skip


# ---- right or wrong ------------------------------------------------------------------------------
def _verdict(records: Sequence[Record]) -> Lines:
    found = next((x for x in records if x["name"] == "verdict"), None)
    return ["## Verdict", "", found["verdict"], ""] if found else []


def _checks(records: Sequence[Record]) -> Lines:
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
    return ["## Right or wrong", "", *table(("what", "verdict"), rows)]


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
def _decode(records: Sequence[Record]) -> Lines:
    found = [x for x in records if x["name"] in DECODES]
    columns: dict[str, Cell] = {
        "engine": lambda x: str(x["engine"]),
        "drawn": lambda x: x["name"].removeprefix("decode").strip("_") or "greedy",
        "behind": lambda x: f"{x.get('context', 0):,}",
        "tokens/s": with_bounds,
        "us/token": lambda x: number(x.get("us_per_token")),
        "GB/s": lambda x: number(x.get("gb_per_s"), ",.0f"),
        "MBU": lambda x: number(x.get("mbu"), ".1%"),
        "to the best peer": lambda x: number(x.get("ratio_to_best_peer"), ".2f"),
    }
    return section("Decode, one sequence", columns, found)


def _prefill(records: Sequence[Record]) -> Lines:
    columns: dict[str, Cell] = {
        "prompt": lambda x: f"{x['tokens']:,}",
        "first token, ms": lambda x: number(x.get("ttft_ms")),
        "tokens/s": with_bounds,
    }
    return section("Prefill", columns, [x for x in records if x["name"] == "prefill"])


def _passes(records: Sequence[Record]) -> Lines:
    columns: dict[str, Cell] = {
        "what": lambda x: "a pass of a prompt" if x["name"] == "pass" else "as many sequences",
        "rows": lambda x: str(x["width"]),
        "us/pass": lambda x: number(
            x.get("median") if x["name"] == "pass" else x.get("us_per_pass")
        ),
        "tokens/s": lambda x: number(
            1e6 * x["width"] / x["median"] if x["name"] == "pass" and "median" in x
            else x.get("tokens_per_s"), ",.0f"
        ),
    }  # fmt: skip
    found = [x for x in records if x["name"] in ("pass", "batch")]
    return section("Widths", columns, found)


# ---- where the microseconds are ------------------------------------------------------------------
def _phases(record: Record, document: Document) -> Lines:
    bandwidth = document["device"]["read_bandwidth_gb_s"]
    rows = [_phase_row(x, bandwidth) for x in record["phases"]]
    total: dict[str, float | None] = {}
    for key in ("waiting", "working", "between", "sum", "floor", "lost"):
        values = [row[key] for row in rows]
        total[key] = None if None in values else sum(float(value) for value in values)
    total |= {"phase": "all", "calls": sum(row["calls"] for row in rows)}  # type: ignore[dict-item]
    columns = ("phase", "calls", "waiting", "working", "between", "sum", "floor", "lost",
               "spread", "slowest")  # fmt: skip
    cells = [[cell(row.get(name)) for name in columns] for row in (*rows, total)]
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
    return [*lines, "", *table(columns, cells), "", f"Layers, us each: {layers}"]


def _phase_row(phase: Record, bandwidth: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"phase": phase["phase"], "calls": phase["calls"]}
    for name in ("waiting", "working", "between", "spread", "slowest"):
        row[name] = phase[f"{name}_us"]
    row["sum"] = row["waiting"] + row["working"] + row["between"]
    row["floor"] = phase["bytes"] / bandwidth / 1e3 if bandwidth else None
    row["lost"] = None if row["floor"] is None else row["sum"] - row["floor"]
    return row


def _variants(records: Sequence[Record]) -> Lines:
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
        "us/token": lambda x: number(x.get("us_per_token")),
        "to the product": change,
        "ring": lambda x: ring(x) if "warps" in x else "",
        "warps": lambda x: str(x.get("warps", "")),
        "blocks": lambda x: str(x.get("blocks", "")),
        "chunk": lambda x: str(x.get("chunk", "")),
        "": lambda x: (x.get("error") or x.get("not_measured") or "")[:120],
    }
    return section("Constants", columns, found)


def _switches(records: Sequence[Record]) -> Lines:
    def bounds(x: Record, key: str) -> str:
        return f"{x[f'{key}_least']:+.1f} to {x[f'{key}_most']:+.1f}" if f"{key}_least" in x else ""

    columns: dict[str, Cell] = {
        "switch": lambda x: x["switch"],
        "weights": lambda x: x["dtype"],
        "us/token": lambda x: number(x.get("us_per_token")),
        "saves, us": lambda x: number(x.get("saved_us"), "+.1f"),
        "in the rounds": lambda x: bounds(x, "saved_us"),
        "predicted": lambda x: bounds(x, "predicted_us"),
        "verdict": lambda x: str(x.get("verdict", "")),
    }
    return section("Switches", columns, [x for x in records if x["name"] == "switch"])


def _bandwidth(records: Sequence[Record]) -> Lines:
    found = [x for x in records if x["name"] == "read_bandwidth" and "median" in x]
    columns: dict[str, Cell] = {
        "kernel": lambda x: x["kernel"],
        "blocks": lambda x: str(x["blocks"]),
        "ring": lambda x: f"{x['ring_bytes'] >> 10} KB of {x['copy_bytes'] / 1024:g}",
        "order": lambda x: x["order"],
        "GB/s": with_bounds,
    }
    return section("Reading memory", columns, found)
