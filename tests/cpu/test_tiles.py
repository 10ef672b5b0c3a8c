"""Products by tiles: emulated on every machine, by the processor's own where there are some.

Each kernel is one source. Of codes (csrc/kernels/products/tile_dot.h) each set is held to the
vectors of the set beneath it, bit by bit; those are proven in test_kernels.py and test_blocks.py.
Of bfloat16 (csrc/kernels/products/tile_pairs.h) sums have an order of their own, which is written
down here once more.
"""

import functools

import ml_dtypes
import numpy as np
import pytest
from blocks import BLOCKS, block_of, random_blocks

from monolane._core import kernels
from monolane.cpu import CpuExecutor

from .activations import fine_groups, heavy_tailed
from .test_conversion import make_weights

BASES = {"tiles_portable": "portable", "tiles_avx512": "avx512", "amx": "avx512bf16"}
WIDTHS = (1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 80, 81, 95, 96)
every_set = pytest.mark.parametrize("isa", [*kernels.emulated(), "amx"])
every_format = pytest.mark.parametrize("name", ["i8", "i4", *BLOCKS])


@pytest.fixture(autouse=True)
def _where_the_processor_has_tiles(isa: str) -> None:
    if isa == "amx" and isa not in kernels.supported():
        pytest.skip(f"no AMX: {kernels.amx()[1]}")


@functools.cache
def panels(name: str, rows: int, cols: int) -> tuple[str, np.ndarray]:
    rng = np.random.default_rng(cols)
    if name not in ("i8", "i4"):
        return kernels.repack(name, random_blocks(rng, name, (rows, cols)).data, None, cols)
    plain = (rng.standard_normal((rows, cols)) * 0.05).astype(np.float32)
    values, scales = kernels.quantize(name, "f32", plain.view(np.uint8))
    return kernels.repack(name, values, scales, cols)


def multiply(
    isa: str, of: tuple[str, np.ndarray], x: np.ndarray, begin: int, end: int
) -> np.ndarray:
    return kernels.multiply(isa, *of, None, "i8", x, begin, end)


@every_set
@every_format
def test_the_bits_of_vectors(isa: str, name: str) -> None:
    # Columns that end within a block of 256 and with it, in a record of one group and of four;
    # rows of more than one block of panels, from and to the middle of one, and of one panel.
    step = 32 if name in ("i8", "i4") else block_of(name)[0]
    for cols in (cols for cols in (32, 160, 256, 1024, 1184) if cols % step == 0):
        of = panels(name, 90, cols)
        x = heavy_tailed(np.random.default_rng(cols), 96, cols)
        assert cols < 500 or 0.02 < fine_groups(x).mean() < 0.25
        for begin, end in ((0, 90), (13, 83), (35, 36), (16, 32)):
            wanted = multiply(BASES[isa], of, x, begin, end)
            for width in WIDTHS:
                found = multiply(isa, of, x[:width].copy(), begin, end)
                np.testing.assert_array_equal(found, wanted[:width])


@every_set
@pytest.mark.parametrize(("name", "low", "high"), [("i8", 0x80, 0x7F), ("i4", 0x00, 0xFF)])
def test_extremes_are_summed_exactly(isa: str, name: str, low: int, high: int) -> None:
    size = 384 if name == "i8" else 192
    values = np.repeat(np.array([[low], [high]], np.uint8), size, axis=1)
    scales = np.full((2, 12), np.float16(1).view(np.uint16))
    x = np.repeat(np.float32([[127], [-127]]), 384, axis=1).repeat(9, axis=0)
    codes = {0x80: -128, 0x7F: 127, 0x00: -8, 0xFF: 7}
    wanted = x @ np.full((384, 2), (codes[low], codes[high]), np.float32)
    np.testing.assert_array_equal(
        multiply(isa, kernels.repack(name, values, scales, 384), x, 0, 2), wanted
    )


@every_set
def test_what_is_no_number_stays_with_its_token(isa: str) -> None:
    x = np.ones((20, 160), np.float32)
    x[3, 7], x[17, 150] = np.nan, np.inf
    found = multiply(isa, panels("i8", 90, 160), x, 0, 90)
    assert np.isnan(found).all(axis=1).nonzero()[0].tolist() == [3, 17]
    assert np.isnan(found).any(axis=1).sum() == 2


def stored(plain: np.ndarray) -> np.ndarray:
    """Rows of bfloat16 as a file has them."""
    return np.ascontiguousarray(plain.astype(ml_dtypes.bfloat16)).view(np.uint8)


def flushed(x: np.ndarray) -> np.ndarray:
    """Numbers with subnormal ones as zeros."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x).astype(np.float32)


def in_order(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Products in the order of TDPBF16PS: of 32 columns even ones, odd ones, both, the sum so far.

    A product of two bfloat16 is exact in float64; one step there, rounded to float32, is a fused
    step but for a sum that lies within 2^-53 of half-way, which these seeds do not have.
    """
    w, x = (flushed(a.astype(ml_dtypes.bfloat16).astype(np.float32)) for a in (w, x))
    sums = np.zeros((len(x), len(w)), np.float32)
    for k in range(0, w.shape[1], 32):
        halves = []
        for first in (k, k + 1):
            half = np.zeros_like(sums)
            for c in range(first, min(k + 32, w.shape[1]), 2):
                product = np.outer(x[:, c].astype(np.float64), w[:, c])
                half = flushed((product + half).astype(np.float32))
            halves.append(half)
        sums = flushed(sums + flushed(halves[0] + halves[1]))
    return sums


@every_set
def test_bfloat16_is_summed_in_the_order_of_the_manual(isa: str) -> None:
    """Of any columns, in calls of any rows, and of one token as of 96.

    Rows: part of a tile, whole ones, a last one within the matrix and at its end. Columns: less
    than a tile, whole ones, a tail of even and of odd length.
    """
    rng = np.random.default_rng(5)
    for rows, cols in ((7, 24), (40, 32), (37, 160), (70, 333)):
        w = (rng.standard_normal((rows, cols)) * 0.05).astype(np.float32)
        x = rng.standard_normal((96, cols)).astype(np.float32)
        wanted, bytes_ = in_order(w, x), stored(w)
        for begin, end in ((0, rows), (3, rows), (rows // 3, rows - 2), (rows - 1, rows)):
            for width in WIDTHS:
                found = kernels.multiply(
                    isa, "bf16", bytes_, None, "bf16", x[:width].copy(), begin, end
                )
                np.testing.assert_array_equal(found, wanted[:width, begin:end])


@every_set
def test_numbers_too_small_for_bfloat16_tiles_count_as_zeros(isa: str) -> None:
    tiny = np.float32(2.0**-126)  # the least normal number
    w = np.full((16, 64), tiny / 2, np.float32)  # subnormal
    x = np.ones((3, 64), np.float32)
    assert (kernels.multiply(isa, "bf16", stored(w), None, "bf16", x, 0, 16) == 0).all()
    w[:], x[1] = tiny, 0.5  # each step of half that is subnormal, and so is their sum
    found = kernels.multiply(isa, "bf16", stored(w), None, "bf16", x, 0, 16)
    assert (found[[0, 2]] == 64 * tiny).all()
    assert (found[1] == 0).all()


@every_set
def test_what_is_no_number_in_bfloat16_stays_with_its_row_and_token(isa: str) -> None:
    """Also where the last columns of a row are followed by such numbers of the next row."""
    w, x = np.ones((40, 72), np.float32), np.ones((20, 72), np.float32)
    w[17, 0], x[3, 7], x[18, 71] = np.nan, np.nan, np.inf
    found = kernels.multiply(isa, "bf16", stored(w), None, "bf16", x, 0, 40)
    odd = np.isnan(found)
    assert odd[:, 17].all()
    assert odd[3].all()
    assert not np.delete(np.delete(odd, 17, axis=1), 3, axis=0).any()
    assert np.isinf(np.delete(found[18], 17)).all()


@pytest.mark.parametrize("isa", kernels.emulated())
def test_as_many_products_of_bfloat16_tiles_as_docs_say(isa: str) -> None:
    """For 16 rows one for each 32 columns, for up to 16 tokens: of one token as of 16."""
    w = stored(np.ones((70, 72), np.float32))
    for width, sides in {1: 1, 2: 1, 16: 1, 17: 2, 33: 3, 49: 4, 64: 4, 65: 5, 96: 6}.items():
        before = kernels.emulated_dots(isa)
        kernels.multiply(isa, "bf16", w, None, "bf16", np.ones((width, 72), np.float32), 0, 70)
        assert kernels.emulated_dots(isa) - before == 5 * 3 * sides


@pytest.mark.parametrize("isa", kernels.emulated())
@every_format
def test_as_many_products_of_tiles_as_docs_say(isa: str, name: str) -> None:
    """For 16 rows one a group (of 16 columns: with scales of their own), for up to 16 tokens.

    So tiles are what multiplies, from 9 tokens on; up to 15 they come in eights.
    """
    of, x = panels(name, 90, 1024), np.ones((64, 1024), np.float32)
    halves = name in ("q6_k", "q2_k", "iq2_s", "nvfp4")
    sums = 1024 // (16 if halves else 32)
    for width, tiles in {1: 0, 8: 0, 9: 2, 15: 2, 16: 1, 17: 2, 32: 2, 33: 3, 64: 4}.items():
        before = kernels.emulated_dots(isa)
        multiply(isa, of, x[:width].copy(), 0, 90)
        assert kernels.emulated_dots(isa) - before == 6 * sums * tiles
    # A fine group of one token takes as many again, of those tokens that are beside it.
    x[0, 64:96] = 30
    assert fine_groups(x).sum() == 1
    for width, tiles in {8: 0, 9: 2, 16: 1, 33: 3}.items():
        before = kernels.emulated_dots(isa)
        multiply(isa, of, x[:width].copy(), 0, 90)
        again = 6 * sums * 32 // 1024 if tiles else 0
        assert kernels.emulated_dots(isa) - before == 6 * sums * tiles + again


@every_set
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_model_has_the_same_bits(isa: str, dtype: str) -> None:
    """By three workers, each with tiles of its own, and in passes of any width."""
    weights = make_weights("bfloat16")
    ids = np.random.default_rng(3).integers(weights.config.vocab_size, size=90)

    def run(name: str, *cuts: int) -> np.ndarray:
        executor = CpuExecutor(
            weights, dtype, context=96, slots=1, workers=3, isa=name, cache_dtype="float32"
        )
        return np.concatenate([executor.logits(0, part) for part in np.split(ids, cuts)])

    wanted = run(BASES[isa])  # in float32 attention goes through vectors
    np.testing.assert_array_equal(run(isa), wanted)
    np.testing.assert_array_equal(run(isa, 1, 2, 11, 19, 44), wanted)


@every_set
def test_a_model_in_bfloat16_has_the_same_bits_in_passes_of_any_width(isa: str) -> None:
    """And the same on the processor's tiles as on emulated ones over the same vectors."""
    weights = make_weights("bfloat16")
    ids = np.random.default_rng(3).integers(weights.config.vocab_size, size=70)

    def run(name: str, *cuts: int) -> np.ndarray:
        executor = CpuExecutor(weights, "bfloat16", context=96, slots=1, workers=3, isa=name)
        return np.concatenate([executor.logits(0, part) for part in np.split(ids, cuts)])

    wanted = run("tiles_avx512" if isa == "amx" else isa)
    for cuts in ((), (1, 2, 5, 21, 38), tuple(range(1, 70))):
        np.testing.assert_array_equal(run(isa, *cuts), wanted)


@every_set
def test_columns_in_blocks_have_the_same_bits(isa: str) -> None:
    """96 tokens of 5,600 columns are more than 1 MB, and rows beyond 1,024 a block of their own."""
    rng = np.random.default_rng(7)
    rows, cols = (1040, 5600) if isa != "tiles_portable" else (70, 5600)  # that is the slowest
    w = stored(rng.standard_normal((rows, cols)).astype(np.float32))
    x = rng.standard_normal((96, cols)).astype(np.float32)

    def run(tokens: np.ndarray) -> np.ndarray:
        return kernels.multiply(isa, "bf16", w, None, "bf16", tokens, 5, rows)

    alone = [run(part) for part in np.split(x, 6)]  # 16 tokens are one block
    np.testing.assert_array_equal(run(x), np.concatenate(alone))
