"""How fast this machine trains: which precision is faster, and how many steps fit into a time.

Steps are fixed before the run from a short measurement, not by a clock during it: a schedule in
steps gives the same weights on a resumed run, and the same recipe on another machine.
"""

import copy
import time
from dataclasses import dataclass, replace

import torch

from monolane.train._loop import Loop
from monolane.train._packing import Packing
from monolane.train._recipe import DemoRecipe
from monolane.train._schedule import Schedule

_PROBE_SECONDS = 5.0  # per precision and context length


@dataclass(frozen=True)
class Pace:
    """Seconds of one step at the short and at the full context, in one precision."""

    precision: str
    short: float
    long: float

    def mean(self, recipe: DemoRecipe) -> float:
        """Seconds of a step, averaged over the run."""
        return self.short * (1 - recipe.long_share) + self.long * recipe.long_share

    def steps(self, recipe: DemoRecipe, minutes: float) -> int:
        """Steps that fit into ``minutes``, at least one."""
        return max(1, int(minutes * 60 / self.mean(recipe)))


def measure_pace(
    model: torch.nn.Module, recipe: DemoRecipe, packing: Packing, compiled: bool
) -> Pace:
    """Time steps of copies of the model; return the faster precision that the recipe allows."""
    names = ["float32", "bfloat16"] if recipe.precision == "auto" else [recipe.precision]
    paces = [_measure(model, recipe, packing, name, compiled) for name in names]
    return min(paces, key=lambda pace: pace.mean(recipe))


def _measure(
    model: torch.nn.Module, recipe: DemoRecipe, packing: Packing, precision: str, compiled: bool
) -> Pace:
    seconds = []
    for long in (0, 1_000_000):
        schedule = replace(Schedule.of(recipe, 1_000_000), long=long)
        loop = Loop(copy.deepcopy(model), recipe, packing, schedule, precision, compiled=compiled)
        loop.step(0)  # warm up: thread pools, weight reordering, optimiser state
        seconds.append(_time_steps(loop))
    return Pace(precision, *seconds)


def _time_steps(loop: Loop) -> float:
    began, count = time.monotonic(), 0
    while count < 2 or time.monotonic() - began < _PROBE_SECONDS:
        loop.step(count)
        count += 1
    return (time.monotonic() - began) / count
