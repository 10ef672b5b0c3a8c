"""Weights in consumption order: where each weight of a phase lies in the stream of matvec.cu.

A unit is (row tile, part of the columns); warp w takes units w, w + 8, ...; step s of the stream
holds, for each warp, the piece that it takes then. Everything here is an array of positions, so
that packing, unpacking and the reference share one definition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

WARPS = 8
BITS = {"bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
GROUP = 128  # columns per scale of an int4 row

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PhaseLayout:
    """The stream of one phase: `kind` of weights, by FMA or by matrix instructions."""

    kind: str
    fma: bool
    rows: int  # as the model has them
    columns: int

    @property
    def padded_rows(self) -> int:
        """Rows up to whole 16-row tiles."""
        return (self.rows + 15) // 16 * 16

    @property
    def tile_rows(self) -> int:
        """Rows of one unit."""
        return 4 if self.fma else 16

    @property
    def row_tiles(self) -> int:
        """Units down the rows."""
        return self.padded_rows // self.tile_rows

    @property
    def column_parts(self) -> int:
        """Units across the columns, so that all warps get the same number."""
        return WARPS // math.gcd(self.row_tiles, WARPS)

    @property
    def piece_columns(self) -> int:
        """Columns of one piece."""
        if self.fma:
            return 32 * (128 // BITS[self.kind])
        return 64 if self.kind == "bf16" else GROUP

    @property
    def piece_bytes(self) -> int:
        """Bytes of one piece, an int4 piece with its 16 scales."""
        weights = self.tile_rows * self.piece_columns * BITS[self.kind] // 8
        return weights + (16 * 4 if self.kind == "int4" else 0)

    @property
    def slot_bytes(self) -> int:
        """One step: a piece for every warp."""
        return WARPS * self.piece_bytes

    @property
    def steps(self) -> int:
        """Steps of the phase."""
        units = self.row_tiles * self.column_parts
        return units // WARPS * (self.columns // self.column_parts // self.piece_columns)

    @property
    def phase_bytes(self) -> int:
        """Bytes that the phase streams."""
        return self.steps * self.slot_bytes

    def problem(self) -> str | None:
        """Why the layout is impossible, or None."""
        if self.columns % (self.column_parts * self.piece_columns):
            return (
                f"{self.columns} columns do not split into {self.column_parts} parts of whole "
                f"{self.piece_columns}-column pieces"
            )
        return None


def _column_in_piece(layout: PhaseLayout, rows: Array, columns: Array) -> Any:
    """Element index within the piece's weights."""
    per_vector = 128 // BITS[layout.kind]
    if layout.fma:
        lane, element = columns // per_vector, columns % per_vector
        return (rows * 32 + lane) * per_vector + element
    # m16n8k16, A: lane = row % 8 * 4 + column % 8 // 2; word = row // 8 + 2 * (column // 8 % 2);
    # the pair's half is the column's parity.
    tile, k = columns // 16, columns % 16
    lane = rows % 8 * 4 + k % 8 // 2
    word, half = rows // 8 + k // 8 * 2, k % 2
    if layout.kind == "bf16":
        return ((tile * 32 + lane) * 4 + word) * 2 + half
    if layout.kind == "int4":
        # A 32-bit word holds one tile; pair i sits in nibbles i and i + 4.
        return ((tile // 4 * 32 + lane) * 4 + tile % 4) * 8 + word + 4 * half
    return ((tile // 2 * 32 + lane) * 2 + tile % 2) * 8 + word * 2 + half


def _piece_start(layout: PhaseLayout, rows: Array, columns: Array) -> Any:
    """Byte offset of the piece that holds (row, column)."""
    part_columns = layout.columns // layout.column_parts
    unit = rows // layout.tile_rows * layout.column_parts + columns // part_columns
    pieces = part_columns // layout.piece_columns
    step = unit // WARPS * pieces + columns % part_columns // layout.piece_columns
    return step * layout.slot_bytes + unit % WARPS * layout.piece_bytes


@lru_cache(maxsize=16)
def positions(layout: PhaseLayout) -> Array:
    """[padded rows, columns]: the element's index, in elements of its width, from the start."""
    rows, columns = np.meshgrid(
        np.arange(layout.padded_rows), np.arange(layout.columns), indexing="ij"
    )
    inside = _column_in_piece(layout, rows % layout.tile_rows, columns % layout.piece_columns)
    start = _piece_start(layout, rows, columns) * 8 // BITS[layout.kind]
    out: Array = start + inside
    return out


@lru_cache(maxsize=16)
def scale_positions(layout: PhaseLayout) -> Array:
    """int4 only, [padded rows, groups]: the index of the group's scale in 4-byte words."""
    groups = layout.columns // GROUP
    rows, group = np.meshgrid(np.arange(layout.padded_rows), np.arange(groups), indexing="ij")
    weights = layout.piece_bytes - 16 * 4
    out: Array = (_piece_start(layout, rows, group * GROUP) + weights) // 4 + rows % 16
    return out


def pack(layout: PhaseLayout, codes: Array, scales: Array | None = None) -> npt.NDArray[np.uint8]:
    """The phase's bytes: `codes` [padded rows, columns] are the stored bit patterns."""
    out = np.zeros(layout.phase_bytes, np.uint8)
    at = positions(layout)
    if layout.kind == "bf16":
        out.view(np.uint16)[at] = codes
    elif layout.kind == "int4":
        nibbles = np.zeros(layout.phase_bytes * 2, np.uint8)
        nibbles[at] = codes
        out |= nibbles[0::2] | nibbles[1::2] << 4
        assert scales is not None
        out.view(np.float32)[scale_positions(layout)] = scales
    else:
        out[at] = codes
    return out


def unpack(layout: PhaseLayout, stream: npt.NDArray[np.uint8]) -> tuple[Array, Array | None]:
    """The inverse of `pack`: codes, and the scales of int4."""
    at = positions(layout)
    if layout.kind == "bf16":
        return stream.view(np.uint16)[at], None
    if layout.kind == "int4":
        nibbles = np.empty(stream.size * 2, np.uint8)
        nibbles[0::2], nibbles[1::2] = stream & 15, stream >> 4
        return nibbles[at], stream.view(np.float32)[scale_positions(layout)]
    return stream[at], None


# ---- codes and values ---------------------------------------------------------------------------
def random_codes(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """Stored bit patterns of random weights, all of them finite."""
    if kind == "bf16":
        values = rng.standard_normal(shape).astype(np.float32) * np.float32(0.05)
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    if kind == "fp8":  # e4m3: everything but the two NaN patterns
        codes = rng.integers(0, 254, shape, dtype=np.uint8)
        return np.where(codes >= 127, codes + 1, codes).astype(np.uint8)
    return rng.integers(0, 1 << BITS[kind], shape, dtype=np.uint8)


@cache
def _e4m3_values() -> Array:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    return np.where(code & 128, -value, value)


def values(kind: str, codes: Array, scales: Array | None = None) -> npt.NDArray[np.float64]:
    """What the codes stand for, in float64, without the row's scale."""
    if kind == "bf16":
        return (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind == "fp8":
        out: npt.NDArray[np.float64] = _e4m3_values()[codes]
        return out
    bias = 128.0 if kind == "int8" else 8.0
    plain = codes.astype(np.float64) - bias
    return plain if scales is None else plain * np.repeat(scales.astype(np.float64), GROUP, axis=1)


# ---- activations --------------------------------------------------------------------------------
def activations_fma(layout: PhaseLayout, x: npt.NDArray[np.float32]) -> Array:
    """[width, period] floats to [width][quad][vector][4], as fma_unit reads them."""
    per_vector = 128 // BITS[layout.kind]
    width, period = x.shape
    by_quad = x.reshape(width, period // per_vector, per_vector // 4, 4)
    return np.ascontiguousarray(by_quad.transpose(0, 2, 1, 3))


def activations_mma(bits: npt.NDArray[np.uint16]) -> Array:
    """[tokens (a multiple of 8), period] 16-bit patterns to B fragments, as mma_unit reads them."""
    tokens, period = bits.shape
    # b0 = columns 2t, 2t + 1 and b1 = 2t + 8, 2t + 9 of token g, lane = 4 g + t; two 16-column
    # tiles side by side give the lane's 16 bytes.
    split = bits.reshape(tokens // 8, 8, period // 32, 2, 2, 4, 2)  # tile g pair k16 high t parity
    return np.ascontiguousarray(split.transpose(2, 0, 1, 5, 3, 4, 6))
