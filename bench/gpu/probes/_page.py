"""The results of the probes as a page: the figures that decide something, a line each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.gpu._page import Cell, Lines, number, page, section
from monolane._results import Document, Record

Key = Callable[[Record], Any]


def render(document: Document) -> str:
    """The page of a results document."""
    records = document["records"]
    parts = (_bandwidth, _waits, _flags, _topology, _matvec, _rest)
    return page("Probes", document, *(part(records) for part in parts))


def _figures(records: Iterable[Record], *names: str) -> list[Record]:
    return [r for r in records if r["name"] in names and "median" in r]


def _best(records: Sequence[Record], key: Key) -> list[Record]:
    """The fastest for each value of `key`, in the order of the records."""
    best: dict[Any, Record] = {}
    for record in records:
        if key(record) not in best or record["gb_per_s"] > best[key(record)]["gb_per_s"]:
            best[key(record)] = record
    return list(best.values())


def _bandwidth(records: Sequence[Record]) -> Lines:
    found = _figures(records, "read_bandwidth", "copy_bandwidth")
    bulk = [r for r in found if r["name"] == "read_bandwidth" and r["mechanism"] == "bulk"]
    columns: dict[str, Cell] = {
        "what": lambda x: x["name"],
        "mechanism": lambda x: x["mechanism"],
        "order": lambda x: x.get("order", ""),
        "ring, KB": lambda x: f"{x.get('ring_bytes', 0) >> 10}",
        "copy, bytes": lambda x: f"{x.get('copy_bytes', 0)}",
        "blocks": lambda x: str(x.get("blocks", "")),
        "GB/s": lambda x: number(x["gb_per_s"], ",.0f"),
    }
    best = _best(found, lambda r: (r["name"], r["mechanism"], r.get("order")))
    by_ring = sorted(_best(bulk, lambda r: r["ring_bytes"]), key=lambda r: r["ring_bytes"])
    lines = section("The best of each mechanism", columns, best)
    return [*lines, "", *section("Bulk reads by ring", columns, by_ring)] if by_ring else lines


def _waits(records: Sequence[Record]) -> Lines:
    columns: dict[str, Cell] = {
        "method": lambda x: x["method"],
        "groups x members": lambda x: f"{x['groups']} x {x['members']}",
        "words a block": lambda x: str(x["words_per_block"]),
        "memory": lambda x: "stream" if x["stream"] else "idle",
        "placement": lambda x: x["placement"],
        "p50, ns": lambda x: number(x["median"], ",.0f"),
        "p99, ns": lambda x: number(x["p99"], ",.0f"),
    }
    return section("Waits", columns, _figures(records, "wait"))


def _flags(records: Sequence[Record]) -> Lines:
    found, pairs = _figures(records, "one_way_flag"), []
    for stream in (False, True):
        for same in (True, False):
            m = [r["median"] for r in found if r["stream"] == stream and r["same_gpc"] == same]
            if m:
                pairs.append({"same": same, "stream": stream, "min": min(m), "max": max(m)})
    columns: dict[str, Cell] = {
        "GPC": lambda x: "same" if x["same"] else "other",
        "memory": lambda x: "stream" if x["stream"] else "idle",
        "ns": lambda x: f"{x['min']:.0f} to {x['max']:.0f}",
    }
    return section("One-way flags", columns, pairs)


def _topology(records: Sequence[Record]) -> Lines:
    columns: dict[str, Cell] = {
        "clusters of": lambda x: str(x["cluster"]),
        "shared bytes": lambda x: f"{x['shared_bytes']:,}",
        "fit": lambda x: str(x["max_active_clusters"]),
    }
    lines = section("Clusters", columns, [r for r in records if "max_active_clusters" in r])
    sizes = [f"GPC sizes: {r['gpc_sizes']}" for r in records if "gpc_sizes" in r]
    return [*lines, "", *sizes] if sizes else lines


def _matvec(records: Sequence[Record]) -> Lines:
    worst: dict[tuple[Any, ...], Record] = {}
    for r in _figures(records, "matvec"):
        key = (r["weights"], r["arithmetic"], r["width"])
        if key not in worst or r["catch_up"] < worst[key]["catch_up"]:
            worst[key] = r
    columns: dict[str, Cell] = {
        "weights": lambda x: x["weights"],
        "arithmetic": lambda x: x["arithmetic"],
        "width": lambda x: str(x["width"]),
        "catch-up, worst shape": lambda x: number(x["catch_up"], ".2f"),
    }
    return section("Arithmetic beside the stream", columns, [r for _, r in sorted(worst.items())])


def _rest(records: Sequence[Record]) -> Lines:
    names = ("argmax", "gumbel", "host_round_trip", "launch_latency", "launch_back_to_back",
             "graph_node", "kernel_boundary", "mailbox")  # fmt: skip
    labels = ("vocabulary", "noise", "dependent_launch", "work_cycles", "pattern", "stream")
    columns: dict[str, Cell] = {
        "what": lambda x: x["name"],
        "": lambda x: ", ".join(f"{key} {x[key]}" for key in labels if key in x),
        "ns": lambda x: number(x["median"], ",.0f"),
    }
    return section("Tokens, launches, mailboxes", columns, _figures(records, *names))
