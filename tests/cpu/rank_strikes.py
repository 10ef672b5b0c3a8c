"""Ranks killed, stopped or without memory to share, at random moments.

A fault is found by the next wait for the lost rank. Each time: is the right rank named, how soon,
is a process or a segment left, and has the next request the bits of the first?
"""

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from struck import DEMO, HANGS, IDS, PATIENCE, Outcome, ask, be_in

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, RankError
from monolane.model import Weights

STAGES = ("starting", "prefill", "decode")
KINDS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "full": None}


@dataclass(frozen=True)
class Struck(Outcome):
    """What came of a fault, and was left behind."""

    processes: int  # of ranks, left when the error was raised
    segments: int  # held open beyond those before the fault, when the next request had been served

    @property
    def left(self) -> int:
        """Both together; no segment may be missing either."""
        return self.processes + abs(self.segments)


def open_ranks(ranks: int, patience: float = PATIENCE) -> CpuExecutor:
    """Return the demo model on so many ranks of a thread each."""
    weights = Weights.open(DEMO)
    return CpuExecutor(
        weights, context=1024, slots=1, workers=ranks, ranks=ranks, patience=patience
    )


def strike_any(executor: CpuExecutor, rng: random.Random, wanted: np.ndarray) -> Struck:
    """Bring a fault of a random kind about."""
    kind = rng.choice(list(KINDS))
    stage = "sharing" if KINDS[kind] is None else rng.choice(STAGES)
    return strike(executor, rng, kind, stage, wanted)


def strike(
    executor: CpuExecutor, rng: random.Random, kind: str, stage: str, wanted: np.ndarray
) -> Struck:
    """Bring one fault about and look at what it leaves."""
    chosen, before = KINDS[kind], segments()
    if chosen is None:
        begin = time.monotonic()
        named = fail_to_start(executor)
        seconds = time.monotonic() - begin
    else:
        seconds, named = lose(executor, rng, stage, chosen)
    left = len(rank_processes())
    served = np.array_equal(ask(executor), wanted)
    return Struck(f"{kind}, {stage}", seconds, named, served, left, segments() - before)


def rank_processes() -> list[int]:
    """Return the processes of ranks that this one has, in their order; none that ended."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread or a process that ends meanwhile
            for process in (task / "children").read_text().split():
                if b"monolane.cpu._rank_main" in Path(f"/proc/{process}/cmdline").read_bytes():
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
            be_in(executor, stage)
        except RankError as error:
            return error
    return None


def fail_to_start(executor: CpuExecutor) -> bool:
    """Start the ranks where there is no memory for what they share; return whether it says so."""
    _end_ranks(executor)
    try:
        with full():
            executor.logits(0, IDS[:3])
    except BackendError as error:
        return "memory to share, got: File too large" in str(error)
    return False
