"""Where do the microseconds go? The kernel's own clock readings, phase by phase.

Every block notes three moments of every phase: it arrived, it had what it waited for (after which
it multiplies, or looks at keys), it ended. A block's moments follow each other without a hole, so
waiting, working and what lies between add up to the pass. Medians over blocks and layers of times
of a microsecond would hide a coarse clock; so times are summed over a pass and averaged over blocks
first, and the medians are over passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.gpu._stage import NotMeasuredError, Stage, expect
from bench.gpu.monokernel._model import Model, Times, kept_model
from bench.gpu.monokernel.speed import GREEDY, Decode
from monolane._results import Record
from monolane.executor_api import Advance
from monolane.plan import PhaseKind, Plan, phase_cost

# In the order in which the kernel counts them: five of each layer, then two.
KINDS = ("QKV", "ATTEND", "OUT", "GATE_UP", "DOWN")
LAST = ("HEAD", "CHOOSE")


@dataclass(frozen=True)
class Case:
    """What is traced."""

    name: str
    width: int
    rows: int  # of a pass
    context: int


def phases(stage: Stage, job: str) -> None:
    """Decoding behind every context, and passes as wide as there are."""
    scale = stage.scale
    wide = [width for width in scale.checked_widths if width > 1]
    model = kept_model(stage)
    for context in scale.contexts:
        case = Case("decode", 1, 1, context)
        stage.attempt("phases", _decode, model, case, context=context, dtype=model.dtype)
    if wide:
        case = Case("batch", wide[0], wide[0], scale.contexts[0])
        labels = {"context": case.context, "dtype": model.dtype}
        stage.attempt("phases", _batch, model, case, **labels)
        case = Case("prefill", wide[-1], wide[-1], 0)
        stage.attempt("phases", _prefill, model, case, dtype=model.dtype)


def _decode(model: Model, case: Case) -> Record:
    # One token to feed takes the kernel of one row. Passes that fill the context again are
    # overwritten: the kernel keeps its last 64, and an epoch is longer.
    epoch = Decode(model, 0, case.context, model.scale.tokens, GREEDY)
    epoch.warm_up()
    epoch.run()
    with model.tracing() as traced:
        epoch.run()
        times = traced()
    plain, noted = (1e6 / rate for rate in epoch.samples)
    length = case.context + epoch.tokens
    record = summarise(model, times, case, lambda plan: _bytes(plan, 1, length))
    return record | {"us_per_token": plain, "us_per_token_traced": noted}


def _batch(model: Model, case: Case) -> Record:
    with model.forced(case.width):
        for slot in range(case.rows):
            model.empty(slot)
            model.feed(slot, model.random_tokens(case.context))
        budget = min(model.scale.tokens, 64)
        with model.tracing() as traced:
            model.run(
                *(Advance(slot=slot, token_ids=(3,), budget=budget) for slot in range(case.rows))
            )
            times = traced()
    length = case.context + budget
    return summarise(model, times, case, lambda plan: _bytes(plan, case.rows, length))


def _prefill(model: Model, case: Case) -> Record:
    prompt = model.random_tokens(min(16 * case.width, max(model.scale.prompts)))
    with model.forced(case.width):
        model.empty(0)
        with model.tracing() as traced:
            model.feed(0, prompt)
            times = traced()
    return summarise(model, times, case, lambda plan: _bytes(plan, case.rows, len(prompt)))


def _bytes(plan: Plan, rows: int, length: int) -> dict[str, int]:
    """Bytes that each kind of phase must stream in a pass."""
    found: dict[str, int] = {}
    for phase in plan.phases:
        cost = phase_cost(plan, phase, rows, max(length, rows))
        found[phase.kind.name] = found.get(phase.kind.name, 0) + cost.bytes
    return found


def summarise(
    model: Model, times: Times, case: Case, count_bytes: Callable[[Plan], dict[str, int]]
) -> Record:
    """The table of a trace: by kind of phase what is waited and worked in a pass."""
    plan = next(
        x for x in model.executor._resident.kernels._layouts.values() if x.width == case.width
    ).plan
    if len(times) < 2:
        raise NotMeasuredError(f"expected at least 2 whole passes in the trace, got {len(times)}")
    layers, blocks = plan.config.num_layers, plan.groups.workers_each
    table = tabulate(times, layers, blocks)
    moved = count_bytes(plan)
    for row in table:
        row["bytes"] = moved.get(str(row["phase"]), 0)
    passes = np.diff(times[:, 0, 0, 0].astype(np.int64)) / 1e3
    expect(bool((passes > 0).all()), "trace: expected passes one after the other")
    return {
        "case": case.name,
        "width": case.width,
        "rows": case.rows,
        "passes": len(times),
        "clock_step_ns": clock_step(times),
        "us_per_pass": float(np.median(passes)),
        "us_per_pass_p90": float(np.percentile(passes, 90)),
        "layer_us": _layers(times, layers),
        "phases": table,
    }


def clock_step(times: Times) -> int:
    """Nanoseconds of a tick of the clock that the kernel reads: the smallest difference."""
    values = np.unique(times)
    return int(np.diff(values).min()) if values.size > 1 else 0


def tabulate(times: Times, layers: int, blocks: int) -> list[Record]:
    """Microseconds of a pass by kind of phase, in the kernel's order.

    waiting     from arriving until what is awaited is there, activations prepared; mean of blocks
    working     from then to the end
    between     to the next phase's arrival; behind CHOOSE the next pass's layout and embedding
    spread      last block of a lane to end less the first, summed over a pass
    slowest     working of the lane's slowest block above the mean, summed
    """
    t = times.astype(np.int64)
    arrived, ended = t[..., 0], t[..., 2]
    # A block without a share of a phase never begins it: all its time there is waiting.
    begun = np.where((t[..., 1] >= arrived) & (t[..., 1] <= ended), t[..., 1], ended)
    waiting, working = begun - arrived, ended - begun
    between = np.zeros_like(waiting)
    between[:, :-1] = arrived[:, 1:] - ended[:, :-1]
    between[:-1, -1] = arrived[1:, 0] - ended[:-1, -1]
    between[-1, -1] = np.median(between[:-1, -1], axis=0)
    lanes = ended.shape[-1] // blocks
    by_lane = (*ended.shape[:2], lanes, blocks)
    spread = np.ptp(ended.reshape(by_lane), axis=-1).mean(axis=-1)  # [passes, phases]
    lane_work = working.reshape(by_lane)
    slowest = (lane_work.max(axis=-1) - lane_work.mean(axis=-1)).mean(axis=-1)
    rows = []
    for kind, index in _indices(layers):
        row: Record = {"phase": kind, "calls": len(index)}
        for name, of in (("waiting", waiting), ("working", working), ("between", between)):
            row[f"{name}_us"] = float(np.median(of[:, index].sum(axis=1).mean(axis=-1))) / 1e3
        row["spread_us"] = float(np.median(spread[:, index].sum(axis=1))) / 1e3
        row["slowest_us"] = float(np.median(slowest[:, index].sum(axis=1))) / 1e3
        rows.append(row)
    return rows


def _indices(layers: int) -> list[tuple[str, list[int]]]:
    found = [(kind, [5 * i + k for i in range(layers)]) for k, kind in enumerate(KINDS)]
    return found + [(kind, [5 * layers + k]) for k, kind in enumerate(LAST)]


def _layers(times: Times, layers: int) -> list[float]:
    """Microseconds of each layer, from its first arrival to the next one's; mean of blocks."""
    starts = times[:, 0 : 5 * layers + 1 : 5, :, 0].astype(np.int64)
    return [float(x) / 1e3 for x in np.median(np.diff(starts, axis=1).mean(axis=-1), axis=0)]


assert {*KINDS, *LAST} <= {kind.name for kind in PhaseKind}
