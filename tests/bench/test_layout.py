"""Index arithmetic: every chunk has one owner, every weight one place."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from bench.gpu._stage import NotMeasuredError
from bench.gpu.probes._packing import (
    BITS,
    PhaseLayout,
    activations_fma,
    activations_mma,
    pack,
    positions,
    random_codes,
    scale_positions,
    unpack,
    values,
)
from bench.gpu.probes._scale import FULL
from bench.gpu.probes.bandwidth import MOST_READERS, bulk_readers, share
from bench.gpu.probes.matvec import Phase, split_for

LAYOUTS = [
    PhaseLayout(kind, fma, rows, columns)
    for kind, fma, (rows, columns) in product(BITS, (True, False), FULL.phase_shapes)
    if not (fma and kind == "int4")
]
H200_SHARED = 232_448


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("blocks", "chunks"), [(1, 7), (3, 7), (7, 3), (132, 131072), (64, 20165)])
def test_every_chunk_has_one_owner(blocks: int, chunks: int, interleaved: bool) -> None:
    owned = [c for b in range(blocks) for c in share(b, blocks, chunks, interleaved)]
    assert sorted(owned) == list(range(chunks))


def test_reading_warps_divide_the_ring() -> None:
    for ring, copy in product(FULL.rings, FULL.copies):
        slots = ring // copy
        readers = bulk_readers(slots)
        assert slots % readers == 0
        assert readers <= MOST_READERS
        assert readers >= min(slots, 4)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_weight_has_one_place(layout: PhaseLayout) -> None:
    assert layout.problem() is None
    at = positions(layout).reshape(-1)
    assert at.min() == 0
    taken = np.zeros(at.max() + 1, bool)  # np.unique sorts, which takes ten times as long
    taken[at] = True
    assert np.count_nonzero(taken) == at.size
    weights = at.size * BITS[layout.kind] // 8
    scales = at.size // 128 * 4 if layout.kind == "int4" else 0
    assert layout.phase_bytes == weights + scales
    assert layout.slot_bytes % 16 == 0


def test_scales_lie_between_the_weights() -> None:
    layout = PhaseLayout("int4", False, 48, 3072)
    scale_bytes = (scale_positions(layout).reshape(-1)[:, None] * 4 + np.arange(4)).reshape(-1)
    weight_bytes = positions(layout).reshape(-1) // 2
    assert not np.intersect1d(scale_bytes, weight_bytes).size
    assert len(np.unique(np.concatenate([scale_bytes, weight_bytes]))) == layout.phase_bytes


@pytest.mark.parametrize("kind", BITS)
def test_unpacking_inverts_packing(kind: str) -> None:
    layout = PhaseLayout(kind, False, 250, 3072)
    rng = np.random.default_rng(0)
    codes = random_codes(kind, (layout.padded_rows, 3072), rng)
    scales = rng.random((layout.padded_rows, 24)).astype(np.float32) if kind == "int4" else None
    got_codes, got_scales = unpack(layout, pack(layout, codes, scales))
    assert np.array_equal(got_codes, codes)
    assert (got_scales is None) == (scales is None)
    if got_scales is not None and scales is not None:
        assert np.array_equal(got_scales, scales)
    assert np.isfinite(values(kind, codes, scales)).all()


def test_code_values_by_hand() -> None:
    assert values("fp8", np.array([0x38, 0xB8, 0x7E, 0x01, 0x00])).tolist() == [
        1.0, -1.0, 448.0, 2.0**-9, 0.0,
    ]  # fmt: skip
    assert values("int8", np.array([0, 128, 255], np.uint8)).tolist() == [-128.0, 0.0, 127.0]
    assert values("int4", np.array([0, 8, 15], np.uint8)).tolist() == [-8.0, 0.0, 7.0]
    assert values("bf16", np.array([0x3F80, 0xC000], np.uint16)).tolist() == [1.0, -2.0]


def test_activations_keep_every_value_once() -> None:
    x = np.arange(4 * 3072, dtype=np.float32).reshape(4, 3072)
    for kind in ("bf16", "int8"):
        laid = activations_fma(PhaseLayout(kind, True, 48, 3072), x)
        assert np.array_equal(np.sort(laid.reshape(-1)), x.reshape(-1))
    bits = np.arange(16 * 384, dtype=np.uint16).reshape(16, 384)
    assert np.array_equal(np.sort(activations_mma(bits).reshape(-1)), bits.reshape(-1))


def test_every_phase_fits_an_h200_or_says_why() -> None:
    without_place = []
    for layout, width in product(LAYOUTS, FULL.widths):
        if layout.fma and width not in (1, 4, 8):
            continue
        phase = Phase(layout.kind, layout.fma, layout.rows, layout.columns, width)
        try:
            split = split_for(phase, H200_SHARED, FULL.wide_x_period)
        except NotMeasuredError:
            without_place.append((phase.kind, phase.rows, width))
            continue
        assert split.shared <= H200_SHARED
        # One block per SM: a second one must not fit.
        assert split.slots >= 2
        part = layout.columns // layout.column_parts
        assert split.x_period % layout.piece_columns == 0
        assert part % split.x_period == 0 or split.x_period % part == 0
    assert without_place == []
