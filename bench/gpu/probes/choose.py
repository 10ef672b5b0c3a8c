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

from bench.gpu._stage import distribution, expect, expect_equal, summary
from bench.gpu.probes import _device
from bench.gpu.probes._context import Context, ns_per_cycle, sentinels
from bench.gpu.probes._kernels import TOKEN, Buffer
from bench.gpu.probes.waits import round_figures
from monolane._results import Record
from monolane.cuda._device import Launch
from monolane.errors import BackendError
from monolane.reference import gumbel_noise

SEED = 0x1234_5678_9ABC_DEF0
POSITION = 17
NOISES = {"none": 0, "float": 1, "double": 2}


def token_values(ctx: Context, **values: int | Buffer) -> dict[str, int | Buffer]:
    """The fields of TokenParams, with zeros for what a kernel does not use."""
    filled_in = {"fault", "watchdog_cycles"}
    unused: dict[str, int | Buffer] = dict.fromkeys(TOKEN.names - filled_in, 0)
    return unused | {"seed": SEED, "position": POSITION} | values


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
            row = row + gumbel_noise(SEED, POSITION + r, ids)
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
        ctx, scale = self._ctx, self._ctx.scale
        n, rounds, sets = ctx.device.info.sms, scale.choose_rounds, scale.logit_sets
        logits = test_logits(sets, vocabulary)
        per_block = -(-vocabulary // n)
        shape = Launch(n, 256, 256 // 32 * 8 + 16 + sets * per_block * 4)
        ctx.fits("token.cu", "choose", shape)
        with ctx.buffers(
            logits=logits, candidates=sentinels(3 * n * 2), chosen=n * rounds * 4,
            log=n * rounds * 4, totals=n * 32,
        ) as b:  # fmt: skip
            values = token_values(
                ctx, vocabulary=vocabulary, sets=sets, rounds=rounds, noise=NOISES[noise], **b
            )
            ctx.run("token.cu", "choose", shape, TOKEN, **values)
            changed = self._check(b, logits, noise)
            figures = round_figures(ctx, b, n, rounds)
            return figures | {"choices_changed_by_float_noise": changed}

    def _check(self, b: dict[str, Buffer], logits: npt.NDArray[np.float32], noise: str) -> int:
        n, rounds = self._ctx.device.info.sms, self._ctx.scale.choose_rounds
        got = self._ctx.table(b["chosen"], np.uint32, n, rounds)
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
    shape = Launch(ctx.device.info.sms, 256)
    with ctx.buffers(table=sentinels(vocabulary)) as b:
        values = token_values(ctx, vocabulary=vocabulary, noise=NOISES[noise], **b)
        launch = ctx.prepare("token.cu", "gumbel_table", shape, TOKEN, **values)
        times = ctx.time_ms(launch, ctx.budget.repeats(20, 5))
        got = ctx.device.download(b["table"], np.float32, vocabulary)
    expected = gumbel_noise(SEED, POSITION, np.arange(vocabulary, dtype=np.uint32))
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
        if words[0] == SEED & 0xFFFFFFFF:
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
        poll = poll_cost_ns(box.words)
        with ctx.buffers(log=rounds * 4, totals=32) as b:
            values = token_values(
                ctx,
                host_to_device=box.address,
                device_to_host=box.address + 128,
                rounds=rounds,
                **b,
            )
            launch = ctx.prepare("token.cu", "host_ping", Launch(1, 32), TOKEN, **values)
            ctx.clear_fault()
            launch()
            trips = self._play(box.words, rounds)
            device.synchronize()
            ctx.check_fault()
            scale = ns_per_cycle(ctx.table(b["totals"], np.uint64, 1, 4))
            cycles = device.download(b["log"], np.uint32, rounds)[: rounds - 1]
        settled = cycles[rounds // 10 :].astype(np.float64) * scale
        return distribution(settled) | {
            "unit": "ns",
            "host_view": distribution(np.array(trips[rounds // 10 :], dtype=np.float64)),
            "host_poll_ns": poll,
            "note": "round trip; the host side is a Python loop that costs host_poll_ns per look",
        }

    def _play(self, words: Any, rounds: int) -> Sequence[int]:
        trips, deadline = [], time.monotonic() + _device.PATIENCE
        now = time.perf_counter_ns
        for r in range(1, rounds + 1):
            begin = now()
            words[0] = r
            spins = 0
            while words[32] != r:
                spins += 1
                if spins % 4096 == 0 and time.monotonic() > deadline:
                    raise BackendError(f"the device did not answer ping {r} of {rounds}")
            trips.append(now() - begin)
        expect_equal("last answer", int(words[32]), rounds)
        return trips


def token(ctx: Context, job: str) -> None:
    """Choices, noise, pings."""
    choose, ping = Choose(ctx), Ping(ctx)
    for vocabulary, noise in ctx.paced(list(product(ctx.scale.vocabularies, NOISES))):
        labels = {"vocabulary": vocabulary, "noise": noise}
        ctx.attempt("argmax", choose.measure, vocabulary, noise, **labels)
        if noise != "none":
            ctx.attempt("gumbel", measure_noise, ctx, vocabulary, noise, **labels)
    ctx.attempt("host_round_trip", ping.measure)
