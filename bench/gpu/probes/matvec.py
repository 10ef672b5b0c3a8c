"""Probe "matvec": can the arithmetic of one phase keep up with its stream of weights?

Two runs of the same kernel: with the weights resident in shared memory (the compute rate) and with
the weights streamed from memory (what a phase really takes). Their ratio per SM is the catch-up
ratio: how much faster than the stream a block works off what piled up during a wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.gpu._stage import NotMeasuredError, expect, expect_equal, summary
from bench.gpu.probes._context import Context, ns_per_cycle
from bench.gpu.probes._kernels import MATVEC, REPEAT, Buffer
from bench.gpu.probes._packing import (
    WARPS,
    PhaseLayout,
    activations_fma,
    activations_mma,
    pack,
    random_codes,
    unpack,
    values,
)
from monolane._results import Record
from monolane.cuda._device import Launch

THREADS = 32 * (WARPS + 1)
FMA_WIDTHS = (1, 4, 8)
TOKEN_TILES = (1, 2, 8)
POISON = 0xFFFFFFFF


@dataclass(frozen=True)
class Phase:
    """One kernel at one shape and width."""

    kind: str
    fma: bool
    rows: int
    columns: int
    width: int

    @property
    def layout(self) -> PhaseLayout:
        """Where its weights lie."""
        return PhaseLayout(self.kind, self.fma, self.rows, self.columns)

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        how = f"fma_{self.width}" if self.fma else f"mma_{self.token_tiles}"
        return f"matvec_{self.kind.upper()}_{how}"

    @property
    def token_tiles(self) -> int:
        """8-token tiles that the matrix instructions carry."""
        return next(t for t in TOKEN_TILES if t * 8 >= self.width)

    def labels(self) -> dict[str, object]:
        """How the record names it."""
        return {
            "weights": self.kind,
            "arithmetic": "fma" if self.fma else "mma.m16n8k16",
            "rows": self.rows,
            "columns": self.columns,
            "width": self.width,
        }


@dataclass(frozen=True)
class Split:
    """How a phase divides a block's shared memory."""

    slots: int
    x_period: int
    x_bytes: int
    partial_buffers: int
    shared: int


def split_for(phase: Phase, limit: int, wide_period: int, most_slots: int = 12) -> Split:
    """The largest ring beside activations and partial sums; NotMeasuredError without split."""
    layout = phase.layout
    tokens = phase.width if phase.fma else phase.token_tiles * 8
    element = 4 if phase.fma else 2
    period = phase.columns
    if tokens * period * element > 128 * 1024:
        period = wide_period
    x_bytes = tokens * period * element
    partial = layout.column_parts * layout.padded_rows * phase.width * 4
    buffers = 2 if partial <= 16 * 1024 else 1
    fixed = 16 + x_bytes + partial * buffers
    slots = min(most_slots, layout.steps, (limit - fixed) // (layout.slot_bytes + 16))
    if slots < 2:
        raise NotMeasuredError(
            f"activations and partial sums take {fixed} of {limit} bytes; no two slots fit beside"
        )
    return Split(slots, period, x_bytes, buffers, fixed + slots * (layout.slot_bytes + 16))


@dataclass(frozen=True)
class Operands:
    """Random weights and activations of a phase, on the host."""

    stream: npt.NDArray[np.uint8]
    row_scales: npt.NDArray[np.float32]
    x: npt.NDArray[np.float32]  # [width, period], exact in 16 bits
    x_device: npt.NDArray[Any]


def operands(phase: Phase, split: Split, seed: int) -> Operands:
    """Fresh random numbers for every phase; padded rows are random too."""
    rng = np.random.default_rng(seed)
    layout = phase.layout
    shape = (layout.padded_rows, layout.columns)
    codes = random_codes(phase.kind, shape, rng)
    scales = None
    if phase.kind == "int4":
        scales = rng.uniform(0.5, 1.5, (shape[0], shape[1] // 128)).astype(np.float32)
    row_scales = rng.uniform(0.5, 1.5, shape[0]).astype(np.float32)
    x, bits = _activations(phase.kind, phase.width, split.x_period, rng)
    if phase.fma:
        device: npt.NDArray[Any] = activations_fma(layout, x)
    else:
        padded = np.zeros((phase.token_tiles * 8, split.x_period), np.uint16)
        padded[: phase.width] = bits
        device = activations_mma(padded)
    return Operands(pack(layout, codes, scales), row_scales, x, device)


def _activations(
    kind: str, width: int, period: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint16]]:
    plain = rng.standard_normal((width, period)).astype(np.float32)
    if kind == "bf16":
        bits = (plain.view(np.uint32) >> 16).astype(np.uint16)
        return (bits.astype(np.uint32) << 16).view(np.float32), bits
    half = plain.astype(np.float16)  # f16 holds every e4m3, int8 and int4 weight exactly
    return half.astype(np.float32), half.view(np.uint16)


def reference(
    phase: Phase, stream: npt.NDArray[np.uint8], ops: Operands
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """[padded rows, width] in float64, and the sum of absolute products that bounds its error."""
    w = values(phase.kind, *unpack(phase.layout, stream))
    repeats = -(-phase.columns // ops.x.shape[1])
    x = np.tile(ops.x, (1, repeats))[:, : phase.columns].astype(np.float64)
    scale = ops.row_scales.astype(np.float64)[:, None]
    return (w @ x.T) * scale, (np.abs(w) @ np.abs(x).T) * np.abs(scale)


def tolerance(phase: Phase) -> float:
    """Error over the sum of absolute products.

    float32 loses at most one unit of 2^-24 per operation on the longest chain. The matrix unit adds
    16 products to the accumulator and cuts each at the largest one's last place: 17 cuts in the
    worst case, but with random signs the sums stay far below the absolute sum, so 8 leave a margin.
    """
    layout = phase.layout
    part = layout.columns // layout.column_parts
    tail = 5 + layout.column_parts + 2
    if phase.fma:
        return (part / 32 + tail) * 2.0**-24
    return (part / 16 * 8 + tail) * 2.0**-24


def resident_stream(layout: PhaseLayout, stream: npt.NDArray[np.uint8], slots: int) -> Any:
    """What a block sees when step s reads slot s % slots of the first `slots` steps."""
    steps = np.arange(layout.steps) % slots
    return stream.reshape(layout.steps, layout.slot_bytes)[steps].reshape(-1)


class Runner:
    """Runs phases on all SMs and checks every block's results."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        limit = min(ctx.scale.stream_weights, ctx.device.info.free_bytes // 4)
        self._weights = ctx.device.allocate(limit // 16 * 16)

    def measure(self, phase: Phase) -> Record:
        """Both runs, and their ratio."""
        if problem := phase.layout.problem():
            raise NotMeasuredError(problem)
        ctx = self._ctx
        split = split_for(phase, ctx.device.info.shared_bytes, ctx.scale.wide_x_period)
        ops = operands(phase, split, seed=hash_seed(phase))
        blocks = ctx.device.info.sms
        phases = self._weights.nbytes // blocks // phase.layout.phase_bytes
        phases = min(phases, ctx.scale.most_stream_phases)
        if phases < 2:
            raise NotMeasuredError("the weight buffer holds fewer than two phases per SM")
        self._spread(ops.stream, blocks * phases)
        resident = self._run(phase, split, ops, phases=ctx.scale.resident_phases, resident=True)
        stream = self._run(phase, split, ops, phases=phases, resident=False)
        return self._figures(phase, split, resident, stream)

    def _figures(self, phase: Phase, split: Split, resident: Record, stream: Record) -> Record:
        record: Record = summary(resident["rates"]) | {
            "unit": "bytes per ns and SM, resident",
            "streamed": summary(stream["rates"]),
            "gb_per_s": stream["gb_per_s"],
            "catch_up": float(np.median(resident["rates"]) / np.median(stream["rates"])),
            "us_per_phase_resident": resident["us_per_phase"],
            "us_per_phase_streamed": stream["us_per_phase"],
            "phase_bytes": phase.layout.phase_bytes,
            "padded_rows": phase.layout.padded_rows,
            "ring_slots": split.slots,
            "slot_bytes": phase.layout.slot_bytes,
            "max_error_over_tolerance": max(resident["error_ratio"], stream["error_ratio"]),
        }
        if split.x_period < phase.columns:
            record["note"] = (
                f"activations of width {phase.width} do not fit beside the ring: {split.x_period} "
                "columns of them are reused, their refill is not counted"
            )
        return record

    def _spread(self, stream: npt.NDArray[np.uint8], copies: int) -> None:
        ctx = self._ctx
        with ctx.buffers(pattern=stream) as b:
            ctx.run(
                "memory.cu", "repeat_pattern", Launch(ctx.device.info.sms * 8, 256), REPEAT,
                to=self._weights, vectors=stream.nbytes // 16 * copies,
                pattern_vectors=stream.nbytes // 16, **b,
            )  # fmt: skip

    def _run(
        self, phase: Phase, split: Split, ops: Operands, phases: int, resident: bool
    ) -> Record:
        ctx, device, layout = self._ctx, self._ctx.device, phase.layout
        blocks = device.info.sms
        shape = Launch(blocks, THREADS, split.shared)
        ctx.fits("matvec.cu", phase.kernel, shape)
        outputs = blocks * layout.padded_rows * phase.width
        with ctx.buffers(
            x=ops.x_device, row_scales=ops.row_scales, results=outputs * 4,
            check_words=outputs * 4, totals=blocks * 32,
        ) as b:  # fmt: skip
            launch = ctx.prepare(
                "matvec.cu", phase.kernel, shape, MATVEC, weights=self._weights,
                run_bytes=layout.phase_bytes * (1 if resident else phases),
                rows=layout.padded_rows, columns=layout.columns, width=phase.width,
                row_tiles=layout.row_tiles, column_parts=layout.column_parts, phases=phases,
                untimed_phases=1, partial_buffers=split.partial_buffers,
                x_vectors=split.x_bytes // 16, x_period=split.x_period, slots=split.slots,
                slot_bytes=layout.slot_bytes, resident=int(resident), **b,
            )  # fmt: skip

            def before() -> None:
                ctx.clear_fault()
                device.fill(b["results"], POISON)
                device.fill(b["check_words"], 0)
                device.fill(b["totals"], 0)

            repeats = ctx.budget.repeats(min(3, ctx.scale.repeats), 1)
            times = ctx.time_ms(launch, repeats, before)
            ctx.check_fault()
            error = self._check(phase, split, ops, b, phases, resident)
            return self._rates(phase, b, phases, times, resident) | {"error_ratio": error}

    def _rates(
        self, phase: Phase, b: dict[str, Buffer], phases: int, times: list[float], resident: bool
    ) -> Record:
        blocks = self._ctx.device.info.sms
        totals = self._ctx.table(b["totals"], np.uint64, blocks, 4)
        expect_equal("phases timed", set(totals[:, 2].tolist()), {phases - 1})
        phase_bytes = phase.layout.phase_bytes
        if resident:
            ns = totals[:, 0].astype(np.float64) * ns_per_cycle(totals) / (phases - 1)
            return {"rates": phase_bytes / ns, "us_per_phase": float(np.median(ns)) / 1e3}
        seconds = np.array(times) / 1e3
        total = phase_bytes * phases * blocks
        return {
            "rates": total / blocks / seconds / 1e9,
            "gb_per_s": float(np.median(total / seconds / 1e9)),
            "us_per_phase": float(np.median(seconds)) * 1e6 / phases,
        }

    def _check(
        self, phase: Phase, split: Split, ops: Operands, b: dict[str, Buffer], phases: int,
        resident: bool,
    ) -> float:  # fmt: skip
        ctx, blocks, layout = self._ctx, self._ctx.device.info.sms, phase.layout
        count = layout.padded_rows * phase.width
        got = ctx.table(b["results"], np.float32, blocks, count)
        words = ctx.table(b["check_words"], np.uint32, blocks, count)
        stream = resident_stream(layout, ops.stream, split.slots) if resident else ops.stream
        expected, absolute = (a.reshape(-1) for a in reference(phase, stream, ops))
        ratio = np.abs(got[0] - expected) / (absolute * tolerance(phase))
        expect(bool(np.isfinite(got).all()), "a result is not finite (or was never written)")
        expect(
            float(ratio.max()) <= 1.0,
            f"result {int(ratio.argmax())}: off by {float(ratio.max()):.3g} tolerances; expected "
            f"{expected[ratio.argmax()]:.6g}, got {got[0][ratio.argmax()]:.6g}",
        )
        bits = got.view(np.uint32)
        expect(bool((bits == bits[0]).all()), "blocks with equal weights got different results")
        expect(
            bool((words == bits * np.uint32(phases)).all()),
            f"some of the {phases} phases got another result than the last one",
        )
        return float(ratio.max())


def hash_seed(phase: Phase) -> int:
    """A seed per phase, the same in every run."""
    kind = sorted(("bf16", "fp8", "int8", "int4")).index(phase.kind)
    return ((phase.rows * 8192 + phase.columns) * 128 + phase.width) * 8 + kind * 2 + phase.fma


def matvec(ctx: Context, job: str) -> None:
    """All weights, shapes and widths; says which combinations make no sense."""
    runner = Runner(ctx)
    kinds = ("bf16", "fp8", "int8", "int4")
    combinations = list(product(ctx.scale.phase_shapes, ctx.scale.widths, kinds))
    for (rows, columns), width, kind in ctx.paced(combinations):
        for fma in (True, False):
            phase = Phase(kind, fma, rows, columns, width)
            if fma and kind == "int4":
                why = "int4 is decoded as pre-shuffled fragments only: an FMA form would spend "
                why += "more issue slots on unpacking than the stream leaves"
                ctx.skip("matvec", why, **phase.labels())
            elif fma and width not in FMA_WIDTHS:
                why = f"4 rows x {width} accumulators per thread: that is what mma is for"
                ctx.skip("matvec", why, **phase.labels())
            else:
                ctx.attempt("matvec", runner.measure, phase, **phase.labels())
