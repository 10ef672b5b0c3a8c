"""The small arrays beside the weights: rotary table, shares, norms, biases, embedding."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.cuda._layout import PRODUCTS, SHARED_ROLES, Layout
from monolane.cuda._pack import HALVES
from monolane.errors import ConfigError
from monolane.model import LayerRotary, ModelConfig, QkNorm, Role, Weights
from monolane.plan import PhaseKind

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

_BIASES = (Role.Q_BIAS, Role.K_BIAS, Role.V_BIAS)
_HEAD_NORMS = (Role.Q_NORM, Role.K_NORM)
_WIDENED_ROWS = 1024  # of a quantised embedding, at a time


@dataclass(frozen=True, slots=True)
class Tables:
    """What the kernel reads besides tiles, as Params names it; what a model lacks is None."""

    embedding: npt.NDArray[Any]  # 16-bit [V, D]
    attention_norm: Floats | None  # [N, L or 1, D]
    mlp_norm: Floats | None  # [N, L or 1, D]
    after_norm: Floats | None  # [N, 2, L or 1, D]: of what modules add
    final_norm: Floats  # [L or 1, D]
    qkv_bias: Floats | None  # [N, L, (H + 2 K) / L * h]
    out_bias: Floats | None  # [N, D]
    qk_norm: Floats | None  # [N, 2, h], or of all heads [N, H + K, h]
    rotary: Floats  # [rotaries, context, h / 2, 2]
    temperature: Floats | None  # [context]: of queries
    shares: Words  # [ways of sharing out, tables, W, 2]
    rounds: npt.NDArray[np.uint8]  # [W, 4 x ways + 1]: see Layout.rounds
    gains: npt.NDArray[Any] | None = None  # 16-bit [2 N + 1, lanes or 1, D], by event


def make_tables(layout: Layout, weights: Weights) -> Tables:
    """Return the tables of a model; what is stored in the wanted format is viewed, not copied.

    ConfigError if TABLES wants norms in 16 bits that these have not.
    """
    plan, layers = layout.plan, weights.layers
    bias = head_norm = temperature = after = None
    before: list[Floats | None] = [None, None]
    offset = np.float32(plan.config.norm_offset)
    if plan.config.norm_before:
        before = [_stack(weights, x) + offset for x in (Role.ATTENTION_NORM, Role.MLP_NORM)]
    if plan.config.norm_after:
        roles = Role.POST_ATTENTION_NORM, Role.POST_MLP_NORM
        after = np.stack([_stack(weights, x) + offset for x in roles], axis=1)
    if plan.config.qkv_bias:
        parts = [[layer[role] for role in _BIASES] for layer in layers]
        bias = np.stack([np.concatenate(part, axis=1) for part in parts]).astype(np.float32)
    if plan.config.qk_norm is QkNorm.HEAD:
        ones = np.ones((1, plan.config.head_dim), np.float32)
        parts = [[layer.get(role, ones) for role in _HEAD_NORMS] for layer in layers]
        head_norm = np.stack([np.concatenate(part) for part in parts]).astype(np.float32) + offset
    if plan.config.qk_norm is QkNorm.ALL:
        parts = [[layer[role] for role in _HEAD_NORMS] for layer in layers]
        whole = np.stack([np.concatenate(part, axis=1) for part in parts]).astype(np.float32)
        head_norm = whole.reshape(len(layers), -1, plan.config.head_dim) + offset
    if plan.config.attention_temperature is not None:
        temperature = plan.config.attention_temperature.factors(np.arange(plan.context))
    rotaries: tuple[LayerRotary, ...] = ("main",)
    if plan.config.local_rotary is not None:
        rotaries += ("local",)
    return Tables(
        embedding=_embedding(weights, HALVES[plan.dtype]),
        attention_norm=before[0],
        mlp_norm=before[1],
        after_norm=after,
        final_norm=weights.outer[Role.FINAL_NORM].astype(np.float32) + offset,
        qkv_bias=bias,
        out_bias=_stack(weights, Role.O_BIAS)[:, 0] if plan.config.out_bias else None,
        qk_norm=head_norm,
        rotary=np.stack([rotary_table(plan.config, plan.context, x) for x in rotaries]),
        temperature=temperature,
        shares=np.stack([share_tables(layout, i) for i in range(layout.share_layers)]),
        rounds=layout.rounds,
        gains=_gains(weights) if layout.gains_apart else None,
    )


def _embedding(weights: Weights, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    matrix = weights.matrix(Role.EMBEDDING, None)
    if isinstance(matrix, np.ndarray):
        return matrix.astype(dtype, copy=False)
    found = np.empty(matrix.shape, dtype)
    for first in range(0, len(found), _WIDENED_ROWS):  # of a large vocabulary it takes gigabytes
        part = slice(first, first + _WIDENED_ROWS)
        found[part] = matrix[part].widened()
    return found


def rotary_table(config: ModelConfig, context: int, which: LayerRotary = "main") -> Floats:
    """Return cosine and sine of each position and pair, times amplitude: [context, h / 2, 2].

    The angle is a float32 product, as in the CPU executor; its cosine is taken in float64 and
    rounded once, which is what a correctly rounded float32 cosine gives on any machine. Pairs of
    the part of a head that does not turn have 1 and 0.
    """
    rotary = config.local_rotary if which == "local" else config.rotary
    assert rotary is not None
    frequency = rotary.frequencies(config.rotary_dim(which))
    angle = np.arange(context, dtype=np.float32)[:, None] * frequency
    wide = angle.astype(np.float64)
    table = np.zeros((context, config.head_dim // 2, 2), np.float32)
    table[..., 0] = 1
    table[:, : len(frequency)] = rotary.amplitude * np.stack([np.cos(wide), np.sin(wide)], axis=-1)
    return table


def share_tables(layout: Layout, layer: int = 0) -> Words:
    """Return the rows (begin, end) of each worker in a layer: [tables, W, 2].

    Tables Q K V O GATE DOWN HEAD, then the units of ATTEND, those of GATHER (none where each lane
    has a head of its own), and the pairs that a block merges (none where each merges all).
    """
    plan = layout.plan
    shares = {
        matrix.role: matrix.share
        for kind in PRODUCTS
        for matrix in plan.find(kind, -1 if kind is PhaseKind.HEAD else layer).matrices
    }
    listed = [shares[role] for role in SHARED_ROLES] + [plan.find(PhaseKind.ATTEND, 0).units]
    listed.append(plan.find(PhaseKind.GATHER).units if plan.shared_head else None)
    listed.append(layout.merge_share)
    workers = range(plan.groups.workers)
    rows = [[(0, 0) if share is None else share.of(w) for w in workers] for share in listed]
    return np.array(rows, np.uint32)


def gain_lanes(config: ModelConfig) -> int:
    """Return for how many lanes there are norms of their own, of any kind."""
    apart = config.norm_scale_per_lane or config.final_norm_per_lane
    return config.num_lanes if apart else 1


def _gains(weights: Weights) -> npt.NDArray[Any]:
    """Return the scales of all norms in the format of the files: attention, MLP, ..., final."""
    config = weights.config
    roles = (Role.ATTENTION_NORM, Role.MLP_NORM)
    listed = [layer[role] for layer in weights.layers for role in roles]
    listed.append(weights.outer[Role.FINAL_NORM])
    shape = gain_lanes(config), config.hidden_size
    offset = np.float32(config.norm_offset)
    exact = np.stack([np.broadcast_to(x.astype(np.float32) + offset, shape) for x in listed])
    found = exact.astype(HALVES[config.dtype])
    if not np.array_equal(found.astype(np.float32), exact):
        raise ConfigError(
            f"cuda: Switch.TABLES: expected norms that {config.dtype} holds exactly; leave it off"
        )
    return found


def _stack(weights: Weights, role: Role) -> Floats:
    return np.stack([layer[role].astype(np.float32) for layer in weights.layers])
