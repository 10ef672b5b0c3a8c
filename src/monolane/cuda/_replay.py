"""A GPU's answer computed anew on a processor, to the bit: a plain program of what the kernel adds.

Each function here is one of the kernel's (src/monolane/cuda/kernels), token by token, without
blocks that wait for each other. All of it is float32, rounded after each operation, in the kernel's
order; products are added as the matrix unit adds them (_matrix_unit.py). Neither the width of a
pass nor what else is in it changes a bit, so one token at a time gives what any launch gives.

Shape legend: L lanes, B blocks of a lane, D hidden, H query heads, K KV heads, h head width of a
lane, V vocabulary, S splits, W warps.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from monolane.cuda._layout import ROW_SCALED, Layout
from monolane.cuda._matrix_unit import Bits
from monolane.cuda._pack import HALVES, patterns, phase_of, row_scales
from monolane.cuda._tables import make_tables
from monolane.cuda._warp_arithmetic import (
    LOG2E,
    NOTHING,
    WARP,
    Floats,
    butterfly,
    capped,
    exp2,
    gelu_slope,
    pair_sum,
    remainder,
    warp_sum,
)
from monolane.model import Head, ModelConfig, QkNorm, Role, Weights
from monolane.plan import PhaseKind

_TILE = 16  # keys
_WORTH_THREADS = 1 << 20  # numbers of a matrix
Product = Callable[[str, Bits, Bits, Floats | None], Floats]


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A product's rows of all lanes, as the matrix unit takes them."""

    bits: npt.NDArray[np.uint16]  # [L or 1, R, C]
    scales: Floats | None  # [L or 1, R]
    parts: int
    columns: int  # of a part


class Replay:
    """A model on one GPU, one sequence: ``feed`` tokens, get logits."""

    def __init__(self, layout: Layout, weights: Weights, product: Product | None = None) -> None:
        self._layout, self._weights, self._product = layout, weights, product or native
        self._plan, self._config = layout.plan, layout.plan.config
        self._tables = make_tables(layout, weights)
        self._half = HALVES[self._plan.dtype]
        # What float8 is widened to before it is multiplied.
        self._dtype = "bfloat16" if self._plan.dtype == "bfloat16" else "float16"
        c = self._config
        lanes = c.num_lanes
        self._heads, self._kv_heads = c.num_heads // lanes, c.num_kv_heads // lanes
        shape = (c.num_layers, lanes, self._kv_heads, 0, c.head_dim)
        self._keys, self._values = (np.zeros(shape, np.uint16) for _ in range(2))
        self._outputs: dict[tuple[PhaseKind, int], Floats] = {}  # of each lane, [L, D]
        self._matrices: dict[tuple[Role, int | None], _Matrix] = {}

    @property
    def length(self) -> int:
        """Tokens fed so far."""
        return self._keys.shape[3]

    def feed(self, token: int) -> Floats:
        """Return the logits [V] behind one more token."""
        position, config = self.length, self._config
        room = np.zeros((*self._keys.shape[:3], 1, config.head_dim), np.uint16)
        self._keys, self._values = (
            np.concatenate([x, room], 3) for x in (self._keys, self._values)
        )
        embedded = self._tables.embedding[token].astype(np.float32)
        if config.embedding_scale != 1:
            embedded = embedded * np.float32(config.embedding_scale)
        x_LD = np.tile(embedded, (config.num_lanes, 1))
        for layer in range(config.num_layers):
            read_LD = self._read(self._tables.attention_norm, layer, x_LD)
            q_LHh = self._qkv(layer, position, read_LD)
            said = self._times(Role.O, layer, self._attend(layer, position, q_LHh))
            if self._tables.out_bias is not None:
                said = said + self._tables.out_bias[layer]
            x_LD = self._joined(PhaseKind.OUT, layer, x_LD, said)
            read_LD = self._read(self._tables.mlp_norm, layer, x_LD)
            gate, up = (self._times(role, layer, read_LD) for role in (Role.GATE, Role.UP))
            # -steep * LOG2E, 1 + 2^that, the quotient, times up: each rounded.
            steep = gate if config.activation == "silu" else gelu_slope(gate)
            hidden = (gate / (np.float32(1) + exp2(-steep * LOG2E))) * up
            down = self._times(Role.DOWN, layer, self._rounded(hidden))
            x_LD = self._joined(PhaseKind.DOWN, layer, x_LD, down)
        return self._logits(x_LD)

    # ---- norms and products ----------------------------------------------------------------------
    def _rounded(self, x: Floats) -> npt.NDArray[np.uint16]:
        """Return 16-bit patterns."""
        bits: npt.NDArray[np.uint16] = x.astype(self._half).view(np.uint16)
        return bits

    def _wide(self, bits: npt.NDArray[np.uint16]) -> Floats:
        floats: Floats = bits.view(self._half).astype(np.float32)
        return floats

    def _inverse_norms(self, x_LD: Floats) -> Floats:
        """Return 1 / rms of each lane's stream, of the sums of squares of its blocks' rows."""
        return self._inverse_of_rows(x_LD, PhaseKind.OUT, Role.O, 0)

    def _inverse_of_rows(self, x: Floats, kind: PhaseKind, role: Role, layer: int) -> Floats:
        """The same of what a matrix makes, by the rows [L, R] that blocks have of it."""
        matrices = phase_of(self._plan, kind, layer).matrices
        bounds = next(matrix.share.bounds for matrix in matrices if matrix.role is role)
        squares = [warp_sum(x[:, begin:end] * x[:, begin:end]) for begin, end in pairwise(bounds)]
        return self._inverse(warp_sum(np.stack(squares, 1)), x.shape[1])

    def _inverse(self, total: Floats, count: int) -> Floats:
        mean = total / np.float32(count) + np.float32(self._config.norm_eps)
        inverse: Floats = np.float32(1) / np.sqrt(mean)
        return inverse

    def _normed(self, x_LD: Floats, scale: Floats) -> npt.NDArray[np.uint16]:
        """Return a norm's result as activations [L, D]; ``scale`` [L or 1, D]."""
        return self._rounded((x_LD * self._inverse_norms(x_LD)[:, None]) * scale)

    def _read(self, scales: Floats | None, layer: int, x_LD: Floats) -> npt.NDArray[np.uint16]:
        """Return what a module reads of the streams, which are normed if there are ``scales``."""
        return self._rounded(x_LD) if scales is None else self._normed(x_LD, scales[layer])

    def _matrix(self, role: Role, layer: int | None) -> _Matrix:
        if (role, layer) not in self._matrices:
            self._matrices[role, layer] = self._taken(role, layer)
        return self._matrices[role, layer]

    def _taken(self, role: Role, layer: int | None) -> _Matrix:
        plan, dtype = self._plan, self._plan.dtype
        bits, scales = patterns(self._weights, role, layer, dtype), None
        if dtype in ROW_SCALED:
            scales = row_scales(self._weights, role, layer)
            bits = bits.view(ml_dtypes.float8_e4m3fn).astype(np.float16).view(np.uint16)
        kind = next(
            kind
            for kind in self._layout.tilings
            if role in [x.role for x in phase_of(plan, kind, 0).matrices]
        )
        tiling = self._layout.tilings[kind]
        return _Matrix(bits, scales, tiling.parts, tiling.depth * _TILE)

    def _times(self, role: Role, layer: int | None, x: npt.NDArray[np.uint16]) -> Floats:
        """Return a matrix times activations: each lane's rows [L, R] of its own [L, C]."""
        matrix = self._matrix(role, layer)
        found = []
        for lane in range(len(x)):
            own = lane if len(matrix.bits) > 1 else 0
            rows, total = matrix.bits[own], None
            for part in range(matrix.parts):
                columns = slice(part * matrix.columns, (part + 1) * matrix.columns)
                if part and columns.start >= rows.shape[1]:
                    one = np.zeros(len(rows), np.float32)
                else:
                    one = self._product(self._dtype, rows[:, columns], x[lane][None, columns], None)
                total = one if total is None else total + one
            assert total is not None
            found.append(total if matrix.scales is None else total * matrix.scales[own])
        return np.stack(found)

    # ---- attention -------------------------------------------------------------------------------
    def _qkv(self, layer: int, position: int, read_LD: npt.NDArray[np.uint16]) -> Any:
        """Return queries as 16 bits [L, H, h]; keep the position's keys and values."""
        c, lanes = self._config, self._config.num_lanes
        q, k, v = (self._times(role, layer, read_LD) for role in (Role.Q, Role.K, Role.V))
        if self._tables.qkv_bias is not None:
            bias = self._tables.qkv_bias[layer]
            ends = np.cumsum([q.shape[1], k.shape[1]])
            q, k, v = (x + b for x, b in zip((q, k, v), np.split(bias, ends, axis=1), strict=True))
        gains = [
            self._inverse_of_rows(x, PhaseKind.QKV, role, layer)
            if c.qk_norm is QkNorm.ALL
            else None
            for x, role in ((q, Role.Q), (k, Role.K))
        ]
        q, k, v = (x.reshape(lanes, -1, c.head_dim) for x in (q, k, v))
        pairs = pair_order(c)
        q, k = (x[..., pairs] for x in (q, k))  # [L, H, h / 2, 2]
        if not c.norm_turned:
            q, k = self._heads_normed(layer, (q, k), gains, pairs)
        if (which := c.layers[layer].rotary) != "none":
            turns = self._tables.rotary[int(which == "local"), position]
            q, k = (turned(x, turns) for x in (q, k))
        if c.norm_turned:
            q, k = self._heads_normed(layer, (q, k), gains, pairs)
        if c.attention(layer).temperature is not None:
            assert self._tables.temperature is not None
            q = q * self._tables.temperature[position]
        back = np.argsort(pairs.reshape(-1))
        q, k = (x.reshape(*x.shape[:2], -1)[..., back] for x in (q, k))
        self._keys[layer, :, :, position] = self._rounded(k)
        self._values[layer, :, :, position] = self._rounded(v)
        return self._rounded(q)

    def _heads_normed(
        self, layer: int, both: Sequence[Floats], gains: Sequence[Floats | None], pairs: Any
    ) -> tuple[Floats, ...]:
        """Norm queries and keys [L, H, h / 2, 2], if they are normed.

        ``gains`` [L] of all heads, else each has its own: a thread sums both numbers of a pair.
        """
        scales = self._tables.qk_norm
        if scales is None:
            return tuple(both)
        heads = [1, 1] if gains[0] is None else [self._heads, self._kv_heads]
        found = []
        for x, gain, scale in zip(both, gains, np.split(scales[layer], heads[:1]), strict=True):
            if gain is None:
                own = self._inverse(pair_sum(x * x), self._config.head_dim)[..., None, None]
            else:
                own = gain[:, None, None, None]
            found.append((x * own) * scale[:, pairs])
        return tuple(found)

    def _attend(self, layer: int, position: int, q_LHh: npt.NDArray[np.uint16]) -> Any:
        """Return what attention says, as activations [L, H h]."""
        c, group = self._config, self._heads // self._kv_heads
        window = self._layout.layers[layer].window
        oldest = position - window + 1 if window and position >= window else 0
        found = np.zeros((c.num_lanes, self._heads, c.head_dim), np.float32)
        for lane in range(c.num_lanes):
            for kv_head in range(self._kv_heads):
                rows = slice(kv_head * group, (kv_head + 1) * group)
                keys, values = (x[layer, lane, kv_head] for x in (self._keys, self._values))
                splits = [
                    self._split(split, q_LHh[lane, rows], keys, values, oldest, position)
                    for split in range(self._plan.splits)
                ]
                found[lane, rows] = merged(splits)
        return self._rounded(found.reshape(c.num_lanes, -1))

    def _split(
        self, split: int, q_Gh: Any, keys: Any, values: Any, oldest: int, position: int
    ) -> tuple[Floats, Floats, Floats]:
        """Return sums [G, h], maxima [G] and totals [G] of a split's keys."""
        warps, chunk, splits = self._layout.warps, self._plan.device.chunk, self._plan.splits
        states = [_Running(len(q_Gh), q_Gh.shape[1]) for _ in range(warps)]
        tiles = chunk // _TILE
        tile = (oldest // chunk + splits - 1 - split) // splits * tiles
        scale = LOG2E * np.float32(self._score_scale)
        while True:
            base = (tile // tiles * splits + split) * chunk + tile % tiles * _TILE
            if base > position:
                break
            if base + _TILE > oldest:
                self._tile(states[tile % warps], q_Gh, keys, values, base, oldest, scale)
            tile += 1
        for state in states:
            state.settle()
        top = np.maximum.reduce(
            [NOTHING + np.zeros(len(q_Gh), np.float32), *[x.top for x in states]]
        )
        sums, total = np.zeros_like(states[0].sums), np.zeros(len(q_Gh), np.float32)
        for state in states:
            keep = remainder(state.top, top)
            sums = sums + state.sums * keep[:, None]
            total = total + state.total[:, 0] * keep
        return sums, top, total

    @property
    def _score_scale(self) -> float:
        c = self._config
        return c.head_dim**-0.5 if c.query_scale is None else c.query_scale

    def _tile(
        self, state: "_Running", q_Gh: Any, keys: Any, values: Any, base: int, oldest: int,
        scale: np.float32,
    ) -> None:  # fmt: skip
        """Take in 16 keys from ``base`` on, of which those from ``oldest`` to the last are seen."""
        count = min(_TILE, len(keys) - base)
        group, width = q_Gh.shape
        own_keys, own_values = (np.zeros((_TILE, width), np.uint16) for _ in range(2))
        own_keys[:count], own_values[:count] = (
            keys[base : base + count],
            values[base : base + count],
        )
        at = base + np.arange(_TILE)
        seen = (at >= oldest) & (at < len(keys))
        pairs = np.repeat(q_Gh, _TILE, 0), np.tile(own_keys, (group, 1))
        score = self._product(self._dtype, *pairs, None).reshape(group, _TILE)
        if (cap := self._config.score_cap) is None:
            score = score * scale
        else:
            score = capped(score * np.float32(self._score_scale), cap) * LOG2E
        largest = np.where(seen, score, NOTHING).max(1)
        top = np.maximum(largest, state.top)
        keep = remainder(state.top, top)
        weight = np.where(seen, exp2(score - top[:, None]), np.float32(0))
        total = state.total * keep[:, None]
        # Thread q of four has keys 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, in this order.
        by_thread = weight.reshape(group, 2, 4, 2).transpose(0, 2, 1, 3).reshape(group, 4, 4)
        for i in range(4):
            total = total + by_thread[:, :, i]
        own_values[~seen] = 0
        sums = state.sums * keep[:, None]
        shape = (group, width, _TILE)
        state.sums = self._product(
            self._dtype,
            np.broadcast_to(self._rounded(weight)[:, None], shape).reshape(-1, _TILE),
            np.broadcast_to(own_values.T[None], shape).reshape(-1, _TILE),
            sums.reshape(-1),
        ).reshape(group, width)
        state.top, state.total = top, total

    # ---- streams ---------------------------------------------------------------------------------
    def _joined(self, kind: PhaseKind, layer: int, x_LD: Floats, output_LD: Floats) -> Floats:
        """Return the streams behind a module, by the rule of its layer."""
        own = self._layout.layers[layer]
        delay = (own.attention if kind is PhaseKind.OUT else own.mlp).delay
        lanes = self._config.num_lanes
        self._outputs[kind, layer] = output_LD
        gain = output_LD
        if delay < 0:
            gain = output_LD * np.sqrt(np.float32(lanes))
        elif lanes > 1:
            gain = np.zeros_like(output_LD)
            other = self._outputs[kind, layer - delay]
            for lane in range(lanes):
                total = np.zeros_like(output_LD[lane])
                for source in range(lanes):
                    if delay == 0 or source != lane:
                        total = total + other[source]
                gain[lane] = total + output_LD[lane] if delay else total
        if (after := self._tables.after_norm) is not None:
            scale = after[layer, int(kind is PhaseKind.DOWN)]
            gain = (gain * self._inverse_norms(gain)[:, None]) * scale
        residual = np.float32(self._config.residual_scale)
        return x_LD + (gain if residual == 1 else gain * residual)

    def _logits(self, x_LD: Floats) -> Floats:
        c, logits = self._config, self._raw_logits(x_LD)
        if c.logit_scale != 1:
            logits = logits * np.float32(c.logit_scale)
        return logits if c.logit_cap is None else capped(logits, c.logit_cap)

    def _raw_logits(self, x_LD: Floats) -> Floats:
        c, scale = self._config, self._tables.final_norm
        if c.num_lanes == 1 or c.head is Head.VOCAB_PARALLEL:
            return self._times(Role.HEAD, None, self._normed(x_LD, scale)).reshape(-1)
        if c.head is Head.SUM:
            total = np.zeros_like(x_LD[0])
            for lane in x_LD:
                total = total + lane
            read = (total * self._inverse(self._of_columns(total), c.hidden_size)) * scale[0]
        else:
            joined = (x_LD * self._inverse_norms(x_LD)[:, None]) * scale
            if c.head is Head.CONCAT:
                read = joined.reshape(-1)
            else:
                total = np.zeros_like(joined[0])
                for lane in joined:
                    total = total + lane
                read = total * np.float32(1 / np.float32(c.num_lanes))
        return self._times(Role.HEAD, None, self._rounded(read)[None]).reshape(-1)

    def _of_columns(self, total: Floats) -> Floats:
        """Return the sum of squares, as the threads of a block share columns out, two by two."""
        threads = self._layout.warps * WARP
        square = np.zeros(threads, np.float32)
        for begin in range(0, len(total), 2 * threads):
            pair = np.pad(total[begin : begin + 2 * threads], (0, 2 * threads))[: 2 * threads]
            pair = pair.reshape(threads, 2)
            square = square + (pair[:, 0] * pair[:, 0] + pair[:, 1] * pair[:, 1])
        found = np.zeros((), np.float32)
        for warp in square.reshape(-1, WARP):
            found = found + butterfly(warp)
        return found


class _Running:
    """What a warp knows of G query rows behind some tiles; totals by the four threads of a row."""

    def __init__(self, group: int, width: int) -> None:
        self.top = np.full(group, NOTHING, np.float32)
        self.total = np.zeros((group, 4), np.float32)
        self.sums = np.zeros((group, width), np.float32)

    def settle(self) -> None:
        """Add the threads' totals up."""
        total = self.total + self.total[:, [1, 0, 3, 2]]
        self.total = total + total[:, [2, 3, 0, 1]]


def native(dtype: str, rows: Bits, columns: Bits, before: Floats | None) -> Floats:
    """Return what ``_matrix_unit.chain`` does, in C++ and on all processors."""
    from monolane._core import kernels  # which nothing else here needs

    half = dtype == "float16"
    rows, columns = (np.ascontiguousarray(x, np.uint16) for x in (rows, columns))
    found = np.empty(len(rows), np.float32)
    threads = (os.cpu_count() or 1) if rows.size > _WORTH_THREADS else 1
    bounds = np.linspace(0, len(rows), threads + 1).astype(int)

    def some(begin: int, end: int) -> None:
        part = slice(begin, end)
        own = columns if len(columns) == 1 else columns[part]
        behind = None if before is None else before[part]
        found[part] = kernels.add_matrix_products(rows[part], own, behind, half)

    spans = list(pairwise(bounds.tolist()))
    if threads == 1:
        some(*spans[0])
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda span: some(*span), spans))
    return found


def merged(splits: Sequence[tuple[Floats, Floats, Floats]]) -> Floats:
    """Return attention's result [G, h] of its splits, in their order."""
    sums_Gh = np.zeros_like(splits[0][0])
    top, total = np.full(len(sums_Gh), NOTHING, np.float32), np.zeros(len(sums_Gh), np.float32)
    for own_sums, own_top, own_total in splits:
        some = own_top != NOTHING
        larger = np.maximum(top, own_top)
        keep, gain = remainder(top, larger), exp2(own_top - larger)
        total = np.where(some, total * keep + own_total * gain, total)
        both = sums_Gh * keep[:, None] + own_sums * gain[:, None]
        sums_Gh = np.where(some[:, None], both, sums_Gh)
        top = np.where(some, larger, top)
    found: Floats = sums_Gh * (np.float32(1) / total)[:, None]
    return found


def turned(x: Floats, turns: Floats) -> Floats:
    """Return heads [L, H, h / 2, 2] turned by a position's cosines and sines [h / 2, 2]."""
    cosine, sine = turns[:, 0], turns[:, 1]
    first, second = x[..., 0], x[..., 1]
    return np.stack([first * cosine - second * sine, second * cosine + first * sine], -1)


def pair_order(config: ModelConfig) -> Any:
    """Return a head's numbers in pairs, first those that turn together: [h / 2, 2]."""
    numbers = np.arange(config.head_dim)
    if config.rotary.style == "interleaved":
        return numbers.reshape(-1, 2)
    turned = config.rotary_dim("main")
    first = numbers[:turned].reshape(2, -1).T
    return np.concatenate([first, numbers[turned:].reshape(-1, 2)])
