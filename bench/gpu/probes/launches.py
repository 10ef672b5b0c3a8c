"""Probe "launch": what a kernel boundary costs: plain launches, graph nodes, dependent launches.

The boundary is the time per node less the work inside the node, so both an empty node and one with
a fixed number of cycles of work are replayed.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench._results import Record
from bench.gpu.probes import _structs
from bench.gpu.probes._context import Context, Probe, expect
from bench.gpu.probes._device import Buffer, Launch
from bench.gpu.probes._errors import DeviceHangError
from bench.gpu.probes._stats import distribution, summary


def launch_params(counts: int, work_cycles: int = 0, flag_value: int = 0) -> bytes:
    """LaunchParams."""
    return _structs.LAUNCH.pack(
        counts=counts, work_cycles=work_cycles, flag_value=flag_value, unused=0
    )


def check_counts(ctx: Context, counts: Buffer, expected: int) -> None:
    """Every block of every node added one, and no two nodes overlapped."""
    got = ctx.device.download(counts, np.uint32, ctx.device.info.sm_count)
    expect(
        bool((got == expected).all()),
        f"steps per block: expected {expected}, got {int(got.min())} to {int(got.max())}",
    )


def call_to_flag(ctx: Context) -> Record:
    """ns from the launch call to the kernel's first word in pinned memory, as the host sees it."""
    device = ctx.device
    box = device.pinned(32)
    kernel = device.kernel("launch.cu", "raise_flag")
    spans, calls = [], []
    for i in range(1, min(ctx.scale.launches, 500) + 1):
        params = launch_params(box.address, flag_value=i)
        begin = time.perf_counter_ns()
        device.launch(kernel, Launch(1, 32), params)
        called = time.perf_counter_ns()
        while box.words[0] != i:
            if time.perf_counter_ns() - begin > 5e9:
                raise DeviceHangError(f"launch {i} raised no flag within 5 s")
        spans.append(time.perf_counter_ns() - begin)
        calls.append(called - begin)
        device.synchronize()
    settled = np.array(spans[len(spans) // 10 :], dtype=np.float64)
    return distribution(settled) | {
        "unit": "ns",
        "call_ns": summary(calls),
        "note": "host clock; contains the Python call (call_ns) and the trip of the flag",
    }


def back_to_back(ctx: Context) -> Record:
    """ns per kernel of a chain of plain launches, whose calls overlap the kernels."""
    device, n = ctx.device, ctx.scale.launches
    counts = device.zeros(device.info.sm_count * 4)
    kernel = device.kernel("launch.cu", "chain_step")
    shape, params = Launch(device.info.sm_count, 128), launch_params(counts.address)

    def chain() -> None:
        for _ in range(n):
            device.launch(kernel, shape, params)

    times = ctx.time_ms(chain, ctx.budget.repeats(5))
    check_counts(ctx, counts, n * (len(times) + 1))
    device.free(counts)
    figures: dict[str, Any] = summary([ms * 1e6 / n for ms in times])
    return figures | {
        "unit": "ns",
        "note": "bounded by the host's calls (ctypes) if they are slower",
    }


def graph_nodes(ctx: Context, dependent: bool, work_cycles: int) -> Record:
    """ns per node of a replayed graph."""
    device, n = ctx.device, ctx.scale.graph_nodes
    counts = device.zeros(device.info.sm_count * 4)
    kernel = device.kernel("launch.cu", "chain_step_dependent" if dependent else "chain_step")
    shape = Launch(device.info.sm_count, 128, overlap=dependent)
    params = launch_params(counts.address, work_cycles)
    stream = device.stream()
    device.synchronize()

    def chain() -> None:
        for _ in range(n):
            device.launch(kernel, shape, params, stream)

    graph = device.capture(stream, chain)
    start, end, times = device.event(), device.event(), []
    repeats = ctx.budget.repeats(10, 3)
    for i in range(repeats + 1):
        device.record(start, stream)
        device.replay(graph, stream)
        device.record(end, stream)
        device.synchronize()
        if i:
            times.append(device.elapsed_ms(start, end) * 1e6 / n)
    check_counts(ctx, counts, n * (repeats + 1))
    device.free(counts)
    figures: dict[str, Any] = summary(times)
    return figures | {"unit": "ns", "nodes": n}


class Launches(Probe):
    """All boundaries."""

    name = "launch"
    weight = 0.5

    def run(self, ctx: Context) -> None:
        """Plain, graph, dependent; then the exposed boundary from nodes with and without work."""
        ctx.attempt("launch_latency", call_to_flag, ctx)
        ctx.attempt("launch_back_to_back", back_to_back, ctx)
        for dependent in (False, True):
            self._boundary(ctx, dependent)

    def _boundary(self, ctx: Context, dependent: bool) -> None:
        work = ctx.scale.node_work_cycles
        nodes = {}
        for cycles in (0, work, 2 * work):
            nodes[cycles] = ctx.attempt(
                "graph_node",
                graph_nodes,
                ctx,
                dependent,
                cycles,
                dependent_launch=dependent,
                work_cycles=cycles,
            )
        once, twice = nodes[work], nodes[2 * work]
        if once is None or twice is None:
            ctx.skip("kernel_boundary", "a graph was not measured", dependent_launch=dependent)
            return
        # t(w) = boundary + w and t(2 w) = boundary + 2 w, whatever the clock makes of w.
        figures: Record = {"median": 2 * once["median"] - twice["median"], "unit": "ns"}
        ctx.attempt("kernel_boundary", lambda: figures, dependent_launch=dependent)
