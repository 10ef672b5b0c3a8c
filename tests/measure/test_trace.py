"""A trace is whole: every phase of every worker and pass, in order, with the plan's bytes."""

from itertools import pairwise
from pathlib import Path

import pytest

from monolane.measure import LoadedModel, take_trace
from monolane.plan import Trace, phase_cost, summarise


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LoadedModel:
    return LoadedModel(tiny_model, "auto", context=96, slots=1, workers=3)


@pytest.fixture(scope="module")
def trace(model: LoadedModel) -> Trace:
    return take_trace(model, context=30, tokens=4)


def test_bytes_of_all_workers_are_those_of_the_plan(model: LoadedModel, trace: Trace) -> None:
    plan = model.plan
    assert len(trace.slices) == 4 * 3 * len(plan.phases)
    for phase in plan.phases:
        traced = sum(piece.bytes for piece in trace.slices if piece.phase is phase)
        planned = sum(phase_cost(plan, phase, 1, length).bytes for length in range(31, 35))
        assert traced == pytest.approx(planned, abs=12)  # keys of a unit are rounded down


def test_the_file_is_chromes_format(model: LoadedModel, trace: Trace) -> None:
    chrome = trace.chrome()
    events = chrome["traceEvents"]
    tracks = [event for event in events if event["ph"] == "M"]
    assert [track["args"]["name"] for track in tracks] == ["worker 0", "worker 1", "worker 2"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) + len(tracks) == len(events)
    names = {phase.name for phase in model.plan.phases}
    for event in slices:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        waits = event["cat"] == "wait"
        assert event["name"].removeprefix("wait for ") in names
        assert event["args"].keys() == (set() if waits else {"bytes", "GB/s"})
    for worker in range(3):  # a worker does one thing at a time, without gaps worth the name
        track = sorted((e["ts"], e["dur"]) for e in slices if e["tid"] == worker)
        for (begin, duration), (following, _) in pairwise(track):
            assert begin + duration <= following + 1e-3


def test_the_summary_adds_up(trace: Trace) -> None:
    rows = summarise(trace)
    kinds = ["EMBED", "QKV", "ATTEND", "OUT", "GATE_UP", "DOWN", "HEAD", "CHOOSE"]
    assert [row.kind for row in rows] == kinds
    busy = sum(piece.ended - piece.begun for piece in trace.slices) / (3 * 4 * 1e3)
    waiting = sum(piece.begun - piece.arrived for piece in trace.slices) / (3 * 4 * 1e3)
    assert sum(row.busy_us for row in rows) == pytest.approx(busy)
    assert sum(row.waiting_us for row in rows) == pytest.approx(waiting)
    assert sum(row.bytes for row in rows) == sum(p.bytes for p in trace.slices) / 4
    assert all(0 <= row.waiting_share <= 1 for row in rows)


def test_tracing_ends_with_the_epoch(model: LoadedModel, trace: Trace) -> None:
    model.executor.truncate(0, 0)
    model.epoch(0, [1], 2)
    assert len(model.executor.take_spans()) == 0
