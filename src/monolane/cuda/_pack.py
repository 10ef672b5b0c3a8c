"""The weights in the order in which blocks stream them: worker, phase, layer -> bytes.

This is the specification, in NumPy, and what the emulated kernel is fed with. A GPU packs its own
weights (kernels/pack.cu, _load.py): here a model of 2 billion parameters would take a minute.
"""

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from monolane.cuda._layout import PRODUCTS, Layout
from monolane.cuda._tiling import TILE, Tiling
from monolane.model import FORMATS, Matrix, Role, Weights, formats_of
from monolane.plan import Phase, PhaseKind, Plan, Scope

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

_FORMATS = [FORMATS[name] for name in formats_of("cuda")]
# What the kernel multiplies as it is stored, by name; the bit patterns travel as integers.
STORED = {x.name: x.dtype for x in _FORMATS if x.dtype is not None}
# The 16-bit type of embedding, activations, keys and values beside each format.
HALVES = {x.name: STORED[x.key_format.name] for x in _FORMATS}
_LARGEST_E4M3 = 448.0
_MATRICES = frozenset((Role.Q, Role.K, Role.V, Role.O, Role.GATE, Role.UP, Role.DOWN, Role.HEAD))


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a matrix, and where they stand in the list of rows of a block."""

    role: Role
    worker: int
    lane: int  # whose matrix; 0 where the lanes share one
    begin: int  # rows of that lane's matrix
    end: int
    at: int  # row of the block's list


def phase_of(plan: Plan, kind: PhaseKind, layer: int) -> Phase:
    """Return a product's phase; the head has no layer."""
    return plan.find(kind, -1 if kind is PhaseKind.HEAD else layer)


def pieces(plan: Plan, kind: PhaseKind, worker: int, layer: int = 0) -> tuple[Piece, ...]:
    """Return the rows of a block, one below the other."""
    found, at = [], 0
    for matrix in phase_of(plan, kind, layer).matrices:
        begin, end = matrix.share.of(worker)
        lane = 0 if matrix.share.scope is Scope.ALL else plan.groups.of(worker)
        found.append(Piece(matrix.role, worker, lane, begin, end, at))
        at += end - begin
    return tuple(found)


def patterns(weights: Weights, role: Role, layer: int | None, dtype: str) -> Array:
    """Return a matrix [L, rows, columns] as the bit patterns of ``dtype``, viewed where stored so.

    ``layer`` None: a matrix outside the layers.
    """
    array = _matrix(weights, role, layer)
    if dtype == "float8":
        codes, _ = round_to_e4m3(array.astype(staged(array.dtype), copy=False))
        return codes
    return np.ascontiguousarray(array.astype(STORED[dtype], copy=False)).view(np.uint16)


def row_scales(weights: Weights, role: Role, layer: int | None) -> npt.NDArray[np.float32]:
    """Return the scale of each row of a matrix in float8: [L, rows]."""
    array = _matrix(weights, role, layer)
    return round_to_e4m3(array.astype(staged(array.dtype), copy=False))[1]


def staged(stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the format in which a matrix crosses to the GPU that rounds it: 16 bits, as stored."""
    return stored if stored in STORED.values() else STORED["bfloat16"]


def plain(matrix: Matrix) -> Array:
    """Return the numbers that a matrix means: as stored, or float32 where it is quantised."""
    return matrix if isinstance(matrix, np.ndarray) else matrix.widened()


def _matrix(weights: Weights, role: Role, layer: int | None) -> Array:
    return plain(weights.matrix(role, layer))


def pack(layout: Layout, weights: Weights) -> Bytes:
    """Return the runs of all blocks: [W][RUN_BYTES]."""
    workers = layout.plan.groups.workers
    runs = np.zeros((workers, layout.run_bytes), np.uint8)
    offsets = layout.phase_offsets
    for layer in range(len(layout.layers)):
        for i, kind in enumerate(PRODUCTS[:-1]):
            _pack_phase(layout, weights, kind, layer, runs[:, offsets[4 * layer + i] :])
    _pack_phase(layout, weights, PhaseKind.HEAD, None, runs[:, offsets[-1] :])
    return runs


def pack_scales(layout: Layout, weights: Weights) -> npt.NDArray[np.float32]:
    """Return the scales of all blocks' rows: [W][SCALE_ROWS], zeros for the padding."""
    plan, products = layout.plan, PRODUCTS[:-1]
    found = np.zeros((plan.groups.workers, layout.scale_rows), np.float32)
    if found.size == 0:
        return found  # of 16-bit weights, which have none
    places = [(kind, layer) for layer in range(len(layout.layers)) for kind in products]
    offsets = zip([*places, (PhaseKind.HEAD, None)], layout.row_offsets, strict=False)
    for (kind, layer), offset in offsets:
        for worker in range(plan.groups.workers):
            for x in pieces(plan, kind, worker, layer or 0):
                scales = row_scales(weights, x.role, layer)[x.lane, x.begin : x.end]
                found[worker, offset + x.at : offset + x.at + len(scales)] = scales
    return found


def _pack_phase(
    layout: Layout, weights: Weights, kind: PhaseKind, layer: int | None, runs: Bytes
) -> None:
    plan, tiling = layout.plan, layout.tilings[kind]
    roles = [matrix.role for matrix in phase_of(plan, kind, 0).matrices]
    matrices = {role: patterns(weights, role, layer, plan.dtype) for role in roles}
    for worker in range(plan.groups.workers):
        rows = [
            matrices[x.role][x.lane, x.begin : x.end]
            for x in pieces(plan, kind, worker, layer or 0)
        ]
        packed = pack_rows(np.concatenate(rows), tiling)
        runs[worker, : packed.size] = packed


def pack_rows(rows: Array, tiling: Tiling) -> Bytes:
    """Return a block's tiles of one phase, [run bytes], from its rows [n, columns] of patterns.

    Tiles lie as [round][step][warp][column tile of the step][row tile of the group].
    """
    t = tiling
    padded = np.zeros((t.padded_rows, t.padded_columns), rows.dtype)
    padded[: rows.shape[0], : rows.shape[1]] = rows
    # [row-tile group, row tile, row, part, step, column tile, column]
    tiles = padded.reshape(-1, t.group, TILE, t.parts, t.steps, t.step, TILE)
    # Unit u = group * parts + part is that of warp u % warps in round u // warps.
    units = tiles.transpose(0, 3, 4, 5, 1, 2, 6)
    units = units.reshape(t.rounds, t.warps, t.steps, t.step, t.group, TILE, TILE)
    return fragments(units.transpose(0, 2, 1, 3, 4, 5, 6))


def widened(weights: Weights) -> Weights:
    """Return in float32 what a kernel computes with in float8: for oracles, and to tell the cost.

    Matrices as code x scale, which float32 holds to its last bit; the embedding in float16.
    """

    def wide(role: Role, array: Array) -> Array:
        if role is Role.EMBEDDING:
            return array.astype(HALVES["float8"]).astype(np.float32)
        if role not in _MATRICES:
            return array
        codes, scale = round_to_e4m3(array.astype(staged(array.dtype), copy=False))
        values: Array = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        return values * scale[..., None]

    outer = {role: wide(role, array) for role, array in weights.outer.items()}
    layers = tuple({r: wide(r, array) for r, array in layer.items()} for layer in weights.layers)
    return replace(weights, outer=outer, layers=layers)


def fragments(tiles: Array) -> Bytes:
    """Return tiles [..., 16, 16] as a warp loads them: each thread's bytes together, flat.

    Thread 4 g + q holds the columns 4 q .. 4 q + 3 of the rows g and g + 8: of 16-bit patterns the
    first two columns of both rows, then the other two; of 8-bit ones row g, then row g + 8.
    """
    order: tuple[int, ...]
    if tiles.dtype.itemsize == 1:
        split = tiles.reshape(*tiles.shape[:-2], 2, 8, 4, 4)  # half, g, q, column
        order = (1, 2, 0, 3)
    else:
        split = tiles.reshape(*tiles.shape[:-2], 2, 8, 4, 2, 2)  # half, g, q, pair, column
        order = (1, 2, 3, 0, 4)
    outer = tiles.ndim - 2
    moved = split.transpose(*range(outer), *(outer + i for i in order))
    return np.ascontiguousarray(moved).reshape(-1).view(np.uint8)


def round_to_e4m3(rows: Array) -> tuple[Array, npt.NDArray[np.float32]]:
    """Return rows [..., columns] as float8 e4m3 patterns, and the float32 scale of each row [...].

    row ~ scale * value, the largest value of a row being the format's largest; a row of zeros has
    scale 1. A scale for a row is enough: docs/quantization.md tells what smaller groups would gain.
    """
    wide = rows.astype(np.float32)
    scale = np.abs(wide).max(axis=-1) / np.float32(_LARGEST_E4M3)
    scale = np.where(scale > 0, scale, np.float32(1)).astype(np.float32)
    values = (wide / scale[..., None]).astype(ml_dtypes.float8_e4m3fn)
    return values.view(np.uint8), scale
