"""Probe "launch": what a kernel boundary costs: plain launches, graph nodes, dependent launches.

The boundary is the time per node less the work inside the node, so both an empty node and one with
a fixed number of cycles of work are replayed.
"""

from __future__ import annotations

import time

import numpy as np

from bench.gpu._stage import distribution, expect, summary
from bench.gpu.probes._context import Context
from bench.gpu.probes._kernels import LAUNCH, Buffer
from monolane._results import Record
from monolane.cuda._device import Launch
from monolane.errors import BackendError


def check_counts(ctx: Context, counts: Buffer, expected: int) -> None:
    """Every block of every node added one, and no two nodes overlapped."""
    got = ctx.device.download(counts, np.uint32, ctx.device.info.sms)
    expect(
        bool((got == expected).all()),
        f"steps per block: expected {expected}, got {int(got.min())} to {int(got.max())}",
    )


def call_to_flag(ctx: Context) -> Record:
    """ns from the launch call to the kernel's first word in pinned memory, as the host sees it."""
    device = ctx.device
    box = device.pinned(32)
    spans, calls = [], []
    for i in range(1, min(ctx.scale.launches, 500) + 1):
        launch = ctx.prepare(
            "launch.cu", "raise_flag", Launch(1, 32), LAUNCH, counts=box.address, work_cycles=0,
            flag_value=i,
        )  # fmt: skip
        begin = time.perf_counter_ns()
        launch()
        called = time.perf_counter_ns()
        while box.words[0] != i:
            if time.perf_counter_ns() - begin > 5e9:
                raise BackendError(f"launch {i} raised no flag within 5 s")
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
    n, sms = ctx.scale.launches, ctx.device.info.sms
    with ctx.buffers(counts=4 * sms) as b:
        launch = ctx.prepare(
            "launch.cu", "chain_step", Launch(sms, 128), LAUNCH, counts=b["counts"], work_cycles=0,
            flag_value=0,
        )  # fmt: skip

        def chain() -> None:
            for _ in range(n):
                launch()

        times = ctx.time_ms(chain, ctx.budget.repeats(5))
        check_counts(ctx, b["counts"], n * (len(times) + 1))
    return summary([ms * 1e6 / n for ms in times]) | {
        "unit": "ns",
        "note": "bounded by the host's calls if they are slower",
    }


def graph_nodes(ctx: Context, dependent: bool, work_cycles: int) -> Record:
    """ns per node of a replayed graph."""
    device, n, sms = ctx.device, ctx.scale.graph_nodes, ctx.device.info.sms
    kernel = "chain_step_dependent" if dependent else "chain_step"
    shape, stream = Launch(sms, 128, overlap=dependent), device.stream()
    with ctx.buffers(counts=4 * sms) as b:
        launch = ctx.prepare(
            "launch.cu", kernel, shape, LAUNCH, stream, counts=b["counts"],
            work_cycles=work_cycles, flag_value=0,
        )  # fmt: skip
        device.synchronize()

        def chain() -> None:
            for _ in range(n):
                launch()

        graph = device.capture(stream, chain)
        repeats = ctx.budget.repeats(10, 3)
        times = ctx.time_ms(lambda: device.replay(graph, stream), repeats, stream=stream)
        check_counts(ctx, b["counts"], n * (repeats + 1))
    return summary([ms * 1e6 / n for ms in times]) | {"unit": "ns", "nodes": n}


def launches(ctx: Context, job: str) -> None:
    """Plain, graph, dependent; then the exposed boundary from nodes with and without work."""
    ctx.attempt("launch_latency", call_to_flag, ctx)
    ctx.attempt("launch_back_to_back", back_to_back, ctx)
    for dependent in (False, True):
        _boundary(ctx, dependent)


def _boundary(ctx: Context, dependent: bool) -> None:
    work = ctx.scale.node_work_cycles
    nodes = {}
    for cycles in (0, work, 2 * work):
        labels = {"dependent_launch": dependent, "work_cycles": cycles}
        nodes[cycles] = ctx.attempt("graph_node", graph_nodes, ctx, dependent, cycles, **labels)
    once, twice = nodes[work], nodes[2 * work]
    if once is None or twice is None:
        ctx.skip("kernel_boundary", "a graph was not measured", dependent_launch=dependent)
        return
    # t(w) = boundary + w and t(2 w) = boundary + 2 w, whatever the clock makes of w.
    figures: Record = {"median": 2 * once["median"] - twice["median"], "unit": "ns"}
    ctx.attempt("kernel_boundary", lambda: figures, dependent_launch=dependent)
