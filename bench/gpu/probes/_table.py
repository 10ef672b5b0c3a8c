"""The short table at the end of a run: the figures that decide something, one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench._results import Record

Key = Callable[[Record], Any]


def _figures(records: Iterable[Record], name: str) -> list[Record]:
    return [r for r in records if r["name"] == name and "median" in r]


def _best(records: Sequence[Record], key: Key, figure: str) -> list[Record]:
    """The highest `figure` for each value of `key`, in the order of the keys."""
    best: dict[Any, Record] = {}
    for record in records:
        if key(record) not in best or record[figure] > best[key(record)][figure]:
            best[key(record)] = record
    return list(best.values())


def _bandwidth(records: Sequence[Record]) -> list[str]:
    out = []
    for name in ("read_bandwidth", "copy_bandwidth"):
        found = _figures(records, name)
        for r in _best(found, lambda r: (r["mechanism"], r.get("order")), "gb_per_s"):
            where = f"ring {r.get('ring_bytes', 0) // 1024} KB, copy {r.get('copy_bytes', 0)} B"
            out.append(
                f"{name:16} {r['mechanism']:7} {r.get('order', ''):12} {r['gb_per_s']:8.0f} GB/s  "
                f"({r.get('blocks', '')} blocks, {where})"
            )
    bulk = [r for r in _figures(records, "read_bandwidth") if r["mechanism"] == "bulk"]
    by_ring = sorted(
        _best(bulk, lambda r: r["ring_bytes"], "gb_per_s"), key=lambda r: r["ring_bytes"]
    )
    if by_ring:
        steps = ", ".join(f"{r['ring_bytes'] // 1024}: {r['gb_per_s']:.0f}" for r in by_ring)
        out.append(f"bulk read by ring KB: {steps}")
    return out


def _waits(records: Sequence[Record]) -> list[str]:
    return [
        f"wait {r['method']:23} {r['groups']}x{r['members']:<3} {r['words_per_block']:>3} words "
        f"{'stream' if r['stream'] else 'idle':6} {r['placement']:11} "
        f"p50 {r['median']:7.0f}  p99 {r['p99']:7.0f} ns"
        for r in _figures(records, "wait")
    ]


def _flags(records: Sequence[Record]) -> list[str]:
    out = []
    found = _figures(records, "one_way_flag")
    for stream in (False, True):
        for same in (True, False):
            m = [r["median"] for r in found if r["stream"] == stream and r["same_gpc"] == same]
            if m:
                out.append(
                    f"one-way flag, {'same' if same else 'other'} GPC, "
                    f"{'stream' if stream else 'idle'}: {min(m):.0f} to {max(m):.0f} ns"
                )
    return out


def _matvec(records: Sequence[Record]) -> list[str]:
    worst: dict[tuple[Any, ...], float] = {}
    for r in _figures(records, "matvec"):
        key = (r["weights"], r["arithmetic"], r["width"])
        worst[key] = min(worst.get(key, float("inf")), r["catch_up"])
    return [
        f"catch-up {weights:4} {how:12} width {width:<2} worst shape {ratio:6.2f}"
        for (weights, how, width), ratio in sorted(worst.items())
    ]


def _rest(records: Sequence[Record]) -> list[str]:
    names = ("argmax", "gumbel", "host_round_trip", "launch_latency", "launch_back_to_back",
             "graph_node", "kernel_boundary", "mailbox")  # fmt: skip
    labels = ("vocabulary", "noise", "dependent_launch", "work_cycles", "pattern", "stream")
    return [
        f"{name}: {', '.join(f'{k} {r[k]}' for k in labels if k in r)} median {r['median']:.0f} ns"
        for name in names
        for r in _figures(records, name)
    ]


def _topology(records: Sequence[Record]) -> list[str]:
    out = [
        f"clusters of {r['cluster']}: {r['max_active_clusters']} with {r['shared_bytes']} B shared"
        for r in records
        if "max_active_clusters" in r
    ]
    return out + [f"GPC sizes: {r['gpc_sizes']}" for r in records if "gpc_sizes" in r]


def _troubles(records: Sequence[Record]) -> list[str]:
    errors = [r for r in records if "error" in r]
    left_out = [r for r in records if "not_measured" in r]
    clocks = [r for r in records if r["name"] == "clocks" and "throttled" in r]
    out = [f"FAILED {r['name']}: {r['error'][:200]}" for r in errors[:20]]
    out += [f"... and {len(errors) - 20} more failures"] if len(errors) > 20 else []
    out += [f"{len(left_out)} variants not measured (see the JSON)"] if left_out else []
    return out + [
        f"clocks: throttled {r['throttled']} ({r['throttle_reasons_seen']}), "
        f"SM {r.get('sm_mhz', {}).get('median')} MHz"
        for r in clocks
    ]


def table(records: Sequence[Record]) -> str:
    """All lines."""
    parts = (_bandwidth, _waits, _flags, _topology, _matvec, _rest, _troubles)
    return "\n".join(line for part in parts for line in part(records))
