"""Faults of ranks, however these are joined: what is asked of them before and after each, the
journal of a run that may be broken off, and the records that come of it.
"""

import argparse
import json
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import numpy as np
from _document import publish

from monolane.cpu import CpuExecutor
from monolane.executor_api import Advance
from monolane.measure import Record, summary

DEMO = Path(__file__).parents[1] / "src" / "monolane" / "demo"
IDS = np.random.default_rng(0).integers(512, size=900).tolist()
PATIENCE = 3.0  # seconds that the watchdog waits; where a rank gets no core for so long, take more
# Far more than the watchdog's time and a start on a machine that stands still for a while. What
# hangs would do so for ever.
HANGS = 300.0


@dataclass(frozen=True)
class Outcome:
    """What came of a fault."""

    fault: str  # kind and stage
    seconds: float  # from the fault to its error
    named: bool  # the error named the rank that was struck, or one of a link's
    served: bool  # the next request had the bits of the first

    @property
    def left(self) -> dict[str, int]:
        """Return what was left behind, by the names of a record's fields."""
        raise NotImplementedError


Some = TypeVar("Some", bound=Outcome)
Strike = Callable[[random.Random], Some]  # brings about one fault of a random kind


def ask(executor: CpuExecutor) -> np.ndarray:
    """Answer a prompt of several passes; return its logits and what is drawn behind it."""
    executor.take()  # what a lost epoch had drawn
    executor.truncate(0, 0)
    logits = executor.logits(0, IDS[:100])
    executor.start([Advance(slot=0, token_ids=(1, 2, 3), budget=40)])
    while not executor.read(0.1):
        pass
    return np.append(logits[-1], [event.token_id for event in executor.take()])


def be_in(executor: CpuExecutor, stage: str) -> None:
    """Be in that stage for a while; what was struck too late is found by the next call."""
    executor.truncate(0, 0)
    prompt, budget = (tuple(IDS), 1) if stage == "prefill" else ((1, 2, 3), 900)
    executor.start([Advance(slot=0, token_ids=prompt, budget=budget)])
    while not executor.read(0.1):
        executor.take()


def strike_all(strike: Strike[Some], seeds: Iterable[str]) -> Iterator[Some]:
    """Yield what came of a fault for each seed, at random moments."""
    for seed in seeds:
        yield strike(random.Random(seed))


def records_of(outcomes: Sequence[Outcome], ranks: int, by: str = "", **whole: int) -> list[Record]:
    """Return a record of each kind and stage, of seconds to the error, and one of all.

    by  what their names begin with; ``whole`` are further fields of the one of all
    """
    ordered = sorted(outcomes, key=lambda one: one.fault)
    records: list[Record] = []
    for fault, group in groupby(ordered, key=lambda one: one.fault):
        found = list(group)
        seconds = summary([one.seconds for one in found], "s")
        records.append({"name": f"{by}{fault}, {ranks} ranks", **seconds, **_sums(found)})
    return [*records, {"name": f"{by}all faults, {ranks} ranks", **_sums(outcomes), **whole}]


def _sums(found: Sequence[Outcome]) -> dict[str, int]:
    left = {name: sum(one.left[name] for one in found) for name in found[0].left}
    named, served = (sum(getattr(one, name) for one in found) for name in ("named", "served"))
    return {"faults": len(found), "named": named, "served": served, **left}


def read_journal(journal: Path | None, ranks: int, kind: type[Some]) -> list[Some]:
    """Return what came of earlier faults with so many ranks."""
    if journal is None or not journal.is_file():
        return []
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    return [kind(**line["outcome"]) for line in lines if line["ranks"] == ranks]


def _note(journal: Path | None, ranks: int, outcome: Outcome) -> None:
    line = json.dumps({"ranks": ranks, "outcome": asdict(outcome)})
    sys.stderr.write(line + "\n")
    if journal is not None:
        with journal.open("a") as file:
            file.write(line + "\n")


def run_faults(
    about: str,
    what: str,
    kind: type[Some],
    open_world: Callable[[int, float], AbstractContextManager[Strike[Some]]],
    by: str = "",
) -> None:
    """Strike as the command line says, and write one results file.

    about       the script's first line; ``what`` names its results file
    open_world  what starts so many ranks, with a watchdog of so many seconds
    by          what records' names begin with
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--faults", type=int, default=200, help="of all kinds together")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="numbers of processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=PATIENCE, help="of the watchdog, seconds")
    parser.add_argument("--journal", type=Path, help="file of outcomes, read and added to")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end the ranks
    records: list[Record] = []
    each = -(-options.faults // len(options.ranks))
    for ranks in options.ranks:
        outcomes = read_journal(options.journal, ranks, kind)
        before = set(Path("/dev/shm").iterdir())
        if len(outcomes) < each:
            with open_world(ranks, options.patience) as strike:
                seeds = (f"{options.seed} {ranks} {i}" for i in range(len(outcomes), each))
                for outcome in strike_all(strike, seeds):
                    outcomes.append(outcome)
                    _note(options.journal, ranks, outcome)
        named_left = len(set(Path("/dev/shm").iterdir()) - before)
        records += records_of(outcomes, ranks, by, segments_in_dev_shm=named_left)
    publish(records, what, options.out, patience_s=options.patience)
