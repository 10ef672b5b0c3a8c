"""Every probe's whole flow on the emulated device: its kernels run, its checks pass, and when the
kernel, the memory or a peer misbehaves there is an error record and no figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulated import EmulatedDevice, Kernels
from probing import context as make_context
from probing import run_probe

from bench.gpu._stage import CheckError, NotMeasuredError
from bench.gpu.probes import _kernels
from bench.gpu.probes._context import Context, WaitStarvedError
from bench.gpu.probes._scale import TINY, Scale
from bench.gpu.probes._test_data import TestData
from bench.gpu.probes.bandwidth import Mover, copy_variants, read_variants
from bench.gpu.probes.matvec import Phase, Runner
from bench.gpu.probes.run import PROBES
from bench.gpu.probes.waits import Rounds, Wait
from monolane import _results
from monolane._results import Record
from monolane.errors import BackendError

QUICK = dataclasses.replace(TINY, watchdog_cycles=200_000_000)  # 0.2 s: the emulated clock is in ns


def run(
    name: str, device: EmulatedDevice, scale: Scale = TINY, seconds: float = 500
) -> list[Record]:
    records = run_probe(name, device, scale, seconds)
    for record in records:
        _results.check_record(record)
    return records


def context(device: EmulatedDevice, scale: Scale = QUICK) -> Context:
    return make_context(device, scale)


def errors(records: list[Record]) -> list[str]:
    return [f"{r['name']}: {r['error']}" for r in records if "error" in r]


@pytest.mark.parametrize("name", [p.name for p in PROBES if p.name != "matvec"])
def test_a_probe_measures_everything(name: str, measured: dict[str, list[Record]]) -> None:
    records = measured[name]
    for record in records:
        _results.check_record(record)
    assert errors(records) == []
    left_out = [r for r in records if "not_measured" in r]
    assert len(left_out) == (2 if name == "waits" else 0)
    assert len(records) > len(left_out)


def test_matvec_measures_every_weight_format_and_width(kernels: Kernels) -> None:
    records = run("matvec", EmulatedDevice(kernels, sms=1))
    assert errors(records) == []
    seen = {(r["weights"], r["arithmetic"], r["width"]) for r in records if "median" in r}
    assert len(seen) == 3 * 3 + 4 * 5  # three formats by FMA at three widths, four by mma at five
    assert all(r["max_error_over_tolerance"] < 1 for r in records if "median" in r)


def test_matvec_at_the_short_rows_and_the_padded_shape(kernels: Kernels) -> None:
    device = EmulatedDevice(kernels, sms=1)
    runner = Runner(context(device, dataclasses.replace(TINY, stream_weights=4 << 20)))
    phases = [Phase("bf16", True, 192, 1536, 1), Phase("int8", False, 250, 3072, 4)]
    phases += [Phase("fp8", True, 48, 3072, 1), Phase("int4", False, 48, 3072, 16)]
    for phase in [*phases, Phase("bf16", False, 48, 3072, 1)]:
        assert runner.measure(phase)["max_error_over_tolerance"] < 1


@pytest.mark.parametrize("seed", range(3))
def test_waits_hold_under_other_schedules(kernels: Kernels, seed: int) -> None:
    assert errors(run("waits", EmulatedDevice(kernels, seed=1000 * (seed + 1)))) == []


def test_no_block_leaves_its_cluster_early(kernels: Kernels) -> None:
    # Without the last cluster barrier, all but one of these let a peer load from a block that has
    # left.
    for seed in range(90, 97):
        ctx = context(EmulatedDevice(kernels, seed=seed * 100, mood="slow block"), TINY)
        rounds = Rounds(ctx, TestData(ctx, QUICK.stream_run * 4))
        rounds.measure(Wait("cluster barrier", 1, 4, 12, False, 4))


def test_the_largest_ring_with_an_odd_number_of_slots(device: EmulatedDevice) -> None:
    # 208 KB in 16 KB copies: 13 slots for 13 warps.
    scale = dataclasses.replace(QUICK, rings=(208 * 1024, 208 * 1024), copies=(16 * 1024,) * 2)
    ctx = context(device, scale)
    mover = Mover(ctx, TestData(ctx, 4 << 20), None)
    variants = [v for v in read_variants(ctx) if v.kernel == "read_bulk" and v.slots == 13]
    assert variants[0].threads == 32 * 14
    assert mover.measure(variants[0])["gb_per_s"] > 0


# ---- a figure whose check fails is not written ---------------------------------------------------
def corrupting(device: EmulatedDevice, word: int) -> Callable[[str], None]:
    """After the fill, one word of the filled buffer changes."""

    def after(name: str) -> None:
        if name == "fill_words":
            address = max(device._memory, key=lambda a: len(device._memory[a]))
            memory = device._memory[address]
            start = address - memory.ctypes.data
            memory[start : start + TINY.read_bytes].view(np.uint32)[word] ^= 1

    return after


def test_a_word_that_differs_refuses_every_read_and_copy(device: EmulatedDevice) -> None:
    # Word 5,000 lies in granule 1, outside the windows that the fill's own check downloads.
    device.after_launch = corrupting(device, 5000)
    records = run("read", device)
    assert records
    assert all("CheckError" in r["error"] for r in records)
    assert not any("gb_per_s" in r for r in records)
    assert any("sum of all words read" in r["error"] for r in records)
    assert any("copy: 1 of 64 granules differ, first [1]" in r["error"] for r in records)


def test_a_window_of_wrong_fill_is_seen_at_once(device: EmulatedDevice) -> None:
    device.after_launch = corrupting(device, 7)
    assert errors(run("read", device)) == [
        "read_part: CheckError: fill: granule 0 holds other words"
    ]


def test_unread_chunks_are_noticed(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(device)
    mover = Mover(ctx, TestData(ctx, 1 << 20), None)
    variant = next(v for v in read_variants(ctx) if v.kernel == "read_bulk")
    pack = _kernels.ParamStruct.pack

    def fewer(self: Any, **values: int) -> bytes:
        return pack(self, **(values | {"chunks": values["chunks"] - 1}))

    monkeypatch.setattr(_kernels.ParamStruct, "pack", fewer)
    with pytest.raises(CheckError, match="sum of all words read"):
        mover.measure(variant)


def test_a_copy_that_never_ran_is_noticed(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(device)
    data = TestData(ctx, 1 << 20)
    mover = Mover(ctx, data, device.allocate(1 << 20))
    launch = device.launch

    def skip_copies(kernel: Any, *rest: Any) -> None:
        if not kernel[1].startswith("copy_"):
            launch(kernel, *rest)

    monkeypatch.setattr(device, "launch", skip_copies)
    with pytest.raises(CheckError, match="granules differ"):
        mover.measure(next(copy_variants(ctx)))


def test_a_wrong_weight_is_noticed(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedDevice(kernels, sms=1)
    runner = Runner(context(device))
    spread = runner._spread

    def flip_one(stream: Any, copies: int) -> None:
        spread(stream, copies)
        device._bytes(runner._weights)[100_003] ^= 0x40

    monkeypatch.setattr(runner, "_spread", flip_one)
    with pytest.raises(CheckError, match="tolerances|another result"):
        runner.measure(Phase("bf16", True, 48, 3072, 1))


def test_one_wrong_bit_in_every_copy_of_the_weights_is_noticed(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then all phases and blocks agree, and only the reference in float64 can tell."""
    runner = Runner(context(EmulatedDevice(kernels, sms=1)))
    spread = runner._spread

    def altered(stream: Any, copies: int) -> None:
        stream = stream.copy()
        stream[100_003] ^= 0x40  # one exponent bit of one bf16 weight
        spread(stream, copies)

    monkeypatch.setattr(runner, "_spread", altered)
    with pytest.raises(CheckError, match="tolerances"):
        runner.measure(Phase("bf16", True, 48, 3072, 1))


def test_a_wrong_choice_is_noticed(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.gpu.probes import choose

    logits = choose.test_logits(2, 1000)
    other = logits.copy()
    other[0, 333] -= 2  # the maximum, whose twin at 998 then wins
    monkeypatch.setattr(choose, "test_logits", lambda *shape: logits)
    uploaded = device.uploaded
    monkeypatch.setattr(
        device, "uploaded", lambda a: uploaded(other if a.shape == other.shape else a)
    )
    found = errors(run("token", device))
    assert any("expected token [333], got [998]" in e for e in found)


# ---- waits that starve ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "wait"),
    [
        ("sentinel, re-arm before", "sentinel words of a peer"),
        ("sentinel, re-arm after", "sentinel words of a peer"),
        ("counter", "the counter of the group"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_missing_peer_is_reported_and_not_waited_for(
    device: EmulatedDevice, method: str, wait: str, stream: bool
) -> None:
    ctx = context(device)
    rounds = Rounds(ctx, TestData(ctx, QUICK.stream_run * 4))
    ranks = (0, 1, 2, 5)  # nobody has rank 3
    with pytest.raises(WaitStarvedError, match=f"waited in vain for {wait}"):
        rounds.measure(Wait(method, 1, 4, 1, stream, 8, ranks, "table"))


@pytest.mark.parametrize("probe_name", ["read", "waits", "mailbox", "matvec"])
def test_whoever_gives_up_leaves_no_copy_in_flight(device: EmulatedDevice, probe_name: str) -> None:
    """Every wait starves at its first question, that of the copies' readers too."""
    found = errors(run(probe_name, device, dataclasses.replace(TINY, watchdog_cycles=0)))
    assert found
    assert all("waited in vain" in e for e in found)


def test_mail_that_never_comes_is_reported(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, seen = device.launch, []

    def lose_one(kernel: Any, *rest: Any) -> None:
        seen.append(kernel[1])
        if kernel[1] != "exchange_mail" or seen.count("exchange_mail") % 2:
            launch(kernel, *rest)

    monkeypatch.setattr(device, "launch", lose_one)
    found = errors(run("mailbox", device, QUICK))
    assert found
    assert all("peer kernels that never started" in e for e in found)


def test_a_ring_whose_readers_do_not_divide_it_is_a_race(device: EmulatedDevice) -> None:
    """The rule of ring.cuh, shown: with 4 slots and 8 readers a parity wait passes too early."""
    ctx = context(device)
    mover = Mover(ctx, TestData(ctx, 1 << 20), None)
    variant = next(v for v in read_variants(ctx) if v.kernel == "read_bulk" and v.slots == 4)
    racing = dataclasses.replace(variant, threads=32 * 9)
    with pytest.raises((CheckError, WaitStarvedError, BackendError)):
        [mover.measure(racing) for _ in range(5)]


# ---- time and bugs -------------------------------------------------------------------------------
def test_a_spent_budget_says_what_it_left_out(device: EmulatedDevice) -> None:
    records = run("read", device, seconds=0)
    assert records
    assert all(r["not_measured"] == "this part's 0 s were spent" for r in records)


def test_a_failing_call_costs_one_record_and_a_lost_device_ends_the_probe(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def refuse(kernel: Any, shape: Any) -> int:
        calls.append(shape.cluster)
        raise BackendError("out of resources")

    monkeypatch.setattr(device, "blocks_per_sm", refuse)
    records = run("token", device)
    assert sum("out of resources" in r.get("error", "") for r in records) == 3  # the choices
    assert any(r["name"] == "host_round_trip" and "median" in r for r in records)

    def lost(seconds: float = 0) -> None:
        raise BackendError("the context is lost")

    monkeypatch.setattr(device, "synchronize", lost)
    records = run("token", device)
    assert len(records) == 2
    assert records[-1]["error"] == "BackendError: the context is lost"


def test_what_does_not_fit_is_said(device: EmulatedDevice) -> None:
    ctx = context(device)
    rounds = Rounds(ctx, TestData(ctx, QUICK.stream_run * 4))
    with pytest.raises(NotMeasuredError, match="40 blocks, 4 SMs"):
        rounds.measure(Wait("counter", 10, 4, 1, False, 8))
    with pytest.raises(NotMeasuredError, match="more than 4096 words"):
        rounds.measure(Wait("counter", 1, 4, 1028, False, 8))
