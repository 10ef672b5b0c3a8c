"""Ranks killed, stopped or without memory, at random moments of starting, prefill and decode.

Whatever happens, a rank that is lost is named, nothing hangs and nothing is left behind, and the
next request is served with the same bits.
"""

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from monolane.cpu import CpuExecutor
from monolane.epoch import Advance
from monolane.errors import BackendError, RankError
from monolane.model import Weights

DEMO = Path(__file__).parents[2] / "src" / "monolane" / "demo"
IDS = np.random.default_rng(0).integers(512, size=900).tolist()
PATIENCE = 3.0  # seconds that the watchdog waits
# Far more than the watchdog's time and a start on a machine that stands still for a while. What
# hangs would do so for ever.
HANGS = 300.0


@pytest.fixture(scope="module", params=[2])
def ranks(request: pytest.FixtureRequest) -> Iterator[CpuExecutor]:
    count = request.param
    executor = CpuExecutor(
        Weights.open(DEMO), context=1024, slots=1, workers=count, ranks=count, patience=PATIENCE
    )
    yield executor
    executor.close()


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


def lose(executor: CpuExecutor, rng: random.Random, stage: str, kind: signal.Signals) -> None:
    """Lose one of the ranks, all of which run, at a random moment; return when it was named."""
    count = len(executor.processes)
    rank = rng.randrange(1, count)
    if stage == "starting":  # anew: the ranks that there are end first
        os.kill(executor.processes[1], signal.SIGKILL)
        with pytest.raises(RankError):
            ask(executor)
        struck = threading.Thread(target=_strike_start, args=(count, rng.uniform(0, 1), rank, kind))
    else:
        process, wait = executor.processes[rank], rng.uniform(0, 0.05)
        struck = threading.Thread(target=lambda: (time.sleep(wait), os.kill(process, kind)))
    struck.start()
    begin = time.monotonic()
    with pytest.raises(RankError, match=f"^rank {rank} ") as caught:
        _run_for(executor, stage, HANGS)
    struck.join()
    assert caught.value.rank == rank
    assert time.monotonic() < begin + HANGS


def _strike_start(count: int, wait: float, rank: int, kind: signal.Signals) -> None:
    end = time.monotonic() + HANGS
    while len(found := rank_processes()) < count - 1 and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(wait)
    os.kill(found[rank - 1], kind)


def _run_for(executor: CpuExecutor, stage: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _run(executor, stage)


def _run(executor: CpuExecutor, stage: str) -> None:
    """Be in that stage for a while; what was struck too late is found by the next call."""
    executor.truncate(0, 0)
    prompt, budget = (tuple(IDS), 1) if stage == "prefill" else ((1, 2, 3), 900)
    executor.start([Advance(slot=0, token_ids=prompt, budget=budget)])
    while not executor.read(0.1):
        executor.take()


def fail_to_start(executor: CpuExecutor) -> None:
    """Start the ranks where there is no memory for what they share."""
    os.kill(executor.processes[1], signal.SIGKILL)
    with pytest.raises(RankError):
        _run(executor, "decode")
    executor.truncate(0, 0)
    with full(), pytest.raises(BackendError, match="the ranks' shared memory: File too large"):
        executor.logits(0, IDS[:3])
    assert rank_processes() == []


def check_faults(executor: CpuExecutor, seed: int, count: int) -> None:
    rng = random.Random(seed)
    left = set(Path("/dev/shm").iterdir())
    wanted = ask(executor)
    for _ in range(count):
        kind = rng.choice([signal.SIGKILL, signal.SIGSTOP, None])
        if kind is None:
            fail_to_start(executor)
        else:
            lose(executor, rng, rng.choice(["starting", "prefill", "decode"]), kind)
        assert rank_processes() == []
        np.testing.assert_array_equal(ask(executor), wanted)
        assert segments() == 1
        assert len(rank_processes()) == len(executor.processes) - 1
    assert set(Path("/dev/shm").iterdir()) <= left


def test_one_rank_is_lost_in_each_stage(ranks: CpuExecutor) -> None:
    wanted = ask(ranks)
    rng = random.Random(1)
    for stage in ("starting", "prefill", "decode"):
        lose(ranks, rng, stage, signal.SIGKILL)
        assert rank_processes() == []
        np.testing.assert_array_equal(ask(ranks), wanted)
        assert segments() == 1


def test_ranks_that_cannot_share_memory_say_so(ranks: CpuExecutor) -> None:
    wanted = ask(ranks)
    fail_to_start(ranks)
    np.testing.assert_array_equal(ask(ranks), wanted)
    assert segments() == 1


@pytest.mark.slow
def test_a_rank_that_is_stopped_while_it_starts_is_named(ranks: CpuExecutor) -> None:
    wanted = ask(ranks)
    lose(ranks, random.Random(2), "starting", signal.SIGSTOP)
    np.testing.assert_array_equal(ask(ranks), wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize("seed", range(10))
def test_twenty_faults_at_random_moments(ranks: CpuExecutor, seed: int) -> None:
    check_faults(ranks, seed, 20)
