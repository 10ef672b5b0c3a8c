"""Products with GGUF's blocks: what is made of them once, and its kernels on every instruction set.

The oracle is ``gguf.quants.dequantize``, which llama.cpp's own arithmetic was compared with there.
Blocks are random bytes with scales of usual sizes, so every code, every 6-bit scale and every sign
occurs. u is float32's unit roundoff, 2^-24; gamma(n) = n u / (1 - n u).
"""

import itertools

import numpy as np
import pytest
from gguf.quants import dequantize

from monolane._core import kernels
from monolane.model import FORMATS, Blocks

from .activations import fine_groups, heavy_tailed, rounded
from .blocks import BLOCKS, BYTE_SCALES, HALVES, NAMES, block_of, kind, put_halves

ISAS = kernels.supported()
# Bytes of codes of a block; what is left with all of them zero is the minimum.
CODES = {"q4_1": (4, 20), "q5_1": (4, 24), "q4_k": (16, 144), "q5_k": (16, 176), "q2_k": (16, 80)}
# Panels have a byte for a scale of 6 bits, and a code for each number that a codebook names.
WIDER = {"q3_k": 114 / 110, "iq3_s": 138 / 110, "iq3_xxs": 138 / 98, "iq2_s": 114 / 82}
WIDER |= {"iq2_xs": 114 / 74, "iq2_xxs": 114 / 66, "iq1_m": 114 / 56, "iq1_s": 114 / 50}
WIDER |= {"tq1_0": 114 / 54, "tq2_0": 114 / 66}
U = 2.0**-24
every_isa = pytest.mark.parametrize("isa", ISAS)
every_format = pytest.mark.parametrize("name", NAMES)
every_product = pytest.mark.parametrize("name", BLOCKS)


def random_blocks(rng, name, rows, cols):
    """Rows of random blocks, uint8 [R, bytes]."""
    columns, size = block_of(name)
    found = rng.integers(0, 256, (rows * (cols // columns), size), dtype=np.uint8)
    for at, (low, high) in HALVES[name].items():
        put_halves(name, found, at, rng.uniform(low, high, len(found)))
    if name == "mxfp4":
        found[:, 0] = rng.integers(112, 128, len(found))
    return found.reshape(rows, -1)


def meaning(name, blocks):
    return dequantize(blocks, kind(name))


def sizes(name, blocks):
    """|code * scale| + |minimum|: where they cancel, rounding errors are of this size."""
    if name not in CODES:
        return np.abs(meaning(name, blocks).astype(np.float64))
    bare = blocks.reshape(-1, block_of(name)[1]).copy()
    bare[:, slice(*CODES[name])] = 0
    minimum = meaning(name, bare.reshape(blocks.shape)).astype(np.float64)
    return np.abs(meaning(name, blocks) - minimum) + np.abs(minimum)


def multiply(isa, name, blocks, x, begin=0, end=None):
    fmt, panels = kernels.repack(name, blocks, None, x.shape[1])
    end = len(blocks) if end is None else end
    return kernels.multiply(isa, fmt, panels, None, "i8", x, begin, end)


def columns_of(name):
    """Columns that end in every possible part of a step, where a block is that small."""
    if block_of(name)[0] == 256:
        return (256, 768, 4096)
    step = block_of(name)[0]
    return [cols for cols in (32, 64, 96, 160, 576, 3072, 4096, 4128) if cols % step == 0]


@every_isa
@every_format
def test_widen_reads_a_row_in_place(isa, name):
    blocks = random_blocks(np.random.default_rng(0), name, 3, 768)
    wanted = meaning(name, blocks)
    for row in range(3):
        found = kernels.widen(isa, name, blocks, None, 768, row)
        np.testing.assert_array_equal(found, wanted[row])


@every_format
def test_panels_take_the_bytes_of_their_rows(name):
    blocks = random_blocks(np.random.default_rng(1), name, 37, 768)
    fmt, panels = kernels.repack(name, blocks, None, 768)
    assert fmt == FORMATS[name].multiplied.short
    assert panels.shape == (3, 16 * FORMATS[name].multiplied.row_bytes(768))
    assert panels.nbytes <= WIDER.get(name, 1.03) * 48 * blocks.shape[1] + 1e-6


@every_isa
@every_format
def test_repacking_keeps_every_number(isa, name):
    """A token with one 1 gives a column: its code is 127 and its scale 1 / 127, so that with the
    weight's own scale and minimum, rounded as ``widen`` rounds them, five roundings are between.
    """
    blocks = random_blocks(np.random.default_rng(1), name, 21, 768)
    wanted, size = meaning(name, blocks), sizes(name, blocks)
    for first in range(0, 768, 64):
        x = np.eye(64, 768, first, dtype=np.float32)
        found = multiply(isa, name, blocks, x)
        columns = slice(first, first + 64)
        assert np.all(
            np.abs(found - wanted[:, columns].T) <= 5 * U / (1 - 5 * U) * size[:, columns].T
        )


def assert_products(isa, name, blocks, x):
    """Integers are exact within a group. The cols / 32 sums are added one after the other,
    and their minima, of which q2_k has two, in between; a term's own scale, minimum and product
    with the token's scale round five times. A token's scales are `rounded`'s, bit by bit.
    """
    exact = rounded(x)
    chain = (3 if name == "q2_k" else 2) * (x.shape[1] // 32) + 5
    bound = chain * U / (1 - chain * U) * (np.abs(exact) @ sizes(name, blocks).T)
    y = multiply(isa, name, blocks, x)
    assert np.all(np.abs(y - exact @ meaning(name, blocks).astype(np.float64).T) <= bound)


@every_isa
@every_product
def test_products(isa, name):
    for cols in columns_of(name):
        rng = np.random.default_rng(cols)
        blocks = random_blocks(rng, name, 17, cols)
        x = heavy_tailed(rng, 9, cols)
        assert cols < 500 or fine_groups(x).any()
        assert_products(isa, name, blocks, x)


@every_isa
@every_product
def test_bits_depend_on_row_and_token_alone(isa, name):
    # All widths on each side of a tile, odd numbers of rows, and columns that are cut into blocks.
    for cols in columns_of(name)[-3:]:
        rng = np.random.default_rng(cols + 1)
        blocks = random_blocks(rng, name, 37, cols)
        x = heavy_tailed(rng, 64, cols)
        whole = multiply(isa, name, blocks, x)
        for width in (*range(1, 14), 33, 63):
            np.testing.assert_array_equal(multiply(isa, name, blocks, x[:width]), whole[:width])
        for t in (0, 7, 63):
            np.testing.assert_array_equal(multiply(isa, name, blocks, x[t : t + 1])[0], whole[t])
        for begin, end in itertools.pairwise((0, 1, 4, 11, 36, 37)):
            part = multiply(isa, name, blocks, x, begin, end)
            np.testing.assert_array_equal(part, whole[:, begin:end])
            few = multiply(isa, name, blocks, x[:3], begin, end)
            np.testing.assert_array_equal(few, whole[:3, begin:end])


@every_isa
@every_format
def test_extremes_do_not_saturate(isa, name):
    """All codes at one end and activations at either: a sum that saturates misses by far."""
    columns, size = block_of(name)
    for byte in (0x00, 0xFF, 0x80, 0x7F):
        blocks = np.full((1, 512 // columns, size), byte, np.uint8)
        for at in HALVES[name]:
            put_halves(name, blocks, at, np.float16(2.0**-4))
        if name in BYTE_SCALES:
            blocks[..., BYTE_SCALES[name]] = 123
        blocks = blocks.reshape(1, -1)
        x = np.stack([np.full(512, 127.0), np.full(512, -127.0)]).astype(np.float32)
        assert_products(isa, name, blocks, x)
        # A fine group, whose codes and whose rest are at their ends, too.
        end = np.float32(126 + 63 / 128)
        x[:, :32], x[0, 32:], x[1, 32:] = end, 1, -1
        x[:, 0], x[1, :32] = 127, -x[1, :32]
        assert fine_groups(x)[:, 0].all()
        assert_products(isa, name, blocks, x)


@every_isa
def test_mxfp4_is_exact_for_every_code_and_every_scale(isa):
    """A row for each scale, with all 16 codes, twice. The numbers are those of the standard (OCP
    Microscaling 1.0, tables 5 and 7), but that exponent 255 goes on as the others do.
    """
    code = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    with np.errstate(over="ignore"):
        wanted = (2.0 ** (np.arange(256)[:, None] - 127.0) * np.tile(code, 2)).astype(np.float32)
    blocks = np.empty((256, 17), np.uint8)
    blocks[:, 0] = np.arange(256)
    blocks[:, 1:] = np.arange(16) * 17
    assert np.isinf(wanted).any()
    for scale in range(256):
        found = kernels.widen(isa, "mxfp4", blocks, None, 32, scale)
        np.testing.assert_array_equal(found, wanted[scale])
    np.testing.assert_array_equal(Blocks("mxfp4", blocks, 32).widened(), wanted)
    # Tokens that read one column: their code is 127, their scale 2^-10. So products are exact.
    x = np.eye(32, dtype=np.float32) * 127 * 2.0**-10
    exact = 127 * 2.0**-10 * 2.0 ** (np.arange(256)[:, None] - 127.0) * np.tile(code, 2)
    np.testing.assert_array_equal(multiply(isa, "mxfp4", blocks, x), exact.T.astype(np.float32))


@pytest.mark.parametrize("name", [name for name in NAMES if FORMATS[name].block_bytes])
def test_every_number_that_a_code_names(name):
    """32,768 codes of at most 2,048, so that each is there."""
    blocks = random_blocks(np.random.default_rng(3), name, 1024, 256)
    wanted = meaning(name, blocks)
    for row in range(len(blocks)):
        found = kernels.widen("portable", name, blocks, None, 256, row)
        np.testing.assert_array_equal(found, wanted[row])


@every_isa
def test_nvfp4_is_exact_for_every_code_and_every_scale(isa):
    """A row for each scale, E4M3 without its sign, with all 16 codes; 0x7F counts as 0 in ggml."""
    code = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    bits = np.arange(256) & 127
    scale = np.where(bits < 8, bits * 2.0**-9, (1 + bits % 8 / 8) * 2.0 ** (bits // 8 - 7))
    scale[127] = 0
    blocks = np.empty((256, 36), np.uint8)
    blocks[:, :4] = np.arange(256)[:, None]
    blocks[:, 4:] = np.tile(np.arange(8) | np.arange(8, 16) << 4, 4)
    wanted = (scale[:, None] * np.tile(code, 4)).astype(np.float32)
    for row in range(256):
        found = kernels.widen(isa, "nvfp4", blocks, None, 64, row)
        np.testing.assert_array_equal(found, wanted[row])
    np.testing.assert_array_equal(Blocks("nvfp4", blocks, 64).widened(), wanted)
    # Tokens that read one column: their code is 127, their scale 2^-10. So products are exact.
    x = np.eye(64, dtype=np.float32) * 127 * 2.0**-10
    exact = 127 * 2.0**-10 * wanted.astype(np.float64)
    np.testing.assert_array_equal(multiply(isa, "nvfp4", blocks, x), exact.T.astype(np.float32))


@pytest.mark.parametrize("name", [name for name in NAMES if HALVES[name]])
def test_scales_of_a_hostile_file_stay_where_they_are(name):
    """An infinite or missing scale spoils its own row, and no other."""
    blocks = random_blocks(np.random.default_rng(2), name, 4, 512)
    good = multiply(kernels.best(), name, blocks, np.ones((1, 512), np.float32))
    first = blocks[2, : block_of(name)[1]]
    put_halves(name, first, min(HALVES[name]), np.float16(np.nan))
    found = multiply(kernels.best(), name, blocks, np.ones((1, 512), np.float32))
    assert np.isnan(found[0, 2])
    np.testing.assert_array_equal(np.delete(found, 2), np.delete(good, 2))


def test_refusals():
    blocks = np.zeros((2, 144), np.uint8)
    x = np.zeros((1, 256), np.float32)
    with pytest.raises(ValueError, match="i8 for codes; got i8 for q4_k"):
        kernels.multiply("portable", "q4_k", blocks, None, "i8", x, 0, 2)
    with pytest.raises(ValueError, match="expected panels of 2368 bytes, got 144"):
        kernels.multiply("portable", "q4_kp", blocks, None, "i8", x, 0, 2)
    with pytest.raises(ValueError, match="expected codes, got f32"):
        kernels.repack("f32", blocks, None, 36)
    with pytest.raises(ValueError, match="expected rows of 144 bytes, got 143"):
        kernels.repack("q4_k", blocks[:, 1:].copy(), None, 256)
    with pytest.raises(ValueError, match="expected K a multiple of 256 for q4_k, got 128"):
        kernels.widen("portable", "q4_k", blocks, None, 128, 0)
    with pytest.raises(ValueError, match="expected scales only for i8 and i4"):
        kernels.widen("portable", "q4_k", blocks, np.zeros((2, 8), np.uint16), 256, 0)
