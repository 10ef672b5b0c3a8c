"""Ranks killed, stopped or without memory, at random moments of starting, prefill and decode.

Whatever happens, a rank that is lost is named, nothing hangs and nothing is left behind, and the
next request is served with the same bits. bench/rank_faults.py strikes, here a few times.
"""

import json
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from struck import bench_script, check

from monolane.cpu import CpuExecutor


@pytest.fixture(scope="module")
def faults() -> Iterator[Any]:
    with bench_script("rank_faults") as found:
        yield found


@pytest.fixture(scope="module", params=[2])
def ranks(faults: Any, request: pytest.FixtureRequest) -> Iterator[CpuExecutor]:
    executor = faults.open_ranks(request.param)
    yield executor
    executor.close()


def strike(faults: Any, executor: CpuExecutor, seed: int, *struck: tuple[str, str]) -> None:
    rng, wanted = random.Random(seed), faults.ask(executor)
    for kind, stage in struck:
        outcome = faults.strike(executor, rng, kind, stage, wanted)
        check(outcome)
        assert outcome.seconds < faults.HANGS
        assert len(faults.rank_processes()) == len(executor.processes) - 1


def test_one_rank_is_lost_in_each_stage(faults: Any, ranks: CpuExecutor) -> None:
    strike(faults, ranks, 1, *(("kill", stage) for stage in faults.STAGES))


def test_ranks_that_cannot_share_memory_say_so(faults: Any, ranks: CpuExecutor) -> None:
    strike(faults, ranks, 0, ("full", "sharing"))


@pytest.mark.slow
def test_a_rank_that_is_stopped_while_it_starts_is_named(faults: Any, ranks: CpuExecutor) -> None:
    strike(faults, ranks, 2, ("stop", "starting"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize("seed", range(10))
def test_twenty_faults_at_random_moments(faults: Any, ranks: CpuExecutor, seed: int) -> None:
    before, wanted = set(Path("/dev/shm").iterdir()), faults.ask(ranks)
    for i in range(20):
        check(faults.strike_any(ranks, random.Random(f"{seed} {i}"), wanted))
    assert set(Path("/dev/shm").iterdir()) <= before


def test_sums_count_what_went_wrong(faults: Any) -> None:
    good = faults.Struck("kill, decode", 1.0, True, True, 0, 0)
    bad = faults.Struck("kill, decode", 4.0, False, False, 2, 1)
    with bench_script("_faults") as shared:
        one, whole = shared.records_of([good, bad], 4, segments_in_dev_shm=3)
    assert (one["name"], one["max"], one["faults"]) == ("kill, decode, 4 ranks", 4.0, 2)
    assert (whole["named"], whole["served"], whole["left_processes"]) == (1, 1, 2)
    assert (whole["left_segments"], whole["segments_in_dev_shm"]) == (1, 3)


def test_a_run_that_was_broken_off_goes_on_where_it_was(
    faults: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[random.Random] = []

    @contextmanager
    def open_world(ranks: int, patience: float) -> Iterator[Any]:
        assert (ranks, patience) == (2, 3.0)

        def strike_one(rng: random.Random) -> Any:
            if len(seeds) == 2:
                raise KeyboardInterrupt
            seeds.append(rng)
            return faults.Struck("kill, decode", float(len(seeds)), True, True, 0, 0)

        yield strike_one

    journal, out = tmp_path / "journal", tmp_path / "out.json"
    words = ["--faults", "3", "--ranks", "2", "--journal", str(journal), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["rank_faults.py", *words])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with bench_script("_faults") as shared:
        with pytest.raises(KeyboardInterrupt):
            shared.run_faults("", "rank-faults", faults.Struck, open_world)
        seeds.pop(0)
        shared.run_faults("", "rank-faults", faults.Struck, open_world)
    one, whole = json.loads(out.read_text())["records"]
    assert (one["runs"], one["min"], one["max"], whole["faults"]) == (3, 1.0, 2.0, 3)
    assert [rng.random() for rng in seeds] == [random.Random(f"0 2 {i}").random() for i in (1, 2)]
