"""Probe "token": what choosing a token costs, and its way to the host and back.

Arg-max over all SMs with and without Gumbel noise, the noise's accuracy in float against the
definition in double, and the round trip of a flag through pinned memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from bench._results import Record
from bench.gpu.probes import _structs
from bench.gpu.probes._context import (
    Context,
    Probe,
    expect,
    expect_equal,
    free_all,
    ns_per_cycle,
)
from bench.gpu.probes._device import Buffer, Launch
from bench.gpu.probes._errors import DeviceHangError
from bench.gpu.probes._philox import gumbel
from bench.gpu.probes._stats import distribution, summary
from bench.gpu.probes.waits import round_figures

SEED = 0x1234_5678_9ABC_DEF0
POSITION = 17
NOISES = {"none": 0, "float": 1, "double": 2}
SENTINEL = 0xFFFFFFFF


def token_params(ctx: Context, **values: int) -> bytes:
    """TokenParams with zeros for what a kernel does not use."""
    defaults = dict.fromkeys(
        ("logits", "table", "candidates", "chosen", "log", "totals", "host_to_device",
         "device_to_host", "vocabulary", "sets", "rounds", "noise", "unused"), 0,
    )  # fmt: skip
    defaults |= {
        "fault": ctx.fault.address, "watchdog_cycles": ctx.scale.watchdog_cycles,
        "seed": SEED, "position": POSITION,
    }  # fmt: skip
    return _structs.TOKEN.pack(**(defaults | values))


def test_logits(sets: int, vocabulary: int) -> npt.NDArray[np.float32]:
    """Random logits; set 0 has its maximum twice (the lower id must win), set 1 is all negative."""
    rng = np.random.default_rng(vocabulary)
    logits = rng.standard_normal((sets, vocabulary)).astype(np.float32) * np.float32(3)
    low, high = vocabulary // 3, vocabulary - 2
    logits[0, [low, high]] = logits[0].max() + np.float32(1)
    if sets > 1:
        logits[1] = -np.abs(logits[1]) - np.float32(1)
    return logits


test_logits.__test__ = False  # type: ignore[attr-defined]  # not a pytest case


def expected_tokens(
    logits: npt.NDArray[np.float32], rounds: int, noise: str
) -> tuple[list[int], list[float]]:
    """The arg-max of each round, and the gap to the runner-up: noise may flip a small one."""
    ids = np.arange(logits.shape[1], dtype=np.uint32)
    chosen, gaps = [], []
    for r in range(rounds):
        row = logits[r % len(logits)]
        if noise != "none":
            row = row + gumbel(SEED, ids, POSITION + r)
        top = np.partition(row, -2)[-2:]
        chosen.append(int(row.argmax()))
        gaps.append(float(top[1] - top[0]))
    return chosen, gaps


class Choose:
    """The arg-max kernel."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def measure(self, vocabulary: int, noise: str) -> Record:
        """ns per choice over all SMs."""
        ctx, device, scale = self._ctx, self._ctx.device, self._ctx.scale
        n, rounds = device.info.sm_count, scale.choose_rounds
        logits = test_logits(scale.logit_sets, vocabulary)
        per_block = -(-vocabulary // n)
        shape = Launch(n, 256, 256 // 32 * 8 + 16 + scale.logit_sets * per_block * 4)
        kernel = device.kernel("token.cu", "choose")
        ctx.fits(kernel, shape)
        candidates = device.allocate(3 * n * 8)
        device.fill(candidates, SENTINEL)
        b = {
            "logits": device.uploaded(logits),
            "candidates": candidates,
            "chosen": device.zeros(n * rounds * 4),
            "log": device.zeros(n * rounds * 4),
            "totals": device.zeros(n * 32),
        }
        try:
            ctx.clear_fault()
            addresses = {name: buffer.address for name, buffer in b.items()}
            params = token_params(
                ctx, vocabulary=vocabulary, sets=scale.logit_sets, rounds=rounds,
                noise=NOISES[noise], **addresses,
            )  # fmt: skip
            device.launch(kernel, shape, params)
            device.synchronize()
            ctx.check_fault()
            changed = self._check(b, logits, noise)
            totals = device.download(b["totals"], np.uint64, n * 4).reshape(n, 4)
            log = device.download(b["log"], np.uint32, n * rounds).reshape(n, rounds)
            figures = round_figures(totals, log, 0)
            return figures | {"choices_changed_by_float_noise": changed}
        finally:
            free_all(device, b.values())

    def _check(self, b: dict[str, Buffer], logits: npt.NDArray[np.float32], noise: str) -> int:
        n, rounds = self._ctx.device.info.sm_count, self._ctx.scale.choose_rounds
        got = self._ctx.device.download(b["chosen"], np.uint32, n * rounds).reshape(n, rounds)
        expect(bool((got == got[0]).all()), "blocks disagree about a token")
        checked = min(rounds, 64 if noise != "none" else rounds)  # NumPy's noise is slow
        expected, gaps = expected_tokens(logits, checked, noise)
        differ = [r for r in range(checked) if int(got[0][r]) != expected[r]]
        # Noise in double is off by at most one ulp of a sum below 64, float noise by its table's
        # error: a choice may only differ where the two best are that close.
        allowed = {"none": 0.0, "double": 2.0**-17, "float": 2.0**-15}[noise]
        bad = [r for r in differ if gaps[r] > allowed or noise == "none"]
        expect(not bad, f"round {bad[:1]}: expected token {[expected[r] for r in bad[:1]]}, got "
                        f"{[int(got[0][r]) for r in bad[:1]]}")  # fmt: skip
        return len(differ)


def measure_noise(ctx: Context, vocabulary: int, noise: str) -> Record:
    """Time of a table of noise over all SMs, and its error against the definition."""
    device = ctx.device
    table = device.allocate(vocabulary * 4)
    device.fill(table, SENTINEL)
    kernel = device.kernel("token.cu", "gumbel_table")
    params = token_params(ctx, table=table.address, vocabulary=vocabulary, noise=NOISES[noise])
    shape = Launch(device.info.sm_count, 256)
    times = ctx.time_ms(lambda: device.launch(kernel, shape, params), ctx.budget.repeats(20, 5))
    got = device.download(table, np.float32, vocabulary)
    device.free(table)
    expected = gumbel(SEED, np.arange(vocabulary, dtype=np.uint32), POSITION)
    expect(bool(np.isfinite(got).all()), "noise is not finite")
    error = np.abs(got.astype(np.float64) - expected)
    ulps = error / np.spacing(np.maximum(np.abs(expected), np.float32(2.0**-10)))
    # Double: the device's log may differ in its last place, which can flip one rounding. Float: two
    # logs of a few ulp each; the outer one turns the inner's relative error into an absolute one.
    limit = 1.0 if noise == "double" else 2.0**-20
    worst = (
        float(ulps.max()) if noise == "double" else float((error / (1 + np.abs(expected))).max())
    )
    expect(worst <= limit, f"noise in {noise}: expected an error up to {limit}, got {worst}")
    figures = summary([ms * 1e6 for ms in times])
    return figures | {"unit": "ns", "max_ulps": float(ulps.max()), "max_error": float(error.max())}


def poll_cost_ns(words: Any, loops: int = 20_000) -> float:
    """What one look at pinned memory costs the host loop itself."""
    begin = time.perf_counter_ns()
    for _ in range(loops):
        if words[0] == SENTINEL:
            break
    return (time.perf_counter_ns() - begin) / loops


class Ping:
    """A flag to the device and a token back, through mapped pinned memory."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def measure(self) -> Record:
        """ns of a trip device, host, device (as the device sees it), and as the host sees it."""
        ctx, device, rounds = self._ctx, self._ctx.device, self._ctx.scale.pings
        box = device.pinned(64)  # word 0: to the device; word 32: to the host, another cache line
        log, totals = device.zeros(rounds * 4), device.zeros(32)
        poll = poll_cost_ns(box.words)
        ctx.clear_fault()
        params = token_params(
            ctx, host_to_device=box.address, device_to_host=box.address + 128,
            log=log.address, totals=totals.address, rounds=rounds,
        )  # fmt: skip
        device.launch(device.kernel("token.cu", "host_ping"), Launch(1, 32), params)
        trips = self._play(box.words, rounds)
        device.synchronize()
        ctx.check_fault()
        spans = device.download(totals, np.uint64, 4).reshape(1, 4)
        scale = ns_per_cycle(spans)
        cycles = device.download(log, np.uint32, rounds)[: rounds - 1]
        free_all(device, (log, totals))
        settled = cycles[rounds // 10 :].astype(np.float64) * scale
        return distribution(settled) | {
            "unit": "ns",
            "host_view": distribution(np.array(trips[rounds // 10 :], dtype=np.float64)),
            "host_poll_ns": poll,
            "note": "round trip; the host side is a Python loop that costs host_poll_ns per look",
        }

    def _play(self, words: Any, rounds: int) -> Sequence[int]:
        trips, deadline = [], time.monotonic() + 20.0
        now = time.perf_counter_ns
        for r in range(1, rounds + 1):
            begin = now()
            words[0] = r
            spins = 0
            while words[32] != r:
                spins += 1
                if spins % 4096 == 0 and time.monotonic() > deadline:
                    raise DeviceHangError(f"the device did not answer ping {r} of {rounds}")
            trips.append(now() - begin)
        expect_equal("last answer", int(words[32]), rounds)
        return trips


class Token(Probe):
    """Choices, noise, pings."""

    name = "token"
    weight = 1.0

    def run(self, ctx: Context) -> None:
        """All three."""
        choose, ping = Choose(ctx), Ping(ctx)
        for vocabulary, noise in ctx.paced(list(product(ctx.scale.vocabularies, NOISES))):
            labels = {"vocabulary": vocabulary, "noise": noise}
            ctx.attempt("argmax", choose.measure, vocabulary, noise, **labels)
            if noise != "none":
                ctx.attempt("gumbel", measure_noise, ctx, vocabulary, noise, **labels)
        ctx.attempt("host_round_trip", ping.measure)
