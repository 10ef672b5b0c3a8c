"""The CPU kernels, every instruction set of this machine forced in turn.

Two kinds of proof: bits (a result depends on its own row and token alone) and numbers (against
float64, within bounds derived next to each test). u is float32's unit roundoff, 2^-24; a sum of n
terms in any order of rounding errs by at most gamma(n) = n u / (1 - n u) times the sum of sizes.
"""

import itertools
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane._core import kernels

from .activations import heavy_tailed
from .activations import rounded as rounded_to_8_bits

ISAS = kernels.supported()
LANES = {"portable": 4, "neon": 4, "avx2": 8, "avx512": 16, "avx512bf16": 16, "amx": 16}
LANES |= {"tiles_portable": 4, "tiles_avx512": 16, "neon_dot": 4, "neon_i8mm": 4}
DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
PAIRS = [
    ("f32", "f32"),
    ("bf16", "f32"),
    ("f16", "f32"),
    ("bf16", "bf16"),
    ("i8", "i8"),
    ("i4", "i8"),
]
U = 2.0**-24
every_isa = pytest.mark.parametrize("isa", ISAS)


def gamma(n):
    return n * U / (1 - n * U)


def multiply(isa, fmt, values, scales, activation, x, begin, end):
    """Products with rows as a file has them: codes are brought into panels."""
    if scales is not None:
        fmt, values = kernels.repack(fmt, values, scales, x.shape[1])
        scales = None
    return kernels.multiply(isa, fmt, values, scales, activation, x, begin, end)


def as_bytes(x):
    return np.ascontiguousarray(x).view(np.uint8).reshape(x.shape[0], -1)


def weights(rng, fmt, rows, cols):
    """Random rows: bytes, scales, and what they mean in float64."""
    plain = (rng.standard_normal((rows, cols)) * 0.05).astype(np.float32)
    if fmt in DTYPES:
        stored = plain.astype(DTYPES[fmt])
        return as_bytes(stored), None, stored.astype(np.float64)
    values, scales = kernels.quantize(fmt, "f32", as_bytes(plain))
    return values, scales, meaning(fmt, values, scales)


def codes(fmt, values):
    if fmt == "i8":
        return values.view(np.int8)
    groups = values.reshape(len(values), -1, 16)
    both = np.concatenate([groups & 15, groups >> 4], axis=-1).astype(np.int8) - 8
    return both.reshape(len(values), -1)


def meaning(fmt, values, scales):
    scale = scales.view(np.float16).astype(np.float64)
    return codes(fmt, values) * np.repeat(scale, 32, axis=1)


def rounded(x, activation):
    """What activations become before they meet the weights, in float64."""
    if activation == "f32":
        return x.astype(np.float64)
    if activation == "bf16":
        return x.astype(ml_dtypes.bfloat16).astype(np.float64)
    return rounded_to_8_bits(x)


def tokens_for(rng, activation, width, cols):
    if activation == "i8":
        return heavy_tailed(rng, width, cols)
    return rng.standard_normal((width, cols)).astype(np.float32)


@st.composite
def cases(draw, multiple):
    cols = draw(
        st.sampled_from([24, 40, 96, 384, 1000, 3072, 5000])
        if multiple == 1
        else st.sampled_from([32, 96, 160, 384, 3072, 4128])
    )
    rows = draw(st.integers(1, 40))
    width = draw(st.integers(1, 96))
    row_cuts = draw(st.lists(st.integers(0, rows), max_size=3))
    token_cuts = draw(st.lists(st.integers(0, width), max_size=3))
    return cols, rows, width, row_cuts, token_cuts, draw(st.integers(0, 2**32 - 1))


def pieces(cuts, end):
    edges = sorted({0, end, *cuts})
    return list(itertools.pairwise(edges))


@every_isa
@pytest.mark.parametrize(("fmt", "activation"), PAIRS)
def test_bits_depend_on_row_and_token_alone(isa, fmt, activation):
    @settings(max_examples=20, deadline=None, database=None)
    @given(case=cases(32 if fmt in ("i8", "i4") else 1))
    def check(case):
        cols, rows, width, row_cuts, token_cuts, seed = case
        rng = np.random.default_rng(seed)
        values, scales, _ = weights(rng, fmt, rows, cols)
        x = tokens_for(rng, activation, width, cols)

        def run(tokens, begin, end):
            return multiply(isa, fmt, values, scales, activation, tokens, begin, end)

        whole = run(x, 0, rows)
        for first, last in pieces(token_cuts, width):
            for begin, end in pieces(row_cuts, rows):
                part = run(np.ascontiguousarray(x[first:last]), begin, end)
                assert np.array_equal(part, whole[first:last, begin:end])
        for t in range(width):  # width 1 has a tile of its own
            assert np.array_equal(run(x[t : t + 1], 0, rows)[0], whole[t])
        for r in range(rows):
            assert np.array_equal(run(x, r, r + 1)[:, 0], whole[:, r])

    check()


@every_isa
@pytest.mark.parametrize(("fmt", "activation"), PAIRS)
def test_bits_where_columns_are_cut_into_blocks(isa, fmt, activation):
    # 4128 columns: up to three blocks, the last with a tail; 70 rows: three blocks, one odd. Every
    # width of a verification, and of prefill one on each side of a tile.
    rng = np.random.default_rng(7)
    values, scales, _ = weights(rng, fmt, 70, 4128)
    x = tokens_for(rng, activation, 64, 4128)
    alone = [multiply(isa, fmt, values, scales, activation, x[t : t + 1], 0, 70)[0]
             for t in range(13)]  # fmt: skip
    whole = multiply(isa, fmt, values, scales, activation, x, 0, 70)
    assert np.array_equal(whole[:13], alone)
    for width in range(2, 14):
        part = multiply(isa, fmt, values, scales, activation, x[:width].copy(), 0, 70)
        assert np.array_equal(part, whole[:width])
        odd = multiply(isa, fmt, values, scales, activation, x[:width].copy(), 3, 68)
        assert np.array_equal(odd, whole[:width, 3:68])


@every_isa
@pytest.mark.parametrize(("fmt", "activation"), PAIRS)
@pytest.mark.parametrize("cols", [32, 96, 384, 3072])
def test_products(isa, fmt, activation, cols):
    # A lane adds cols / lanes terms, the tree log2(lanes) more; one more rounding for a product
    # that is not fused. Pairs of bfloat16: 2 additions for every 32 columns and lane, cols / 16.
    # Integers: exact within a group of 32 columns, whose sums are then added one after the other;
    # the product of the scales, the fused addition, and the scales' own float32 rounding
    # (x * factor may tie the other way, but `rounded` repeats it bit by bit).
    rng = np.random.default_rng(cols)
    values, scales, w = weights(rng, fmt, 17, cols)
    x = tokens_for(rng, activation, 9, cols)
    exact = rounded(x, activation)
    y = multiply(isa, fmt, values, scales, activation, x, 0, 17)
    lanes = LANES[isa]
    chain = cols // 32 if activation == "i8" else math.ceil(cols / lanes) + math.log2(lanes)
    bound = gamma(chain + 3) * (np.abs(exact) @ np.abs(w).T)
    assert np.all(np.abs(y - exact @ w.T) <= bound)


@every_isa
def test_activations_become_the_nearest_codes(isa):
    # Token t's largest number, 127 or -127, is in column t, so its scale is 1; the others end in
    # one half, which goes to the even side. Row r is 1 in column r alone: products are codes.
    rng = np.random.default_rng(11)
    x = (rng.integers(-126, 126, (32, 32)) + 0.5).astype(np.float32)
    np.fill_diagonal(x, np.where(np.arange(32) % 2 == 0, 127, -127))
    values = np.eye(32, dtype=np.int8).view(np.uint8)
    scales = np.ones((32, 1), np.float16).view(np.uint16)
    assert np.array_equal(multiply(isa, "i8", values, scales, "i8", x, 0, 32), np.rint(x))
    for bad in (np.nan, -np.nan, np.inf):  # anywhere in a group: none of its products is a number
        np.fill_diagonal(x, bad)
        assert np.isnan(multiply(isa, "i8", values, scales, "i8", x, 0, 32)).all()


@every_isa
def test_integer_extremes_do_not_saturate(isa):
    # All codes at the ends, in every combination of signs: sums are exact, so the answer is.
    for fmt, low, high in [("i8", 0x80, 0x7F), ("i4", 0x00, 0xFF)]:
        size = 384 if fmt == "i8" else 192
        values = np.array([[low] * size, [high] * size], np.uint8)
        scales = np.full((2, 12), np.float16(1).view(np.uint16))
        x = np.stack([np.full(384, 127.0), np.full(384, -127.0)]).astype(np.float32)
        y = multiply(isa, fmt, values, scales, "i8", x, 0, 2)
        assert np.array_equal(y, x @ codes(fmt, values).astype(np.float32).T)


@every_isa
def test_zero_and_tiny_groups_quantise_to_zero(isa):
    rng = np.random.default_rng(0)
    values, scales, _ = weights(rng, "i8", 3, 64)
    x = np.zeros((2, 64), np.float32)
    x[1] = 1e-38
    assert not multiply(isa, "i8", values, scales, "i8", x, 0, 3).any()


@every_isa
def test_bf16_activations_round_to_nearest_even(isa):
    # 1 + 2^-8 lies between 1 and 1 + 2^-7: to the even 1; 1 + 3 * 2^-8 to 1 + 2^-6.
    x = np.array([[1 + 2**-8, 1 + 3 * 2**-8]], np.float32)
    w = as_bytes(np.eye(2, dtype=ml_dtypes.bfloat16))
    y = multiply(isa, "bf16", w, None, "bf16", x, 0, 2)
    assert y.tolist() == [[1.0, 1 + 2**-6]]


@every_isa
@pytest.mark.parametrize("cols", [1, 24, 96, 3072])
def test_rms_norm(isa, cols):
    # The sum errs by (cols / (4 lanes) + 3 lanes of tail + 7) u, halved by the root; the mean, the
    # root, the quotient and two products add five u.
    rng = np.random.default_rng(cols)
    x = rng.standard_normal((3, cols)).astype(np.float32)
    scale = rng.standard_normal(cols).astype(np.float32)
    exact = x.astype(np.float64)
    exact /= np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5)
    exact *= scale
    out = kernels.rms_norm(isa, x, scale, 1e-5)
    bound = gamma(0.5 * (cols / (4 * LANES[isa]) + 10) + 6) * np.abs(exact)
    assert np.all(np.abs(out - exact) <= bound)
    assert np.array_equal(kernels.rms_norm(isa, x[1:2], scale, 1e-5), out[1:2])


@every_isa
@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000])
def test_silu_times(isa, count):
    # exp errs by 2 ulp = 4 u, and its share of 1 + exp is at most all of it; the sum, the quotient
    # and the product add 3 u. Below -88.7 exp(-x) is inf and the result 0: off by under 3e-37.
    rng = np.random.default_rng(count)
    gate = rng.uniform(-90, 90, count).astype(np.float32)
    up = rng.standard_normal(count).astype(np.float32)
    exact = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) * up
    out = kernels.silu_times(isa, gate, up)
    tiny = 3e-37 * np.abs(up) + 2.0**-149
    assert np.all(np.abs(out - exact) <= gamma(7) * np.abs(exact) + tiny)


@every_isa
@pytest.mark.parametrize("count", [1, 15, 17, 1000])
def test_sigmoid_times(isa, count):
    # As silu_times, with one rounding less.
    rng = np.random.default_rng(count)
    gate = rng.uniform(-90, 90, count).astype(np.float32)
    up = rng.standard_normal(count).astype(np.float32)
    exact = up / (1 + np.exp(-gate.astype(np.float64)))
    out = kernels.sigmoid_times(isa, gate, up)
    tiny = 3e-39 * np.abs(up) + 2.0**-149
    assert np.all(np.abs(out - exact) <= gamma(7) * np.abs(exact) + tiny)


@every_isa
@pytest.mark.parametrize("fmt", ["bf16", "f16"])
def test_widen_is_exact_for_every_half(isa, fmt):
    halves = np.arange(65536, dtype=np.uint16).view(DTYPES[fmt])[None]
    out = kernels.widen(isa, fmt, as_bytes(halves), None, 65536, 0)
    assert np.array_equal(out, halves[0].astype(np.float32), equal_nan=True)


@every_isa
@pytest.mark.parametrize("fmt", ["f32", "bf16", "f16", "i8", "i4"])
def test_widen_reads_one_row(isa, fmt):
    values, scales, w = weights(np.random.default_rng(5), fmt, 3, 96)
    for row in range(3):
        out = kernels.widen(isa, fmt, values, scales, 96, row)
        assert np.array_equal(out, w[row].astype(np.float32))  # int8 times float16: exact


@every_isa
def test_add(isa):
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((2, 37)).astype(np.float32)
    assert np.array_equal(kernels.add(isa, a, b), a + b)


@every_isa
def test_read_reads_everything(isa):
    x = np.ones((2, 1024), np.float32)
    assert kernels.read(isa, as_bytes(x)) == 2048.0


@every_isa
def test_multiplying_registers_does_what_it_counts(isa):
    """A sum of elements that halve and gain one each round: of few rounds, and of many, 2 each."""
    one, few = kernels.multiply_registers(isa, 1), kernels.multiply_registers(isa, 3)
    many = kernels.multiply_registers(isa, 100)
    chains, elements = 12, one[0] // 24
    assert elements in (4, 8, 16)
    assert (few[0], many[0]) == (3 * one[0], 100 * one[0])
    assert one[1] == elements * sum(i / 2 + 1 for i in range(chains))
    assert few[1] == elements * sum(i / 8 + 1.75 for i in range(chains))
    assert many[1] == elements * 2 * chains
    with pytest.raises(ValueError, match="expected one round or more, got 0"):
        kernels.multiply_registers(isa, 0)


@pytest.mark.parametrize("source", ["f32", "bf16", "f16"])
def test_int8_codes_are_nearest(source):
    # Half a step, and a little more for the largest: float16 may round the scale down by 2^-11 of
    # itself, which leaves 127 steps short by 0.06 of one.
    rng = np.random.default_rng(7)
    stored = (rng.standard_normal((8, 256)) * 0.03).astype(DTYPES[source])
    values, scales = kernels.quantize("i8", source, as_bytes(stored))
    step = np.repeat(scales.view(np.float16).astype(np.float64), 32, axis=1)
    miss = np.abs(meaning("i8", values, scales) - stored.astype(np.float64))
    assert np.all(miss <= 0.5000001 * step)


def test_int4_takes_the_better_scale():
    rng = np.random.default_rng(8)
    x = (rng.standard_normal((64, 256)) * 0.03).astype(np.float32)
    values, scales = kernels.quantize("i4", "f32", as_bytes(x))
    groups = x.reshape(64, -1, 32).astype(np.float64)
    found = ((meaning("i4", values, scales) - x) ** 2).reshape(groups.shape).sum(axis=-1)

    def error(scale):
        step = scale.astype(np.float16).astype(np.float64)
        return ((np.clip(np.rint(groups / step), -8, 7) * step - groups) ** 2).sum(axis=-1)

    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=-1)[..., None], axis=-1)
    even, skewed = error(np.abs(largest) / 7), error(largest / -8)
    assert np.allclose(found, np.minimum(even, skewed), rtol=1e-5, atol=0)
    assert (skewed < even).any()
    assert (even < skewed).any()


def test_zeros_quantise_to_zeros():
    zeros = np.zeros((1, 32), np.float32)
    for fmt in ("i8", "i4"):
        values, scales = kernels.quantize(fmt, "f32", as_bytes(zeros))
        assert not meaning(fmt, values, scales).any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_weights_that_no_scale_fits_are_refused(bad):
    x = np.zeros((1, 32), np.float32)
    x[0, 5] = bad
    with pytest.raises(ValueError, match="expected finite weights whose group scale fits float16"):
        kernels.quantize("i8", "f32", as_bytes(x))


def test_this_machine_forces_all_that_it_has():
    flags = set(Path("/proc/cpuinfo").read_text().split())
    if {"avx512_bf16", "avx512_vnni", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        assert ISAS[:4] == ["portable", "avx2", "avx512", "avx512bf16"]
        assert kernels.emulated() == ["tiles_portable", "tiles_avx512"]
    present, refusal = kernels.amx()
    assert present == ({"amx_tile", "amx_int8"} <= flags) or refusal  # a kernel may hide the flags
    assert ("amx" in ISAS) == (present and not refusal)
    assert "portable" in ISAS
    assert kernels.best() in ISAS


ROWS = np.zeros((4, 64), np.uint8)  # 16 floats, 32 halves, 64 int8 or 128 int4 to a row
X = {k: np.zeros((2, k), np.float32) for k in (16, 32, 64, 128)}
SCALES = np.zeros((4, 2), np.uint16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"isa": "sse9"},
            "expected an instruction set .* \\(portable, .*tiles_portable.*, got sse9",
        ),
        ({"fmt": "f64"}, "expected one of f32, bf16, f16, i8, i4, q8_0, .*, got f64"),
        ({"activation": "f64"}, "expected f32, bf16 or i8, got f64"),
        ({"activation": "i8"}, "expected f32 activations for f32"),
        ({"x": X[32]}, "expected rows of 128 bytes, got 64"),
        ({"x": np.zeros((97, 16), np.float32)}, "expected 1 to 96 tokens, got 97"),
        ({"x": np.zeros((0, 16), np.float32)}, "expected 1 to 96 tokens, got 0"),
        ({"begin": -1}, "expected 0 <= row_begin <= row_end, got -1"),
        ({"begin": 3, "end": 2}, "expected 0 <= row_begin <= row_end, got 3"),
        ({"end": 5}, "expected row_end <= 4, got 5"),
        ({"scales": SCALES}, "expected scales only for i8 and i4"),
        ({"fmt": "q8_0p", "activation": "i8", "x": X[32]}, "expected panels of 544 bytes, got 64"),
        ({"fmt": "i8", "activation": "i8", "x": X[64]}, "expected scales \\[R, K / 32\\]"),
        (
            {"fmt": "i8", "activation": "i8", "x": X[64], "scales": SCALES[:3]},
            "expected scales of as many rows as values, got 3",
        ),
        (
            {"fmt": "i4", "activation": "i8", "x": X[128], "scales": SCALES},
            "expected K / 32 scales in a row, got 2",
        ),
        (
            {"fmt": "i8", "activation": "i8", "x": X[16], "scales": SCALES},
            "expected K a multiple of 32 for i8, got 16",
        ),
    ],
)
def test_multiply_refuses(change, message):
    call = {
        "isa": "portable", "fmt": "f32", "values": ROWS, "scales": None,
        "activation": "f32", "x": X[16], "begin": 0, "end": 4,
    } | change  # fmt: skip
    with pytest.raises(ValueError, match=message):
        kernels.multiply(*call.values())


def test_the_other_kernels_refuse():
    one, two = np.zeros(1, np.float32), np.zeros(2, np.float32)
    kv = np.zeros((2, 8), np.uint8)
    with pytest.raises(ValueError, match="expected as many scales as columns, got 1"):
        kernels.rms_norm("portable", two[None], one, 1e-5)
    with pytest.raises(ValueError, match="expected as many ups as gates, got 1"):
        kernels.silu_times("portable", two, one)
    with pytest.raises(ValueError, match="expected two arrays of one size, got 1"):
        kernels.add("portable", two, one)
    with pytest.raises(ValueError, match="expected a row below 2, got 2"):
        kernels.widen("portable", "f32", kv, None, 2, 2)
    with pytest.raises(ValueError, match="expected i8 or i4, got f32"):
        kernels.quantize("f32", "f32", kv)
    with pytest.raises(ValueError, match="expected K a multiple of 32, got 2"):
        kernels.quantize("i8", "f32", kv)
    with pytest.raises(ValueError, match="expected a multiple of 512 bytes, got 16"):
        kernels.read("portable", kv)
