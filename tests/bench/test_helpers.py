"""Small parts: statistics, budget, structs, Philox, telemetry lines, the GPC partition."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from emulation import KERNELS as PRIMITIVES

from bench.gpu._stage import Budget, distribution, summary
from bench.gpu._telemetry import Sample, Telemetry, driver_version, parse_line, query
from bench.gpu.probes import _kernels
from bench.gpu.probes._context import WAITS
from bench.gpu.probes._test_data import test_words
from bench.gpu.probes.topology import Partition
from bench.gpu.probes.waits import IDLE, METHODS, gpc_ranks, pair_ranks


def test_summary_and_percentiles() -> None:
    assert summary([3.0, 1.0, 2.0]) == {"runs": 3, "min": 1.0, "median": 2.0, "max": 3.0}
    d = distribution(np.arange(101, dtype=np.float64))
    assert (d["p1"], d["p10"], d["p90"], d["p99"], d["mean"]) == (1.0, 10.0, 90.0, 99.0, 50.0)
    with pytest.raises(ValueError, match="at least one"):
        summary([])


def test_budget_drops_repeats_before_it_is_exhausted() -> None:
    now = [0.0]
    budget = Budget(100, clock=lambda: now[0])
    now[0], budget.progress = 30.0, 0.25
    assert budget.repeats(5) == 5
    now[0] = 50.0
    assert budget.repeats(5) == 2
    now[0] = 99.9
    states = [budget.exhausted]
    now[0] = 100.0
    states.append(budget.exhausted)
    assert states == [False, True]
    assert Budget(0).repeats(5, 1) == 1


def test_structs_pack_exactly_their_fields() -> None:
    packed = _kernels.FILL.pack(words=1, granule_sums=2, granules=3, granule_words=4, seed=5)
    assert np.frombuffer(packed, np.uint64)[:3].tolist() == [1, 2, 3]
    assert np.frombuffer(packed, np.uint32)[6:].tolist() == [4, 5]
    with pytest.raises(ValueError, match=r"missing \['seed'\], unknown \['sed'\]"):
        _kernels.FILL.pack(words=1, granule_sums=2, granules=3, granule_words=4, sed=5)


def test_header_declares_every_struct_with_its_size() -> None:
    header = _kernels.headers()["params.h"]
    for struct in _kernels.ALL:
        size = len(struct.pack(**dict.fromkeys(struct.names, 0)))
        assert f"static_assert(sizeof({struct.name}) == {size});" in header


def _enum(file: Path, name: str) -> dict[str, int]:
    body = re.search(rf"enum {name} : u32 {{(.*?)}};", file.read_text(), flags=re.S)
    assert body
    return {k: int(v) for k, v in re.findall(r"(\w+) = (\d+)", body[1])}


def test_enums_agree_with_the_kernels() -> None:
    assert set(_enum(PRIMITIVES / "primitives.cuh", "Wait").values()) == WAITS.keys()
    assert sorted(_enum(_kernels.KERNELS / "waits.cu", "Method").values()) == sorted(
        METHODS.values()
    )
    noise = _enum(_kernels.KERNELS / "token.cu", "Noise")
    assert noise == {"NO_NOISE": 0, "NOISE_FLOAT": 1, "NOISE_DOUBLE": 2}


def test_test_words_differ_and_use_the_high_index() -> None:
    words = test_words(0, 1 << 16, 1)
    assert len(np.unique(words)) == 1 << 16
    assert not np.array_equal(test_words(1 << 32, 16, 1), words[:16])


def test_telemetry_lines() -> None:
    names = ("a", "b", "c")
    assert parse_line("1980, [N/A], 0x04", names) == {"a": 1980.0, "b": None, "c": 4}
    with pytest.raises(ValueError, match="zip"):
        parse_line("1, 2", names)


@pytest.mark.parametrize(
    ("visible", "asked"), [(None, "0"), ("", "0"), ("3,1", "3"), ("GPU-8a3f", "GPU-8a3f")]
)
def test_telemetry_looks_at_the_gpu_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, asked: str
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$2" = "$EXPECTED" ] && echo "1980, 580.1"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("EXPECTED", asked)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert query({"sm_mhz": "clocks.sm", "other": "other"}) == {"sm_mhz": 1980.0, "other": 580.1}
    assert driver_version() == "1980, 580.1"


def test_telemetry_record_tells_a_throttled_run() -> None:
    def sample(reasons: int, mhz: float) -> Sample:
        return Sample(0.0, {"sm_mhz": mhz, "memory_mhz": 3201.0, "power_w": 100.0,
                            "temperature_c": None, "throttle_reasons": reasons})  # fmt: skip

    quiet = Telemetry(samples=[sample(1, 345), sample(0, 1980), sample(0, 1980)]).record()
    assert (quiet["throttled"], quiet["sm_mhz"]["median"]) == (False, 1980.0)
    assert "temperature_c" not in quiet
    hot = Telemetry(samples=[sample(0, 1980), sample(0x40, 900), sample(0, 1980)]).record()
    assert (hot["throttled"], hot["throttle_reasons_seen"]) == (True, "0x40")
    assert "not_measured" in Telemetry().record()


def test_partition_joins_transitively() -> None:
    partition = Partition(6)
    for a, b in ((0, 3), (3, 5), (1, 2)):
        partition.join(a, b)
    assert partition.sets() == [[0, 3, 5], [1, 2], [4]]


def test_ranks_stay_within_a_gpc() -> None:
    sets = [list(range(18)), list(range(18, 34)), list(range(34, 40))]
    ranks = gpc_ranks(sets, members=16, groups=8, sms=40)
    taken = {r: sm for sm, r in enumerate(ranks) if r != IDLE}
    assert sorted(taken) == list(range(32))
    for group in range(2):
        gpcs = {
            next(i for i, s in enumerate(sets) if taken[group * 16 + m] in s) for m in range(16)
        }
        assert len(gpcs) == 1
    assert gpc_ranks(sets, members=4, groups=2, sms=40).count(IDLE) == 32
    assert pair_ranks(2, 0, 4) == (1, IDLE, 0, IDLE)
