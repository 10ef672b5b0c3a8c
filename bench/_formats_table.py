"""The table of formats: accuracy and speed of each, monolane's beside llama.cpp's."""

from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
SPEEDS = ("decode, tokens/s", "times llama.cpp", "prompt of 512, tokens/s", "times llama.cpp")


def format_table(records: Sequence[Record]) -> list[str]:
    """Return the lines of the table, a row for each format; a speed not measured stays empty."""
    accuracy = [record for record in records if record["name"] == "accuracy"]
    ways = list(dict.fromkeys(record["isa"] or record["engine"] for record in accuracy))
    kinds = dict.fromkeys(record["dtype"] for record in accuracy)
    kl, top = ([f"{what}, {way}" for way in ways] for what in ("KL × 1000", "same top token"))
    head = ("format", "MB", *kl, "KL / llama.cpp's", *top, *SPEEDS)
    rows = (_row([r for r in records if r.get("dtype") == kind]) for kind in kinds)
    return [_line(head), "|---" + "|---:" * (len(head) - 1) + "|", *map(_line, rows)]


def _row(records: Sequence[Record]) -> list[str]:
    """Return the cells of one format's row."""
    accuracy = [record for record in records if record["name"] == "accuracy"]
    ours = [record["kl_nats"] for record in accuracy if record["engine"] == "monolane"]
    (theirs,) = (record for record in accuracy if record["engine"] == "llama.cpp")
    return [
        theirs["dtype"],
        f"{theirs['file_bytes'] / 1e6:.0f}",
        *(_thousandths(record["kl_nats"]) for record in accuracy),
        f"{max(ours) / theirs['kl_nats']:.2f}",  # of the worse instruction set
        *(f"{record['top1_agreement']:.1%}" for record in accuracy),
        *_speed("decode", records),
        *_speed("prefill", records),
    ]


def _thousandths(number: float) -> str:
    return f"{1000 * number:.2f}" if number >= 1e-4 else f"{1000 * number:.2g}"


def _speed(name: str, records: Sequence[Record]) -> tuple[str, str]:
    for record in records:
        if record["name"] == name and record["engine"] == "monolane":
            low, high = (record[f"ratio_to_llama_cpp_{end}"] for end in ("min", "max"))
            ratio = f"{record['ratio_to_llama_cpp']:.2f} ({low:.2f} to {high:.2f})"
            return f"{record['median']:.1f}", ratio
    return "", ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
