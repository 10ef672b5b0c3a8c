"""One epoch, phase by phase and worker by worker, from the executor's own clock."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from monolane.measure._cases import LoadedModel
from monolane.plan import Plan, Slice, Trace, worker_bytes


def take_trace(model: LoadedModel, *, context: int, tokens: int) -> Trace:
    """Fill ``context`` tokens, then trace an epoch of ``tokens``."""
    model.executor.truncate(0, 0)
    token, _ = model.epoch(0, model.random_tokens(context), budget=1)
    return trace_epoch(model, 0, token, tokens)


def trace_epoch(model: LoadedModel, slot: int, token: int, tokens: int) -> Trace:
    """Trace an epoch of ``tokens`` that feeds ``token`` behind what a slot holds."""
    executor, context = model.executor, model.executor.length(slot)
    executor.set_trace(True)
    executor.take_spans()
    model.epoch(slot, [token], tokens)
    executor.set_trace(False)
    plan = model.plan
    slices = tuple(_slices(plan, executor.take_spans(), context))
    return Trace(model.workers, tokens, slices)


def _slices(plan: Plan, spans: npt.NDArray[np.void], context: int) -> Iterable[Slice]:
    seen: dict[tuple[int, int], int] = {}  # (worker, phase) -> passes so far
    for span in spans:  # all of width 1: one token was fed
        worker, index = int(span["worker"]), int(span["phase"])
        number = seen[worker, index] = seen.get((worker, index), 0) + 1
        phase = plan.phases[index]
        yield Slice(
            worker,
            phase,
            arrived=int(span["arrived_ns"]),
            begun=int(span["begun_ns"]),
            ended=int(span["ended_ns"]),
            bytes=int(worker_bytes(plan, phase, 1, context + number)[worker]),
        )
