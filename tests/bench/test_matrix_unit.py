"""The matrix unit's sums as they are published: held to the authors' own package, mmasim."""

import numpy as np
import pytest

from bench.gpu.probes.matrix_unit import KINDS, fragments, numbers, predicted, results
from monolane.cuda._matrix_unit import FRACTIONS, PRODUCTS, sums

torch = pytest.importorskip("torch")
simulator = pytest.importorskip("mmasim.nv_ptx.sim")

NAMES = {"bfloat16": "bf16", "float16": "f16"}
TILES = 300


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FRACTIONS)
def test_sums_are_those_of_mmasim(dtype: str, kind: str) -> None:
    a, b, c = numbers(np.random.default_rng(7), dtype, kind, TILES)
    unit = simulator.MMA("Hopper", f"m16n8k16.f32.{NAMES[dtype]}.{NAMES[dtype]}.f32")
    each_a = torch.from_numpy(a.astype(np.uint16).view(np.int16)).view(getattr(torch, dtype))
    each_b = torch.from_numpy(b.astype(np.uint16).view(np.int16)).view(getattr(torch, dtype))
    shape = (TILES, 16, 8, PRODUCTS)
    expected = unit.dpa(
        each_a[:, :, None].expand(shape),
        each_b.transpose(1, 2)[:, None].expand(shape),
        torch.from_numpy(c.view(np.int32)).view(torch.float32),
    )
    found = predicted(dtype, a, b, c)
    assert (found == expected.view(torch.int32).numpy().view(np.uint32)).all()
    assert len(np.unique(found)) > TILES  # they are not all nothing, or no numbers


def test_a_tile_is_what_mmasim_makes_of_it() -> None:
    """The matrices as a warp's lanes hold them."""
    a, b, c = numbers(np.random.default_rng(8), "bfloat16", "normal", 1)
    unit = simulator.MMA("Hopper", "m16n8k16.f32.bf16.bf16.f32")
    matrices = [
        torch.from_numpy(x[0].astype(np.uint16).view(np.int16)).view(torch.bfloat16) for x in (a, b)
    ]
    expected = unit(*matrices, torch.from_numpy(c[0].view(np.int32)).view(torch.float32))
    assert (predicted("bfloat16", a, b, c)[0] == expected.numpy().view(np.uint32)).all()


def test_lanes_hold_what_is_asked_for() -> None:
    a, b, c = numbers(np.random.default_rng(9), "float16", "any bits", 2)
    words = fragments(a, b, c)
    assert words.shape == (2, 10, 32)
    assert (results(words[:, 6:]) == c).all()
    # Lane 5 holds row 1, columns 2 and 3 of A first, and of B column 1 at the same depths.
    assert words[0, 0, 5] == a[0, 1, 2] | a[0, 1, 3] << 16
    assert words[0, 4, 5] == b[0, 2, 1] | b[0, 3, 1] << 16


@pytest.mark.parametrize(
    ("addend", "total"),
    [
        (1.0, 1.0 + 2.0**-23),  # 2^-24 + 2^-24 - 2^-50: cut off once, they make a last bit
        (-1.0, -1.0 + 2.0**-23),  # toward zero
        (2.0, 2.0),
    ],
)
def test_what_is_cut_off_is_cut_off_together(addend: float, total: float) -> None:
    factors = np.zeros((1, PRODUCTS), np.uint16)
    factors[0, :2] = np.array([2.0**-12] * 2, np.float16).view(np.uint16)
    found = sums("float16", factors, factors, np.array([addend], np.float32).view(np.uint32))
    assert found.view(np.float32)[0] == total
