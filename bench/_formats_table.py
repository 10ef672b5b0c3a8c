"""The table of formats: accuracy and speed of each, monolane's beside llama.cpp's."""

from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
COLUMNS = (
    "format",
    "MB",
    "KL × 1000, by instruction set",
    "llama.cpp's",
    "ours / theirs",
    "same top token",
    "llama.cpp's",
    "decode, tokens/s",
    "times llama.cpp",
    "prompt of 512, tokens/s",
    "times llama.cpp",
)


def format_table(records: Sequence[Record]) -> list[str]:
    """Return the lines of the table, a row for each format; a speed not measured stays empty."""
    kinds = dict.fromkeys(record["dtype"] for record in records if record["name"] == "accuracy")
    head = "| " + " | ".join(COLUMNS) + " |", "|---" + "|---:" * (len(COLUMNS) - 1) + "|"
    return [*head, *(_row(kind, [r for r in records if r.get("dtype") == kind]) for kind in kinds)]


def _row(kind: str, records: Sequence[Record]) -> str:
    accuracy = [record for record in records if record["name"] == "accuracy"]
    ours = [record for record in accuracy if record["engine"] == "monolane"]
    (theirs,) = (record for record in accuracy if record["engine"] == "llama.cpp")
    cells = [
        kind,
        f"{theirs['file_bytes'] / 1e6:.0f}",
        "; ".join(f"{_milli(record)} {record['isa']}" for record in ours),
        _milli(theirs),
        "; ".join(f"{record['kl_nats'] / theirs['kl_nats']:.2f}" for record in ours),
        "; ".join(f"{record['top1_agreement']:.1%}" for record in ours),
        f"{theirs['top1_agreement']:.1%}",
        *_speed("decode", records),
        *_speed("prefill", records),
    ]
    return "| " + " | ".join(cells) + " |"


def _milli(record: Record) -> str:
    return f"{1000 * record['kl_nats']:.3g}"


def _speed(name: str, records: Sequence[Record]) -> tuple[str, str]:
    for record in records:
        if record["name"] == name and record["engine"] == "monolane":
            low, high = (record[f"ratio_to_llama_cpp_{end}"] for end in ("min", "max"))
            ratio = f"{record['ratio_to_llama_cpp']:.2f} ({low:.2f} to {high:.2f})"
            return f"{record['median']:.1f}", ratio
    return "", ""
