"""EMBED: the tokens' rows of the embedding, in every lane."""

import numpy as np

from monolane.model import Role
from monolane.ops import Buffer
from monolane.plan._builder import Builder
from monolane.plan._device import Choice
from monolane.plan._interpreter_worker import Worker
from monolane.plan._kind import Kind, Part, Touches
from monolane.plan._phase import Phase, PhaseKind
from monolane.plan._plan import Plan


def _build(builder: Builder, layer: int, _: int) -> tuple[Phase, ...]:
    # Where everyone chooses, everyone knows the tokens.
    return (builder.phase(PhaseKind.EMBED, layer, reads=builder.led_tokens()),)


def _order(plan: Plan, layer: int) -> tuple[PhaseKind, ...]:
    del plan, layer
    return (PhaseKind.EMBED,)


def _touches(plan: Plan, _: int) -> Touches:
    led = (Buffer.TOKENS,) if plan.device.choice is Choice.LEADER else ()
    return Touches(reads=led, wide=led)


def _run(worker: Worker, phase: Phase) -> None:
    del phase
    if worker.plan.device.choice is Choice.LEADER:
        worker.tokens = list(worker.memory.tokens)
    embedded = worker.run.outer[Role.EMBEDDING][worker.tokens]  # [T, D]
    embedded = embedded * np.float32(worker.plan.config.embedding_scale)
    worker.x = np.repeat(embedded[None], len(worker.lanes), axis=0)


PART = Part(kinds={PhaseKind.EMBED: Kind(touches=_touches, run=_run)}, build=_build, order=_order)
