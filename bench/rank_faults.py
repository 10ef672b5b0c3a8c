"""Ranks killed, stopped or without memory to share, at random moments; and what comes of it.

    python bench/rank_faults.py --faults 200 --out bench/results

A fault is found by the next wait for the lost rank. Each time: is the right rank named, how soon,
is a process or a segment left, and has the next request the bits of the first? docs/ranks.md quotes
it. tests/cpu/test_rank_faults.py does the same with a few faults. With a journal, a run that was
broken off goes on where it was.
"""

import argparse
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from _document import publish

from monolane.cpu import CpuExecutor
from monolane.epoch import Advance
from monolane.errors import BackendError, RankError
from monolane.measure import Record, summary
from monolane.model import Weights

DEMO = Path(__file__).parents[1] / "src" / "monolane" / "demo"
IDS = np.random.default_rng(0).integers(512, size=900).tolist()
PATIENCE = 3.0  # seconds that the watchdog waits; where a rank gets no core for so long, take more
# Far more than the watchdog's time and a start on a machine that stands still for a while. What
# hangs would do so for ever.
HANGS = 300.0
STAGES = ("starting", "prefill", "decode")
KINDS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "full": None}


@dataclass(frozen=True)
class Outcome:
    """What came of a fault."""

    fault: str  # kind and stage
    seconds: float  # from the fault to its error
    named: bool  # the error named the rank that was struck
    processes: int  # of ranks, left when the error was raised
    segments: int  # held open, beside the one in use, when the next request had been served
    served: bool  # the next request had the bits of the first


def main() -> None:
    """Strike, and write one results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=200, help="of all kinds together")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="numbers of processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=PATIENCE, help="of the watchdog, seconds")
    parser.add_argument("--journal", type=Path, help="file of outcomes, read and added to")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    records: list[Record] = []
    each = -(-options.faults // len(options.ranks))
    for ranks in options.ranks:
        outcomes = read_journal(options.journal, ranks)
        before = set(Path("/dev/shm").iterdir())
        if len(outcomes) < each:
            executor = open_ranks(ranks, options.patience)
            try:
                seeds = (f"{options.seed} {ranks} {i}" for i in range(len(outcomes), each))
                for outcome in strike_all(executor, seeds):
                    outcomes.append(outcome)
                    note(options.journal, ranks, outcome)
            finally:
                executor.close()
        named_left = len(set(Path("/dev/shm").iterdir()) - before)
        records += records_of(outcomes, ranks, named_left)
    publish(records, "rank-faults", options.out, patience_s=options.patience)


def read_journal(journal: Path | None, ranks: int) -> list[Outcome]:
    """Return what came of earlier faults with so many ranks."""
    if journal is None or not journal.is_file():
        return []
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    return [Outcome(**line["outcome"]) for line in lines if line["ranks"] == ranks]


def note(journal: Path | None, ranks: int, outcome: Any) -> None:
    """Tell, and keep, what came of a fault."""
    line = json.dumps({"ranks": ranks, "outcome": asdict(outcome)})
    sys.stderr.write(line + "\n")
    if journal is not None:
        with journal.open("a") as file:
            file.write(line + "\n")


def open_ranks(ranks: int, patience: float = PATIENCE) -> CpuExecutor:
    """Return the demo model on so many ranks of a thread each."""
    weights = Weights.open(DEMO)
    return CpuExecutor(
        weights, context=1024, slots=1, workers=ranks, ranks=ranks, patience=patience
    )


def strike_all(executor: CpuExecutor, seeds: Iterable[str]) -> Iterator[Outcome]:
    """Yield what came of a fault for each seed, of random kinds at random moments."""
    wanted = ask(executor)
    for seed in seeds:
        rng = random.Random(seed)
        kind = rng.choice(list(KINDS))
        stage = "sharing" if KINDS[kind] is None else rng.choice(STAGES)
        yield strike(executor, rng, kind, stage, wanted)


def strike(
    executor: CpuExecutor, rng: random.Random, kind: str, stage: str, wanted: np.ndarray
) -> Outcome:
    """Bring one fault about and look at what it leaves."""
    chosen = KINDS[kind]
    if chosen is None:
        begin = time.monotonic()
        named = fail_to_start(executor)
        seconds = time.monotonic() - begin
    else:
        seconds, named = lose(executor, rng, stage, chosen)
    left = len(rank_processes())
    served = np.array_equal(ask(executor), wanted)
    return Outcome(f"{kind}, {stage}", seconds, named, left, segments() - 1, served)


def records_of(outcomes: Sequence[Outcome], ranks: int, named_left: int) -> list[Record]:
    """Return a record of each kind and stage, of seconds to the error, and one of all."""
    ordered = sorted(outcomes, key=lambda one: one.fault)
    records = []
    for fault, group in groupby(ordered, key=lambda one: one.fault):
        found = list(group)
        seconds = summary([one.seconds for one in found], "s")
        records.append({"name": f"{fault}, {ranks} ranks", **seconds, **_sums(found)})
    whole = _sums(outcomes) | {"segments_in_dev_shm": named_left}
    return [*records, {"name": f"all faults, {ranks} ranks", **whole}]


def _sums(found: Sequence[Outcome]) -> dict[str, int]:
    return {
        "faults": len(found),
        "named": sum(one.named for one in found),
        "served": sum(one.served for one in found),
        "left_processes": sum(one.processes for one in found),
        "left_segments": sum(one.segments for one in found),
    }


def rank_processes() -> list[int]:
    """Return the processes of ranks that this one has, in their order; none that ended."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread or a process that ends meanwhile
            for process in (task / "children").read_text().split():
                if b"monolane.cpu._rank" in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.append(int(process))
    return sorted(found)


def segments() -> int:
    """Return how many segments of ranks this process holds open."""
    names = []
    for file in Path("/proc/self/fd").iterdir():
        try:
            names.append(str(file.readlink()))
        except OSError:
            continue  # the folder's own
    return sum("memfd:monolane" in name for name in names)


def ask(executor: CpuExecutor) -> np.ndarray:
    """Answer a prompt of several passes; return its logits and what is drawn behind it."""
    executor.take()  # what a lost epoch had drawn
    executor.truncate(0, 0)
    logits = executor.logits(0, IDS[:100])
    executor.start([Advance(slot=0, token_ids=(1, 2, 3), budget=40)])
    while not executor.read(0.1):
        pass
    return np.append(logits[-1], [event.token_id for event in executor.take()])


@contextmanager
def full() -> Iterator[None]:
    """No file may be longer than a page, nor memory that ranks share, which is one: EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lose(
    executor: CpuExecutor, rng: random.Random, stage: str, kind: signal.Signals
) -> tuple[float, bool]:
    """Lose one of the ranks, all of which run, at a random moment.

    Return the seconds from there to its error, and whether that named it. A rank that starts may be
    struck when it is done with it; then the run finds it lost.
    """
    count = len(executor.processes)
    rank = rng.randrange(1, count)
    struck_at = []
    if stage == "starting":  # anew: the ranks that there are end first
        _end_ranks(executor)
        wait = rng.uniform(0, 1)

        def strike() -> None:
            end = time.monotonic() + HANGS
            while len(found := rank_processes()) < count - 1 and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(wait)
            struck_at.append(time.monotonic())
            os.kill(found[rank - 1], kind)
    else:
        process, wait = executor.processes[rank], rng.uniform(0, 0.05)

        def strike() -> None:
            time.sleep(wait)
            struck_at.append(time.monotonic())
            os.kill(process, kind)

    thread = threading.Thread(target=strike)
    thread.start()
    error = _run_for(executor, stage, HANGS)
    named_at = time.monotonic()
    thread.join()
    named = error is not None and error.rank == rank and str(error).startswith(f"rank {rank} ")
    return named_at - struck_at[0], named


def _end_ranks(executor: CpuExecutor) -> None:
    os.kill(executor.processes[1], signal.SIGKILL)
    if _run_for(executor, "decode", HANGS) is None:
        raise RuntimeError("a rank that was killed was not found lost")
    executor.truncate(0, 0)


def _run_for(executor: CpuExecutor, stage: str, seconds: float) -> RankError | None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            _run(executor, stage)
        except RankError as error:
            return error
    return None


def _run(executor: CpuExecutor, stage: str) -> None:
    """Be in that stage for a while; what was struck too late is found by the next call."""
    executor.truncate(0, 0)
    prompt, budget = (tuple(IDS), 1) if stage == "prefill" else ((1, 2, 3), 900)
    executor.start([Advance(slot=0, token_ids=prompt, budget=budget)])
    while not executor.read(0.1):
        executor.take()


def fail_to_start(executor: CpuExecutor) -> bool:
    """Start the ranks where there is no memory for what they share; return whether it says so."""
    _end_ranks(executor)
    try:
        with full():
            executor.logits(0, IDS[:3])
    except BackendError as error:
        return "the ranks' shared memory: File too large" in str(error)
    return False


if __name__ == "__main__":
    main()
