"""Tensors of files that hold the rows of several roles, or parts of one's: and back again.

    KV_UP      of each head the rows of K_UP, which is read turned, then those of V_UP
    DELTA_IN   of each key head its rows of q, of k, of v and of z
    QKV        rows of Q, then of K, then of V
    GATE_UP    rows of GATE, then of UP
    ALTUP_IN, ALTUP_OUT    rows of the second stream, then of the third, ...
    DELTA_BETA, DELTA_ALPHA    of DELTA_GATES the rows of b, and those of a

Rows are moved, never what is in them. So the same holds of codes, of scales and of blocks.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from monolane.model._config import ModelConfig
from monolane.model._quant_matrix import Blocks, Matrix, Quantized
from monolane.model._safetensors import Array
from monolane.model._tensors import lane_shape
from monolane.ops import JOINED, PARTED, Delta, Role

_STREAMS = (Role.ALTUP_IN, Role.ALTUP_OUT)


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


def join_parts(config: ModelConfig, layer: dict[Role, Array]) -> None:
    """Put the wholes of ``PARTED`` in their parts' place, of a layer's arrays, lanes first."""
    for whole, parts in PARTED.items():
        if parts[0] not in layer:
            continue
        delta = config.delta
        assert delta is not None
        places = [delta.values_of(head) for head in range(delta.key_heads)]
        both = [layer.pop(part)[0] for part in parts]  # [U, D] each
        rows = [own[place] for place in places for own in both]
        layer[whole] = np.concatenate(rows)[None]


def part_of_whole(config: ModelConfig, part: Role, whole: Array) -> Array:
    """Return a part's rows [U, D] of the whole [1, 2 U, D], whose value heads are not tiled."""
    delta = config.delta
    assert delta is not None
    by_head = whole.reshape(delta.key_heads, 2, delta.each, -1)
    rows = by_head[:, PARTED[Role.DELTA_GATES].index(part)]
    return rows.reshape(delta.value_heads, -1)


def untiled(delta: Delta, role: Role, array: Array) -> Array:
    """Put tiled value heads behind those of the key heads before: see ops/delta/spec.py."""
    order = [place for head in range(delta.key_heads) for place in delta.values_of(head)]
    match role:
        case Role.DELTA_QKV | Role.DELTA_CONV:  # [1, channels, ...]
            parts = [
                part for head in range(delta.key_heads) for part in delta.channels_of(head)[2:]
            ]
            first = 2 * delta.key_heads * delta.key
            return np.concatenate([array[:, :first], *(array[:, part] for part in parts)], axis=1)
        case Role.DELTA_Z:  # [1, U*d_v, D]
            rows = array.reshape(delta.value_heads, delta.value, -1)
            return rows[order].reshape(array.shape)
        case Role.DELTA_OUT:  # [1, D, U*d_v]
            columns = array.reshape(array.shape[1], delta.value_heads, delta.value)
            return columns[:, order].reshape(array.shape)
        case Role.DELTA_DECAY | Role.DELTA_STEP:  # [1, U]
            return array[:, order]
    return array


def _parted(config: ModelConfig, role: Role, matrix: Matrix) -> Iterator[tuple[Role, Matrix]]:
    roles = _roles(config, role)
    if isinstance(matrix, np.ndarray):
        yield from zip(roles, _rows(config, role, matrix), strict=True)
    elif isinstance(matrix, Blocks):
        for own, rows in zip(roles, _rows(config, role, matrix.data), strict=True):
            yield own, replace(matrix, data=rows)
    else:
        both = (_rows(config, role, array) for array in (matrix.codes, matrix.scales))
        for own, codes, scales in zip(roles, *both, strict=True):
            yield own, Quantized(matrix.bits, codes, scales)


def _roles(config: ModelConfig, role: Role) -> tuple[Role, ...]:
    """Return the roles in one of ``JOINED``: of streams as many as a model has."""
    roles = JOINED[role]
    return roles[: config.num_streams - 1] if role in _STREAMS else roles


def _rows(config: ModelConfig, role: Role, array: Array) -> tuple[Array, ...]:
    """Return the rows of each role, lanes or heads first."""
    if role in (Role.QKV, Role.GATE_UP, *_STREAMS):
        ends = np.cumsum([lane_shape(config, own)[1] for own in _roles(config, role)])
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
