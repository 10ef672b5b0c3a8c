"""Tiles where the specification says, every weight once, and zeros everywhere else."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from monolane.cuda._lay_out import lay_out
from monolane.cuda._layout import PRODUCTS, Layout
from monolane.cuda._pack import pack, pack_rows, patterns, phase_of, pieces, round_to_e4m3
from monolane.cuda._tiling import Tiling, find_tiling
from monolane.model import Checkpoint, Role, Weights, read_config
from monolane.plan import DeviceDescription, PhaseKind, build

GOLDEN = Path(__file__).parents[1] / "golden"
Array = npt.NDArray[Any]


def layout_of(weights: Weights, blocks: int, dtype: str, width: int = 8, **wish: int) -> Layout:
    lanes = weights.config.num_lanes
    device = DeviceDescription(
        name="t",
        workers=lanes * blocks,
        bandwidth=1e12,
        compute=1e14,
        source="a test",
        tile_rows=16,
    )
    return lay_out(build(weights.config, device, dtype, max_width=width), **wish)


def load(name: str) -> Weights:
    folder = GOLDEN / name
    return Weights.load(read_config(folder), Checkpoint.open(folder))


def read_tile_element(tile: Array, row: int, column: int) -> int:
    """Look a weight up in a tile of 16-bit words, as the design's text says."""
    lane = row % 8 * 4 + column // 4
    word = column % 4 // 2 * 2 + row // 8
    return int(tile[lane * 8 + word * 2 + column % 2])


def unpack(run: Array, tiling: Tiling) -> Array:
    """Return the rows that a phase's tiles hold, found tile by tile: [padded rows, columns]."""
    t = tiling
    words = run.view(np.uint16)
    rows = np.zeros((t.padded_rows, t.padded_columns), np.uint16)
    seen = np.zeros(rows.shape, np.int64)
    index = 0
    for n in range(t.rounds):
        for s in range(t.steps):
            for warp in range(t.warps):
                for j in range(t.step):
                    for r in range(t.group):
                        tile = words[index * 256 : index * 256 + 256]
                        index += 1
                        unit = n * t.warps + warp
                        part, group = unit % t.parts, unit // t.parts
                        top = 16 * (group * t.group + r)
                        left = 16 * (part * t.depth + s * t.step + j)
                        for row in range(16):
                            for column in range(16):
                                value = read_tile_element(tile, row, column)
                                rows[top + row, left + column] = value
                                seen[top + row, left + column] += 1
    assert (seen == 1).all()
    return rows


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("name", "blocks", "wish"),
    [
        ("released_shape", 1, {}),
        ("delay1_8lanes", 3, {"slot_bytes": 8 << 10}),  # rows do not divide evenly
        ("replicate_head", 2, {"warps": 4, "slot_bytes": 2 << 10}),  # all blocks share one head
    ],
)
def test_every_matrix_is_found_again(
    name: str, blocks: int, wish: dict[str, int], dtype: str
) -> None:
    weights = load(name)
    layout = layout_of(weights, blocks, dtype, **wish)
    plan = layout.plan
    runs = pack(layout, weights)
    assert runs.shape == (plan.groups.workers, layout.run_bytes)
    last = len(layout.layers) - 1
    products = [(kind, 0, i) for i, kind in enumerate(PRODUCTS[:-1])]
    products += [(kind, last, 4 * last + i) for i, kind in enumerate(PRODUCTS[:-1])]
    for kind, layer, place in [*products, (PhaseKind.HEAD, None, 4 * last + 4)]:
        matrices = {
            m.role: patterns(weights, m.role, layer, dtype)
            for m in phase_of(plan, kind, layer or 0).matrices
        }
        found = {role: np.full_like(matrix, 0xFFFF) for role, matrix in matrices.items()}
        tiling, offset = layout.tilings[kind], layout.phase_offsets[place]
        for worker in range(plan.groups.workers):
            size = tiling.run_bytes(layout.tile_bytes)
            rows = unpack(runs[worker, offset : offset + size], tiling)
            for piece in pieces(plan, kind, worker):
                taken = rows[piece.at : piece.at + piece.end - piece.begin]
                found[piece.role][piece.lane, piece.begin : piece.end] = taken[:, : tiling.columns]
                taken[:, : tiling.columns] = 0
            assert not rows.any(), "padding is zero"
        for role, matrix in matrices.items():
            np.testing.assert_array_equal(found[role], matrix)


def test_values_are_rounded_to_the_plans_format() -> None:
    weights = load("released_shape")
    stored = weights.layers[0][Role.Q]
    for dtype, kind in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):
        got = patterns(weights, Role.Q, 0, dtype)
        np.testing.assert_array_equal(got.view(kind), stored.astype(kind))


def test_eight_bit_tiles_hold_row_g_then_row_g_plus_8() -> None:
    tiling = find_tiling(32, 48, 2, 16)
    rows = np.arange(32 * 48).reshape(32, 48).astype(np.uint8)
    packed = pack_rows(rows, tiling)
    assert packed.size == tiling.run_bytes(256)
    first = packed[:256].reshape(8, 4, 2, 4)  # g, q, half, column
    for g, q, half in ((0, 0, 0), (3, 2, 1), (7, 3, 0)):
        row = rows[g + 8 * half]
        np.testing.assert_array_equal(first[g, q, half], row[4 * q : 4 * q + 4])


def test_e4m3_rows_are_scaled_to_the_formats_largest_value() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    rows[3] = 0
    codes, scale = round_to_e4m3(rows)
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale[:, None]
    # Three bits of mantissa round by at most 1/16 of a normal value, and subnormals by half of
    # 2^-9 steps, of values that reach 448.
    limit = np.maximum(np.abs(rows) / 16, scale[:, None] * 2.0**-10) * (1 + 2.0**-20)
    assert (np.abs(values - rows) <= limit).all()
    assert scale[3] == 1
    peaks = np.abs(codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)).max(axis=1)
    assert peaks.tolist() == [448, 448, 448, 0, 448]
