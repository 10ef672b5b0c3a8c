"""Probe "litmus": the monokernel's protocols on a device, and how often what they forbid is seen.

Each runs for two seconds as it is, and without each of its parts: there an outcome that is
forbidden otherwise may show, or may not. What PTX allows is bench/gpu/litmus/check.py's to say.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from bench.gpu._stage import CheckError
from bench.gpu.litmus._source import (
    MOST_PLACES,
    MOST_REGISTERS,
    MOST_THREADS,
    blocks,
    registers,
    shapes,
)
from bench.gpu.litmus.program import Litmus, Term
from bench.gpu.probes._context import Context
from bench.gpu.probes._kernels import LITMUS
from monolane._results import Record
from monolane.cuda._device import Launch

_PLACE_BYTES = 128
_FOUND = MOST_REGISTERS + 1  # numbers that a thread leaves


def litmus(ctx: Context, job: str) -> None:
    """Each protocol, whole and without each of its parts."""
    for number, (test, part) in ctx.paced(list(enumerate(shapes()))):
        labels = {"test": test.name, "without": part or ""}
        ctx.attempt("litmus", measure, ctx, number, test, part, **labels)


def measure(ctx: Context, number: int, test: Litmus, part: str | None) -> Record:
    """How many rounds there were, and in how many the condition held.

    CheckError where a whole protocol shows what it forbids.
    """
    scale, ctas = ctx.scale, blocks(test)
    instances = ctx.device.info.sms // len(ctas)
    count = instances * scale.litmus_rounds
    players = np.full((len(ctas), MOST_THREADS), MOST_THREADS, np.uint32)
    for i, thread in enumerate(test.threads):
        row = players[ctas.index(thread.cta)]
        row[int((row < MOST_THREADS).sum())] = i
    launch = Launch(instances * len(ctas), MOST_THREADS * 32)
    ctx.fits("litmus.cu", "litmus", launch)
    seen = rounds = 0
    begin = time.monotonic()
    with ctx.buffers(
        places=count * MOST_PLACES * _PLACE_BYTES, counters=instances * 128, players=players,
        found=count * MOST_THREADS * _FOUND * 4,
    ) as b:  # fmt: skip
        while not rounds or time.monotonic() - begin < scale.litmus_seconds:
            for name in ("places", "counters", "found"):
                ctx.device.fill(b[name], 0)
            ctx.run(
                "litmus.cu", "litmus", launch, LITMUS, test=number, blocks=len(ctas),
                threads=len(test.threads), rounds=scale.litmus_rounds,
                patience=scale.litmus_patience, **b,
            )  # fmt: skip
            found = ctx.device.download(b["found"], np.uint32, count * MOST_THREADS * _FOUND)
            seen += int(_met(test, found.reshape(count, MOST_THREADS, _FOUND)).sum())
            rounds += count
    if part is None and test.condition.mode == "never" and seen:
        raise CheckError(f"{test.name}: what is forbidden was seen in {seen} of {rounds} rounds")
    return {"rounds": rounds, "seen": seen, "claim": test.condition.mode}


def _met(test: Litmus, found: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Return in which rounds [N] a test's condition holds, of what its threads found [N, T, R + 1].

    In a round in which a wait did not end nothing else is asked.
    """
    stuck: npt.NDArray[np.bool_] = (found[:, :, MOST_REGISTERS] != 0).any(1)
    held = np.zeros(len(found), np.bool_)
    for product in test.condition.products:
        true = np.ones(len(found), np.bool_)
        for term in product:
            true &= stuck if term.name == "stuck" else _is(test, found, term) & ~stuck
        held |= true
    return held


def _is(test: Litmus, found: npt.NDArray[np.uint32], term: Term) -> npt.NDArray[np.bool_]:
    assert term.thread is not None, f"{test.name}: expected conditions on registers"
    own = [name for thread, name in registers(test) if thread == term.thread]
    held: npt.NDArray[np.bool_] = found[:, term.thread, own.index(term.name)] == term.value
    return held if term.equal else ~held
