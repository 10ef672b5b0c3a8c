"""What the portable kernels make of seeded inputs, written for csrc/tests/kernels_test.cpp.

The file is a row of blobs, each an int64 length and as many bytes, all little-endian: the number of
cases, then of each its operation, its sizes (int64), the number of its inputs, each input, and
what comes out. The sizes of an operation, and its inputs, stand beside it in kernels_test.cpp.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from monolane._core import kernels
from monolane.model import FORMATS

from . import test_blocks, test_kernels
from .activations import heavy_tailed
from .blocks import BLOCKS, BYTE_SCALES, HALVES, NAMES, block_of

NUMBERS = {row.short: row.code for row in FORMATS.values()}
ACTIVATIONS = ("f32", "bf16", "i8")
NO_SCALES = np.zeros(0, np.uint16)
GATES = ("silu_times", "sigmoid_times", "gelu_tanh_times", "clamped_swiglu")
PLAIN = ("f32", "bf16", "f16")


class Case(NamedTuple):
    operation: str
    sizes: Sequence[int]
    inputs: Sequence[np.ndarray]
    expected: np.ndarray


def write_cases(path: Path) -> int:
    """Write all cases, and return how many there are."""
    found = list(cases())
    with path.open("wb") as file:

        def put(content: bytes) -> None:
            file.write(len(content).to_bytes(8, "little") + content)

        def put_number(number: int) -> None:
            put(number.to_bytes(8, "little"))

        put_number(len(found))
        for case in found:
            put(case.operation.encode())
            put(np.array(case.sizes, "<i8").tobytes())
            put_number(len(case.inputs))
            for content in (*case.inputs, case.expected):
                put(np.ascontiguousarray(content).tobytes())
    return len(found)


def cases() -> Iterator[Case]:
    rng = np.random.default_rng(0)
    yield from plain_products(rng)
    yield from products_of_codes(rng)
    yield from extremes()
    yield from attention(rng)
    yield from conversions(rng)
    yield from pointwise(rng)


def product(fmt: str, values: Any, scales: Any, activation: str, x: np.ndarray) -> Case:
    rows, (tokens, cols) = len(values), x.shape
    packed, panels, apart = fmt, values, scales
    if activation == "i8":
        (packed, panels), apart = kernels.repack(fmt, values, scales, cols), None
    y = kernels.multiply("portable", packed, panels, apart, activation, x, 0, rows)
    sizes = (NUMBERS[fmt], ACTIVATIONS.index(activation), rows, cols, tokens)
    return Case("multiply", sizes, (values, NO_SCALES if scales is None else scales, x), y)


def plain_products(rng: np.random.Generator) -> Iterator[Case]:
    """Ends of rows, and columns that are cut into blocks: 6 tokens of 2100 floats are 50 KB."""
    for fmt, activation in test_kernels.PAIRS:
        for rows, cols, tokens in ((37, 40, 20), (5, 1001, 3), (34, 2100, 13)):
            if activation == "i8":
                cols = cols // 32 * 32
            values, scales, _ = test_kernels.weights(rng, fmt, rows, cols)
            x = rng.standard_normal((tokens, cols)).astype(np.float32)
            yield product(fmt, values, scales, activation, x)


def products_of_codes(rng: np.random.Generator) -> Iterator[Case]:
    """Two and a third panels; columns that end amid a record, or amid a block of tiles."""
    for name in BLOCKS:
        for cols in (
            cols for cols in (32, 96, 160, 256, 576, 768) if cols % block_of(name)[0] == 0
        ):
            blocks = test_blocks.random_blocks(rng, name, 37, cols)
            x = heavy_tailed(rng, 21, cols)
            x[3, :32] = 0  # a group without a scale
            yield product(name, blocks, None, "i8", x)


def extremes() -> Iterator[Case]:
    """Codes and activations at either end, in every combination: a sum that saturates differs."""
    x = np.tile(np.array([[127.0], [-127.0], [-127.0]], np.float32), (4, 256))
    for name in NAMES:
        for byte in (0x00, 0xFF, 0x80, 0x7F):
            blocks = test_blocks.random_blocks(np.random.default_rng(1), name, 2, 256)
            columns, size = block_of(name)
            each = blocks.reshape(2, 256 // columns, size)
            scales = [at + i for at in HALVES[name] for i in (0, 1)]
            if name in BYTE_SCALES:
                scales = list(range(size))[BYTE_SCALES[name]]
            elif name == "iq1_m":  # its float16 is spread over those of groups
                scales = list(range(48, 56))
            codes = np.setdiff1d(np.arange(size), scales)
            each[..., codes] = byte
            yield product(name, blocks, None, "i8", x)
    every_exponent = np.empty((256, 17), np.uint8)
    every_exponent[:, 0] = np.arange(256)
    every_exponent[:, 1:] = np.arange(16) * 17
    x = np.eye(32, dtype=np.float32) * 127 * 2.0**-10
    yield product("mxfp4", every_exponent, None, "i8", x)


def attention(rng: np.random.Generator) -> Iterator[Case]:
    """One token's heads and a prompt's, whose tokens see different keys; a NaN among the keys."""
    for kv in ("f32", "bf16", "f16", "q8_0", "q4_0"):
        for heads, head_dim, counts in (
            (1, 64, (1,)),
            (7, 96, (37,)),
            (4, 128, (300,)),
            (3, 192 if "_" in kv else 200, (30, 31, 32, 33, 34)),
            (1, 32 if "_" in kv else 20, tuple(range(9, 30))),
        ):
            keys = max(counts)
            q = rng.standard_normal((len(counts) * heads, head_dim)).astype(np.float32)
            rows = rng.standard_normal((2, keys, head_dim)).astype(np.float32)
            if heads == 7:
                rows[0, 11, 5] = np.nan
            stored = [np.stack([kernels.store_kv("portable", r, kv) for r in part])
                      for part in rows]  # fmt: skip
            out = kernels.attend("portable", q, kv, *stored, 0.125, list(counts))
            yield Case("attend", (NUMBERS[kv], head_dim, heads, keys, *counts), (q, *stored), out)


def conversions(rng: np.random.Generator) -> Iterator[Case]:
    x = (rng.standard_normal((8, 288)) * 0.03).astype(np.float32)
    for source in PLAIN:
        stored = test_kernels.as_bytes(x.astype(test_kernels.DTYPES[source]))
        for to in ("i8", "i4"):
            codes, scales = kernels.quantize(to, source, stored)
            both = np.concatenate([codes.reshape(-1), scales.reshape(-1).view(np.uint8)])
            yield Case("quantize", (NUMBERS[to], NUMBERS[source], 8, 288), (stored,), both)
    for kv in (*PLAIN, "q8_0", "q4_0"):
        row = x.reshape(-1)
        yield Case("store_kv", (NUMBERS[kv],), (row,), kernels.store_kv("portable", row, kv))
    halves = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(1, -1)
    for fmt in ("bf16", "f16"):
        yield widened(fmt, halves, None, 65536)
    for fmt in ("i8", "i4"):
        codes, scales = kernels.quantize(fmt, "f32", test_kernels.as_bytes(x))
        yield widened(fmt, codes, scales, 288)
    for name in NAMES:
        yield widened(name, test_blocks.random_blocks(rng, name, 3, 768), None, 768)


def widened(fmt: str, values: Any, scales: Any, cols: int) -> Case:
    out = [kernels.widen("portable", fmt, values, scales, cols, r) for r in range(len(values))]
    inputs = (values, NO_SCALES if scales is None else scales)
    return Case("widen", (NUMBERS[fmt], len(values), cols), inputs, np.stack(out))


def pointwise(rng: np.random.Generator) -> Iterator[Case]:
    x = rng.standard_normal((3, 999)).astype(np.float32)
    scale = rng.standard_normal(999).astype(np.float32)
    yield Case("rms_norm", (3,), (x, scale), kernels.rms_norm("portable", x, scale, 1e-5))
    gate = rng.uniform(-90, 90, 1003).astype(np.float32)
    up = (rng.standard_normal(1003) * 5).astype(np.float32)
    gate[[5, 400]] = np.nan, np.inf
    up[[7, 401]] = np.nan, -np.inf
    for name in GATES:
        yield Case(name, (), (gate, up), getattr(kernels, name)("portable", gate, up))
    yield Case("add", (), (gate, up), kernels.add("portable", gate, up))
