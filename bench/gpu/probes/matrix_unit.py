"""Probe "matrix-unit": is what is published about the matrix unit's sums true of this one?

Random numbers, numbers of few bits whose sums cancel, and any bits at all: each sum is compared
with its prediction, bit for bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench.gpu._stage import CheckError
from bench.gpu.probes._context import Context
from bench.gpu.probes._kernels import MATRIX_UNIT
from monolane._results import Record
from monolane.cuda._device import Launch
from monolane.cuda._matrix_unit import FRACTIONS, PRODUCTS, sums

KINDS = ("normal", "few bits", "any bits", "small")
SUMS = 128  # of a tile
_THREADS = 256
_AT_ONCE = 4096  # tiles

Words = npt.NDArray[np.uint32]


def matrix_unit(ctx: Context, job: str) -> None:
    """Each kind of numbers, in both formats."""
    for dtype in FRACTIONS:
        for kind in KINDS:
            ctx.attempt("matrix_unit", compare, ctx, dtype, kind, dtype=dtype, numbers=kind)


def compare(ctx: Context, dtype: str, kind: str) -> Record:
    """How many sums were compared; CheckError with the first that is another."""
    rng = np.random.default_rng([list(FRACTIONS).index(dtype), KINDS.index(kind)])
    launch = Launch(ctx.device.info.sms, _THREADS)
    ctx.fits("matrix_unit.cu", "matrix_unit", launch)
    done = 0
    while done < ctx.scale.matrix_sums:
        a, b, c = numbers(rng, dtype, kind, _AT_ONCE if not ctx.scale.emulated else 16)
        tiles = len(a)
        with ctx.buffers(fragments=fragments(a, b, c), out=tiles * SUMS * 4) as buffers:
            ctx.run(
                "matrix_unit.cu", "matrix_unit", launch, MATRIX_UNIT, tiles=tiles,
                half=dtype == "float16", **buffers,
            )  # fmt: skip
            out = ctx.device.download(buffers["out"], np.uint32, tiles * SUMS)
        found = results(out.reshape(tiles, 4, 32))
        expected = predicted(dtype, a, b, c)
        wrong = np.argwhere(found != expected)
        if len(wrong):
            at = tuple(wrong[0])
            raise CheckError(
                f"{len(wrong)} of {found.size} sums are others than predicted; the first, of "
                f"{a[at[0], at[1]].tolist()} and {b[at[0], :, at[2]].tolist()} and {c[at]}: "
                f"expected {expected[at]:#010x}, got {found[at]:#010x}"
            )
        done += found.size
    return {"sums": done, "others": 0}


def numbers(
    rng: np.random.Generator, dtype: str, kind: str, tiles: int
) -> tuple[Words, Words, Words]:
    """Return bits of A [N, 16, k], B [N, k, 8] and the addend [N, 16, 8]."""
    shapes = (tiles, 16, PRODUCTS), (tiles, PRODUCTS, 8), (tiles, 16, 8)

    def below(limit: int, shape: tuple[int, ...]) -> Words:
        return rng.integers(0, limit, shape, np.uint64).astype(np.uint32)

    def some(shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        if kind == "normal":
            return rng.standard_normal(shape)
        return rng.integers(-3, 4, shape) * 2.0 ** rng.integers(-12, 3, shape)

    if kind == "any bits":
        return below(1 << 16, shapes[0]), below(1 << 16, shapes[1]), below(1 << 32, shapes[2])
    if kind == "small":  # subnormal numbers and those beside them, by any
        sign = below(2, shapes[0]) * np.uint32(1 << 15)
        small = below(2 << FRACTIONS[dtype], shapes[0]) | sign
        return small, below(1 << 16, shapes[1]), below(2 << 23, shapes[2])
    a, b = (_rounded(dtype, some(shape)) for shape in shapes[:2])
    return a, b, some(shapes[2]).astype(np.float32).view(np.uint32)


def _rounded(dtype: str, values: npt.NDArray[np.float64]) -> Words:
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    floats = values.astype(np.float32)
    return floats.view(np.uint16)[..., 1::2].astype(np.uint32)  # cut off: any number will do


def _places() -> tuple[npt.NDArray[np.int64], ...]:
    """Return of each lane and word of A and B the row and column of its lower half."""
    lane = np.arange(32)
    rows = np.stack([lane // 4 + i % 2 * 8 for i in range(4)])
    columns = np.stack([lane % 4 * 2 + i // 2 * 8 for i in range(4)])
    depths = np.stack([lane % 4 * 2 + i * 8 for i in range(2)])
    return rows, columns, depths, np.stack([lane // 4] * 2)


def fragments(a: Words, b: Words, c: Words) -> Words:
    """Return the words of a warp's lanes [N, 10, 32]: 4 of A, 2 of B, 4 of the addend."""
    rows, columns, depths, own = _places()
    low_a, high_a = a[:, rows, columns], a[:, rows, columns + 1]
    low_b, high_b = b[:, depths, own], b[:, depths + 1, own]
    lane = np.arange(32)
    addend = np.stack([c[:, lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] for i in range(4)], 1)
    return np.concatenate([low_a | high_a << 16, low_b | high_b << 16, addend], 1)


def results(out: Words) -> Words:
    """Return D [N, 16, 8] of the words that the lanes hold, [N, 4, 32]."""
    found = np.zeros((len(out), 16, 8), np.uint32)
    lane = np.arange(32)
    for i in range(4):
        found[:, lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] = out[:, i]
    return found


def predicted(dtype: str, a: Words, b: Words, c: Words) -> Words:
    """Return what is published of these sums, [N, 16, 8]."""
    shape = (*c.shape, PRODUCTS)
    each_a = np.broadcast_to(a[:, :, None], shape).reshape(-1, PRODUCTS)
    each_b = np.broadcast_to(b.transpose(0, 2, 1)[:, None], shape).reshape(-1, PRODUCTS)
    return sums(dtype, each_a, each_b, c.reshape(-1)).reshape(c.shape)
