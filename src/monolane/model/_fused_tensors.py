"""Tensors of files that hold the rows of several roles: the matrices in them, and back again.

    KV_UP      of each head the rows of K_UP, which is read turned, then those of V_UP
    DELTA_IN   of each key head its rows of q, of k, of v and of z
    QKV        rows of Q, then of K, then of V
    GATE_UP    rows of GATE, then of UP

Rows are moved, never what is in them. So the same holds of codes, of scales and of blocks.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from monolane.model._config import ModelConfig
from monolane.model._quant_matrix import Blocks, Matrix, Quantized
from monolane.model._safetensors import Array
from monolane.model._tensors import lane_shape
from monolane.ops import JOINED, Role


def part_rows(config: ModelConfig, role: Role, matrix: Matrix) -> Iterator[tuple[Role, Matrix]]:
    """Yield the matrices that are in one of ``JOINED``, lanes or heads first; any other as it is.

    Those of DELTA_IN are copies, since none has its rows one behind the other; K_UP is turned,
    across blocks, and so of blocks in float32.
    """
    if role not in JOINED:
        yield role, matrix
        return
    for own, rows in _parted(config, role, matrix):
        if own is Role.K_UP:
            plain = rows if isinstance(rows, np.ndarray) else rows.widened()
            yield own, plain.swapaxes(1, 2)
        else:
            yield own, rows


def join_rows(config: ModelConfig, role: Role, *parts: Array) -> Array:
    """Return one of ``JOINED`` [heads, rows, columns] of the matrices of its roles."""
    if role in (Role.QKV, Role.GATE_UP):
        return np.concatenate(parts, axis=1)
    first, second = parts
    if role is Role.KV_UP:  # of [H, R, n] and [H, v, R]
        return np.concatenate([first.swapaxes(1, 2), second], axis=1)
    delta = config.delta
    assert delta is not None
    queries = delta.key_heads * delta.key
    kinds = [*np.split(first[0], (queries, 2 * queries)), second[0]]
    by_head = [kind.reshape(delta.key_heads, -1, kind.shape[-1]) for kind in kinds]
    return np.concatenate(by_head, axis=1)


def _parted(config: ModelConfig, role: Role, matrix: Matrix) -> Iterator[tuple[Role, Matrix]]:
    roles = JOINED[role]
    if isinstance(matrix, np.ndarray):
        yield from zip(roles, _rows(config, role, matrix), strict=True)
    elif isinstance(matrix, Blocks):
        for own, rows in zip(roles, _rows(config, role, matrix.data), strict=True):
            yield own, replace(matrix, data=rows)
    else:
        both = (_rows(config, role, array) for array in (matrix.codes, matrix.scales))
        for own, codes, scales in zip(roles, *both, strict=True):
            yield own, Quantized(matrix.bits, codes, scales)


def _rows(config: ModelConfig, role: Role, array: Array) -> tuple[Array, ...]:
    """Return the rows of each role, lanes or heads first."""
    if role in (Role.QKV, Role.GATE_UP):
        ends = np.cumsum([lane_shape(config, own)[1] for own in JOINED[role]])
        flat = array.reshape(-1, array.shape[-1])
        return tuple(rows[None] for rows in np.split(flat, ends[:-1]))
    if role is Role.KV_UP:
        assert config.latent is not None
        heads = array.reshape(config.num_heads, -1, array.shape[-1])
        return heads[:, : config.latent.plain], heads[:, config.latent.plain :]
    delta = config.delta
    assert delta is not None
    by_head = array.reshape(delta.key_heads, -1, array.shape[-1])
    ends = np.cumsum((delta.key, delta.key, delta.each * delta.value))
    q, k, v, z = (x.reshape(-1, array.shape[-1]) for x in np.split(by_head, ends, axis=1))
    return np.concatenate([q, k, v])[None], z[None]
