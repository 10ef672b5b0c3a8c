"""The results of N GPUs as a page: right or wrong, how fast, what joins them."""

from __future__ import annotations

from collections.abc import Sequence

from bench.gpu._page import Cell, Lines, number, page, section, with_bounds
from monolane._results import Document, Record


def render(document: Document) -> str:
    """The page of a results document."""
    records = document["records"]
    return page(
        "The monokernel on several GPUs", document, _bits(records), _decode(records),
        _links(records), _topology(records),
    )  # fmt: skip


def _verdict(record: Record) -> str:
    if "error" in record:
        return f"**WRONG**: {record['error'][:200]}"
    return record.get("not_measured") or f"right, {record['tokens_drawn']} tokens"


def _bits(records: Sequence[Record]) -> Lines:
    columns: dict[str, Cell] = {
        "model": lambda x: x["model"],
        "GPUs": lambda x: str(x["devices"]),
        "the bits of one": _verdict,
    }
    return section("Right or wrong", columns, [x for x in records if x["name"] == "bits"])


def _decode(records: Sequence[Record]) -> Lines:
    found = [x for x in records if x["name"] == "decode"]

    def gain(x: Record) -> str:
        same = ("model", "context")
        one = [
            y["median"] for y in found
            if y["devices"] == 1 and "median" in y and all(y[key] == x[key] for key in same)
        ]  # fmt: skip
        return number(x["median"] / one[0], ".2f") if one and "median" in x else ""

    columns: dict[str, Cell] = {
        "model": lambda x: x["model"],
        "behind": lambda x: f"{x['context']:,}",
        "GPUs": lambda x: str(x["devices"]),
        "tokens/s": with_bounds,
        "us/token": lambda x: number(x.get("us_per_token")),
        "to one GPU": gain,
    }
    found.sort(key=lambda x: (x["model"], x["context"], x["devices"]))
    return section("Decode, one sequence", columns, found)


def _links(records: Sequence[Record]) -> Lines:
    columns: dict[str, Cell] = {"GPUs": lambda x: x["pair"], "one way, us": with_bounds}
    return section("Links", columns, [x for x in records if x["name"] == "link" and "pair" in x])


def _topology(records: Sequence[Record]) -> Lines:
    found = next((x for x in records if x["name"] == "topology" and "gpus" in x), None)
    if found is None:
        return []
    lines = [f"- GPU {i}: {name}" for i, name in enumerate(found["gpus"])]
    lines += [f"- cannot reach: {pair}" for pair in found["unreachable"]]
    matrix = ["", "```", *found["matrix"], "```"] if found["matrix"] else []
    return ["## Topology", "", *lines, *matrix]
