"""Products of matrices of several bands and blocks of panels: csrc/kernels/products/panels.h.

300 rows are two bands of 8 panels and one of 3, whose last panel is not whole. 2,304 columns are
two blocks of 1,024 and one of 256; 1,056 columns are a block and one group.
"""

import numpy as np
import pytest

from monolane._core import kernels

from .activations import heavy_tailed
from .blocks import BLOCKS, block_of
from .test_blocks import ISAS, assert_products, multiply, random_blocks

ROWS = 300
every_isa = pytest.mark.parametrize("isa", [*ISAS, *kernels.emulated()])
every_format = pytest.mark.parametrize("name", BLOCKS)


def columns_of(name):
    return (1280 if block_of(name)[0] > 32 else 1056, 2304)


@every_isa
@every_format
def test_products_of_several_bands(isa, name):
    rng = np.random.default_rng(7)
    for cols in columns_of(name):
        blocks = random_blocks(rng, name, ROWS, cols)
        x = rng.standard_normal((3, cols)).astype(np.float32)
        assert_products(isa, name, blocks, x)


@every_isa
@every_format
def test_bits_depend_on_neither_width_nor_rows_of_a_call(isa, name):
    """Also where a call begins and ends amid bands, and where a panel is in another band."""
    rng = np.random.default_rng(8)
    for cols in columns_of(name):
        blocks = random_blocks(rng, name, ROWS, cols)
        x = rng.standard_normal((17, cols)).astype(np.float32)
        wanted = np.concatenate([multiply(isa, name, blocks, x[t : t + 1]) for t in range(17)])
        for begin, end in ((0, ROWS), (120, 136), (127, 260), (256, 257), (5, ROWS)):
            for width in (1, 2, 5, 8, 9, 17):
                found = multiply(isa, name, blocks, x[:width], begin, end)
                np.testing.assert_array_equal(found, wanted[:width, begin:end])
        alone = multiply(isa, name, blocks[112:], x)
        np.testing.assert_array_equal(alone, wanted[:, 112:])


@every_isa
@every_format
def test_bits_of_wide_calls(isa, name):
    """Panels are brought to bytes once for many tokens: brought.h. The bits are those of tiles."""
    rng = np.random.default_rng(9)
    rows = 150  # a band of 8 panels, and one of 2 that is not whole
    for cols in columns_of(name):
        blocks = random_blocks(rng, name, rows, cols)
        x = heavy_tailed(rng, 96, cols)
        wanted = np.concatenate(
            [multiply(isa, name, blocks, x[t : t + 8]) for t in range(0, 96, 8)]
        )
        for begin, end in ((0, rows), (21, 141)):
            for width in (31, 32, 45, 96):
                found = multiply(isa, name, blocks, x[:width], begin, end)
                np.testing.assert_array_equal(found, wanted[:width, begin:end])
