"""How fast this machine trains: which precision is faster, and how many steps fit into a time.

Steps are fixed before the run from a short measurement, not by a clock during it: a schedule in
steps gives the same weights on a resumed run, and the same recipe on another machine.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from monolane.train._demo.recipe import DemoRecipe
from monolane.train._inputs import open_blend, open_corpus
from monolane.train._process_group import open_world
from monolane.train._trainer import Trainer

_PROBE_SECONDS = 5.0  # per precision and context length
_STEPS = 1_000_000  # so that every probe lies in the stretch that it is meant for


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


def measure_pace(recipe: DemoRecipe, corpus: Path, compiled: bool) -> Pace:
    """Time steps on a prepared corpus; return the faster precision that the recipe allows."""
    names = ["float32", "bfloat16"] if recipe.precision == "auto" else [recipe.precision]
    paces = [_measure(recipe, corpus, name, compiled) for name in names]
    return min(paces, key=lambda pace: pace.mean(recipe))


def _measure(recipe: DemoRecipe, corpus: Path, precision: str, compiled: bool) -> Pace:
    config = recipe.run_config(corpus, _STEPS, precision=precision, compiled=compiled)
    blend = open_blend(config, open_corpus(config))
    with open_world(config) as world:
        trainer = Trainer(config, world)
        rows = config.data.rows_per_step

        def seconds(first: int) -> float:
            """Time steps from step ``first`` on, after one that warms up thread pools."""
            trainer.step(first, blend.rows(0, rows))
            began, count = time.monotonic(), 0
            while count < 2 or time.monotonic() - began < _PROBE_SECONDS:
                trainer.step(first + count, blend.rows(count * rows, rows))
                count += 1
            return (time.monotonic() - began) / count

        return Pace(precision, seconds(0), seconds(config.schedule.short_until))
