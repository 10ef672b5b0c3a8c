"""Running a plan slowly: simulated workers, each at its own pace, under a hostile scheduler.

Each worker takes whole phases; which of those that may begin one does so next, a seeded scheduler
decides. It has favourites and changes them seldom, so some workers run ahead as far as the waits
let them and others lag. A missing wait then shows as NaN or as other logits: the buffers that
workers share are NaN until written, and NaN again when the first worker begins to overwrite a slot.
Sound plans never notice; in an unsound one a worker that still needed the old content, or that
reads the new too early, reads NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monolane.model import Weights
from monolane.plan._interpreter_memory import Floats
from monolane.plan._interpreter_worker import Run, Worker
from monolane.plan._kinds import kinds
from monolane.plan._plan import Plan, PlanError


@dataclass(frozen=True, slots=True)
class Interpretation:
    """What came out: logits of every token fed, and the tokens drawn."""

    logits: Floats  # [tokens fed, V]
    token_ids: tuple[int, ...]  # greedy; each but the last was fed in its turn


def interpret(
    plan: Plan,
    weights: Weights,
    passes: Sequence[Sequence[int]],
    *,
    draws: int = 1,
    seed: int = 0,
    laggard: int | None = None,
    states: Sequence[Floats] = (),
) -> Interpretation:
    """Feed token ids, a pass at a time, then draw greedily; PlanError if the plan shows a fault.

    ``laggard`` names a worker that runs only when no other can: the schedule in which a missing
    wait for that worker cannot hide. Without it the seed decides whom the scheduler favours.
    ``states`` are [T, D] for each pass of layers that predict further ahead, which draw once.
    """
    run = Run(plan, weights, [list(ids) for ids in passes], draws, list(states))
    workers = [Worker(run, index) for index in range(plan.groups.workers)]
    rng = np.random.default_rng(seed)
    order: list[Worker] = []  # the scheduler's favourites first
    while True:
        if not order or rng.random() < 0.02:
            favour = rng.permutation(len(workers))
            if laggard is not None:
                favour[laggard] = -1
            order = sorted(workers, key=lambda worker: -int(favour[worker.index]))
        if ready := next((x for x in order if not x.finished and x.may_begin(workers)), None):
            _step(ready)
        elif stuck := [f"{x.index} before {x.phase.name}" for x in workers if not x.finished]:
            raise PlanError(f"all workers wait: {', '.join(stuck)}")
        else:
            break
    return Interpretation(np.concatenate(run.logits), tuple(run.drawn))


def _step(worker: Worker) -> None:
    """Have a worker do its next phase."""
    phase = worker.phase
    try:
        for update in phase.updates:
            worker.update(update)
        kinds()[phase.kind].run(worker, phase)
    except PlanError as error:
        raise PlanError(f"worker {worker.index} in {phase.name}: {error}") from None
    worker.progress += 1
