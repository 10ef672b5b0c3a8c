"""Attention to keys in a window and to compressed entries, as its definition.

Shape legend: T tokens of the pass, S cached tokens, E entries, D hidden, H heads, h their width;
of entries m tokens of each, s series; of an index H heads of width d.
"""

import numpy as np
import numpy.typing as npt

from monolane.ops._names import Role
from monolane.ops.compressed.spec import ENTRIES, INDEX_ENTRIES, Compressed, Compressor
from monolane.reference import (
    Computation,
    Floats,
    LayerPass,
    Row,
    attend_seen,
    choose_keys,
    linear,
    rms_norm,
    rotate,
    softmax,
)

Positions = npt.NDArray[np.int64]


def _run(c: Compressed, p: LayerPass, x_1TD: Floats) -> Floats:
    width = x_1TD.shape[1]
    positions_T = np.arange(p.cache.length, p.cache.length + width)
    made_of = p.norm(linear(x_1TD, p.weights[Role.Q_DOWN]), p.weights[Role.Q_NORM])
    q = linear(made_of, p.weights[Role.Q]).reshape(1, width, c.heads, c.width)
    q = _turn(c, p, rms_norm(q, np.ones((1, 1), np.float32), p.config.norm_eps), positions_T)
    k = p.norm(linear(x_1TD, p.weights[Role.KV_DOWN]), p.weights[Role.K_NORM])
    (keys,) = p.cache.append(p.layer, _turn(c, p, k[:, :, None], positions_T))
    place_S = np.arange(keys.shape[1])
    hidden = (place_S > positions_T[:, None]) | (place_S <= positions_T[:, None] - c.window)
    if c.compressor is not None:
        entries_Eh = _entries(c, p, x_1TD, ENTRIES, 1)
        unseen = _unseen(c.compressor, p, x_1TD, made_of, c, positions_T, len(entries_Eh))
        keys = np.concatenate([keys, entries_Eh[None, :, None]], axis=1)
        hidden = np.concatenate([hidden, unseen], axis=1)
    said = attend_seen(q, keys, keys, hidden, c.width**-0.5, p.weights[Role.SINKS])
    said = _turn(c, p, said.reshape(1, width, c.heads, c.width), -positions_T)
    grouped_gTX = said.reshape(width, c.groups, -1).swapaxes(0, 1)
    down_gRX = p.weights[Role.O_DOWN].reshape(c.groups, c.group_rank, -1)
    joined = linear(grouped_gTX, down_gRX).swapaxes(0, 1).reshape(1, width, -1)
    return linear(joined, p.weights[Role.O])


def _unseen(
    compressor: Compressor,
    p: LayerPass,
    x_1TD: Floats,
    made_of_1TQ: Floats,
    c: Compressed,
    positions_T: Positions,
    count: int,
) -> npt.NDArray[np.bool_]:
    """Return which entries each token does not see: [T, E]."""
    unseen_TE = np.arange(count) >= (positions_T[:, None] + 1) // compressor.ratio
    heads, width = compressor.index_heads, compressor.index_width
    if not heads:
        return unseen_TE
    keys_Ed = _entries(c, p, x_1TD, INDEX_ENTRIES, 3)
    q = linear(made_of_1TQ, p.weights[Role.INDEX_Q]).reshape(1, len(positions_T), heads, width)
    q_THd = _turn(c, p, q, positions_T)[0]
    weights_TH = linear(x_1TD, p.weights[Role.INDEX_WEIGHTS])[0] * np.float32(heads**-0.5)
    return ~choose_keys(q_THd, keys_Ed, weights_TH, unseen_TE, compressor.chosen)


def _entries(
    c: Compressed, p: LayerPass, x_1TD: Floats, roles: tuple[Role, ...], at: int
) -> Floats:
    """Return the entries of all tokens so far that have as many as one takes: [E, h].

    ``at``: the place of what is kept of each token, of which they are made anew in each pass.
    """
    compressor = c.compressor
    assert compressor is not None
    kv, gate, bias, norm = (p.weights[role] for role in roles)
    new = (linear(x_1TD, matrix)[:, :, None] for matrix in (kv, gate))
    said, gates = (x[0, :, 0] for x in p.cache.append(p.layer, *new, at=at))  # [S, s*h]
    ratio, width = compressor.ratio, norm.shape[-1]
    count = len(said) // ratio
    shape = (count, ratio, said.shape[-1])  # of no entries, too
    said_EmX = said[: count * ratio].reshape(shape)
    gates_EmX = gates[: count * ratio].reshape(shape) + bias
    if compressor.overlap:
        said_EmX = np.concatenate(
            [_before(said_EmX[..., :width], 0), said_EmX[..., width:]], axis=1
        )
        first = _before(gates_EmX[..., :width], -np.inf)
        gates_EmX = np.concatenate([first, gates_EmX[..., width:]], axis=1)
    shares = softmax(gates_EmX.swapaxes(1, 2)).swapaxes(1, 2)
    entries_1Eh = p.norm((said_EmX * shares).sum(axis=1)[None], norm)
    return _turn(c, p, entries_1Eh[:, :, None], np.arange(count) * ratio)[0, :, 0]


def _before(x_EmX: Floats, first: float) -> Floats:
    """Return what each entry's neighbour before it has; the first one's is ``first``."""
    shifted: Floats = np.full_like(x_EmX, np.float32(first))
    shifted[1:] = x_EmX[:-1]
    return shifted


def _turn(c: Compressed, p: LayerPass, x_LTHh: Floats, positions_T: Positions) -> Floats:
    """Turn the last numbers of each head by positions of their own."""
    rotary = p.config.rotary if c.compressor is not None else p.config.local_rotary
    assert rotary is not None
    plain, turned = np.split(x_LTHh, [x_LTHh.shape[-1] - c.turned], axis=-1)
    frequencies = rotary.frequencies(c.turned)
    turned = rotate(turned, positions_T, frequencies, rotary.style, rotary.amplitude)
    return np.concatenate([plain, turned], axis=-1)


def _rows(c: Compressed, lanes: int) -> tuple[Row, ...]:
    """A key; beside it what its entry, and that of the index, takes of a token."""
    del lanes
    rows = [Row(1, c.width)]
    if c.compressor is not None:
        widths = [c.width, *([c.compressor.index_width] if c.compressor.index_heads else [])]
        each = [Row(1, c.compressor.series * width, rounded=False) for width in widths]
        rows += [row for row in each for _ in range(2)]
    return tuple(rows)


COMPUTATION = Computation(Compressed, _run, rows=_rows)
