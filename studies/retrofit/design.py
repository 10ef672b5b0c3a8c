"""What the study runs, in which order, and what each costs: README.md states it in words.

Nothing here needs torch, so that report.py can read results wherever they are.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
LANES, CONTEXT, ROWS = 3, 256, 4
NINE = 9  # lanes of the second shape: a head each, with a copy of the KV head that it shares

# Delay in layers, and whether the layers before it exchange at once.
VARIANTS: dict[str, dict[str, Any]] = {
    "delay 0": {"delay": 0},
    "delay 1": {"delay": 1},
    "delay 2": {"delay": 2},
    "delay 4": {"delay": 4},
    "delay 1, early": {"delay": 1, "early": True},
    "delay 2, early": {"delay": 2, "early": True},
    "delay 4, early": {"delay": 4, "early": True},
}
RATES = (3e-4, 1e-4, 1e-3)
ORDERS = ("at_once",)
SEARCHED = ("delay 2", "delay 2, early")  # others take the rate of their kind: late or early
PAIR, PAIR_SEEDS = ("delay 0", "delay 2"), (0, 1, 2)
SEARCH_STEPS, MAIN_STEPS, PAIR_STEPS = 50, 120, 60

# Loss against tokens: one variant trained for longer and longer, all weights, and low-rank updates
# alone beside it, whose rate is searched at the shortest length.
LENGTHENED, LENGTHS = SEARCHED[1], (60, 120, 240, 480)
LORA_RANK, LORA_RATES, LORA_LENGTHS = 64, (1e-3, 3e-3), (60, 120, 240)
LENGTH = "length"

# Seconds on two Zen 4 cores with nothing beside: of a step with its share of the teacher's work,
# and of what a run does once (loading, examining, writing).
STEP_SECONDS, RUN_SECONDS = 3.6, 60.0


@dataclass(frozen=True)
class Run:
    """One training."""

    variant: str
    rate: float
    order: str = "together"
    steps: int = SEARCH_STEPS
    seed: int = 0  # of the order of the windows: all begin from the same weights
    lora: int = 0  # rank of the updates that alone are trained; 0: all weights

    @property
    def name(self) -> str:
        """A folder's name."""
        variant = self.variant.replace(", ", "-").replace(" ", "-")
        low = f"-rank{self.lora}" if self.lora else ""
        return f"{variant}-{self.order}-{self.rate:g}-{self.steps}-seed{self.seed}{low}"

    @property
    def minutes(self) -> float:
        """What it takes, by ``STEP_SECONDS``."""
        return (self.steps * STEP_SECONDS + RUN_SECONDS) / 60


def search(done: Sequence[dict[str, Any]]) -> Iterator[Run]:
    """Yield what the search lacks: rates first, then orders at the best of them."""
    rates = [Run(variant, rate) for variant in SEARCHED for rate in RATES]
    have = runs_of(done)
    yield from (run for run in rates if run not in have)
    if all(run in have for run in rates):
        for variant in SEARCHED:
            best = best_of([line for line in done if Run(**line["run"]) in rates], variant)
            orders = (Run(variant, best.rate, order) for order in ORDERS)
            yield from (run for run in orders if run not in have)


def pair_runs(
    done: Sequence[dict[str, Any]], searched: Sequence[dict[str, Any]] | None = None
) -> Iterator[Run]:
    """Yield what the main pair lacks: a seed is done for both before the next begins.

    ``searched`` has the search, where another shape's results have it.
    """
    found = _best(done if searched is None else searched, SEARCHED[0])
    runs = (
        Run(variant, found.rate, found.order, PAIR_STEPS, seed)
        for seed in PAIR_SEEDS
        for variant in PAIR
    )
    yield from (run for run in runs if run not in runs_of(done))


def main_runs(done: Sequence[dict[str, Any]]) -> Iterator[Run]:
    """Yield the long runs that are missing, at what the search found best."""
    for variant in VARIANTS:
        found = _best(done, SEARCHED[int(VARIANTS[variant].get("early", False))])
        run = Run(variant, found.rate, found.order, MAIN_STEPS)
        if run not in runs_of(done):
            yield run


def length_runs(
    done: Sequence[dict[str, Any]], searched: Sequence[dict[str, Any]]
) -> Iterator[Run]:
    """Yield the runs of loss against tokens that are missing, the shortest first.

    ``searched`` has the search, which is in another file: the text is another.
    """
    found = _best(searched, LENGTHENED)
    have = runs_of(done)

    def run(steps: int, rate: float = found.rate, lora: int = 0) -> Run:
        return Run(LENGTHENED, rate, found.order, steps, lora=lora)

    low = [run(LORA_LENGTHS[0], rate, LORA_RANK) for rate in LORA_RATES]
    first = [run(LENGTHS[0]), *low]
    yield from (one for one in first if one not in have)
    if all(one in have for one in low):
        tried = [line for line in done if Run(**line["run"]) in low]
        best = Run(**min(tried, key=lambda line: float(line["exam"]["all"]["kl"]))["run"])
        for steps in LENGTHS[1:]:
            both = [run(steps)]
            if steps in LORA_LENGTHS:
                both.append(run(steps, best.rate, LORA_RANK))
            yield from (one for one in both if one not in have)


STAGES = {"search": search, "pair": pair_runs, "main": main_runs}


def _best(done: Sequence[dict[str, Any]], variant: str) -> Run:
    if next(search(done), None) is not None:
        raise SystemExit("expected a finished search, got one with runs missing; run search first")
    return best_of(done, variant)


def best_of(done: Sequence[dict[str, Any]], variant: str) -> Run:
    """Return the run of the search with the least divergence from the source on held-out text."""
    tried = [line for line in done if line["run"]["variant"] == variant]
    tried = [line for line in tried if line["run"]["steps"] == SEARCH_STEPS]
    return Run(**min(tried, key=lambda line: float(line["exam"]["all"]["kl"]))["run"])


def result_paths(folder: Path, lanes: int, stage: str = "") -> tuple[Path, Path]:
    """Return the results files of a shape: before training, and the runs.

    The stage of loss against tokens has its own.
    """
    end = "" if lanes == LANES else f"-{lanes}-lanes"
    if stage == LENGTH:
        end = f"-{LENGTH}"
    return folder / f"before{end}.jsonl", folder / f"runs{end}.jsonl"


def runs_of(done: Sequence[dict[str, Any]]) -> set[Run]:
    """Return the runs of these lines."""
    return {Run(**line["run"]) for line in done}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a results file; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def forecast(before: Sequence[dict[str, Any]], done: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each piece that is missing, with its minutes; the sum last.

    What the search decides is not known before it is done: its candidates stand in.
    """
    have = {line["variant"] for line in before}
    pieces = [(f"before: {v}", RUN_SECONDS / 60) for v in VARIANTS if v not in have]
    pieces += [(f"search: {run.name}", run.minutes) for run in search(done)]
    searched = next(search(done), None) is None
    if not searched and len(list(search(done))) > 0:
        tried = {(run.variant, run.order) for run in runs_of(done)} | {
            (run.variant, run.order) for run in search(done)
        }
        orders = [(v, o) for v in SEARCHED for o in ORDERS if (v, o) not in tried]
        pieces += [(f"search: {v}, {o}, at its best rate", Run(v, 0).minutes) for v, o in orders]
    if searched:
        pieces += [(f"pair: {run.name}", run.minutes) for run in pair_runs(done)]
        pieces += [(f"main: {run.name}", run.minutes) for run in main_runs(done)]
    else:
        pieces += [
            (f"pair: {v}, seed {seed}", Run(v, 0, steps=PAIR_STEPS).minutes)
            for seed in PAIR_SEEDS
            for v in PAIR
        ]
        pieces += [(f"main: {v}", Run(v, 0, steps=MAIN_STEPS).minutes) for v in VARIANTS]
    total = sum(minutes for _, minutes in pieces)
    return [f"{minutes:6.1f} min  {name}" for name, minutes in [*pieces, ("in all", total)]]
