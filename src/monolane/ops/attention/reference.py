"""Attention, plain and latent, as its definition.

Shape legend: L lanes, T tokens of the pass, S cached tokens, D hidden, H query heads of a lane,
K KV heads of a lane, h width of a head; of latents R rank, r turned, n not turned, v of a value.
"""

import numpy as np
import numpy.typing as npt

from monolane.ops._names import Role
from monolane.ops.attention.spec import Attention, QkNorm
from monolane.reference import (
    Computation,
    Floats,
    LayerPass,
    Row,
    attend,
    choose_keys,
    linear,
    norm_stream,
    rms_norm,
    sigmoid,
)


def _run(a: Attention, p: LayerPass, x_LTD: Floats) -> Floats:
    heads = _plain(a, p, x_LTD) if a.latent is None else _latent(a, p, x_LTD)
    return p.product(heads, Role.O) + p.weights.get(Role.O_BIAS, np.float32(0))


def _plain(a: Attention, p: LayerPass, x_LTD: Floats) -> Floats:
    lanes, width, _ = x_LTD.shape
    q = _product(a, p, Role.Q, Role.Q_BIAS, x_LTD)
    if a.gate:  # of each head the query, then its gate
        q, gate = np.split(q.reshape(lanes, width, -1, 2 * a.head_dim), 2, axis=-1)
    q_LTHh = _tempered(a, p, _finished(a, p, Role.Q_NORM, q))
    if a.keys_of is None:
        k = _product(a, p, Role.K, Role.K_BIAS, x_LTD)
        v = k if a.key_is_value else _product(a, p, Role.V, Role.V_BIAS, x_LTD)
        k_LTKh = _finished(a, p, Role.K_NORM, k)
        v_LTKh = v.reshape(k_LTKh.shape)
        if a.value_norm:
            v_LTKh = rms_norm(v_LTKh, np.ones((1, 1), np.float32), p.config.norm_eps)
        keys, values = p.cache.append(p.layer, k_LTKh, v_LTKh)
    else:
        keys, values = p.cache.appended(a.keys_of, width)
    sinks = p.weights.get(Role.SINKS)
    first = p.cache.length
    heads = attend(q_LTHh, keys, values, first, a.window, a.scale, sinks, a.cap, a.chunked)
    return heads * sigmoid(gate.reshape(heads.shape)) if a.gate else heads


def _tempered(a: Attention, p: LayerPass, q_LTHh: Floats) -> Floats:
    """Multiply queries by what grows with their position."""
    if a.temperature is None:
        return q_LTHh
    positions_T = np.arange(p.cache.length, p.cache.length + q_LTHh.shape[1])
    return q_LTHh * a.temperature.factors(positions_T)[:, None, None]


def _product(a: Attention, p: LayerPass, role: Role, bias: Role, x_LTD: Floats) -> Floats:
    product = p.product(x_LTD, role)
    return product + p.weights[bias][:, None] if a.bias else product


def _finished(a: Attention, p: LayerPass, scale: Role, y_LTX: Floats) -> Floats:
    """Norm and turn queries or keys: [L, T, heads, h]."""
    if a.qk_norm is QkNorm.ALL:
        y_LTX = _norm_lanes(p, y_LTX, scale)
    y_LTHh = y_LTX.reshape(*y_LTX.shape[:2], -1, a.head_dim)
    if a.norm_turned:
        y_LTHh = p.turn(y_LTHh, a.rotary)
    if a.qk_norm is QkNorm.HEAD and a.qk_unscaled:
        y_LTHh = rms_norm(y_LTHh, np.ones((1, 1), np.float32), p.config.norm_eps)
    elif a.qk_norm is QkNorm.HEAD:
        y_LTHh = p.norm(y_LTHh, p.weights[scale])
    return y_LTHh if a.norm_turned else p.turn(y_LTHh, a.rotary)


def _norm_lanes(p: LayerPass, x_LTX: Floats, role: Role) -> Floats:
    """Norm what all lanes have of a token at once."""
    lanes, width, columns = x_LTX.shape
    whole_TX = x_LTX.swapaxes(0, 1).reshape(1, width, lanes * columns)
    normed: Floats = p.norm(whole_TX, p.weights[role])
    return normed.reshape(width, lanes, columns).swapaxes(0, 1)


def _latent(a: Attention, p: LayerPass, x_1TD: Floats) -> Floats:
    """Attend to keys and values of all heads, made of the cached latents anew in each pass."""
    latent, weights = a.latent, p.weights
    assert latent is not None
    width, rank, plain = x_1TD.shape[1], latent.rank, latent.plain
    made_of = x_1TD
    if latent.query_rank is not None:
        made_of = linear(x_1TD, weights[Role.Q_DOWN])
        made_of = p.norm(made_of, weights[Role.Q_NORM], latent.norm_eps)
    q_1THh = linear(made_of, weights[Role.Q]).reshape(1, width, a.heads, latent.head)
    turned = p.turn(q_1THh[..., plain:], a.rotary)
    q_1THh = _tempered(a, p, np.concatenate([q_1THh[..., :plain], turned], axis=-1))
    new = linear(x_1TD, weights[Role.KV_DOWN])[:, :, None]  # [1, T, 1, R + r]
    l_1TR = p.norm(new[:, :, 0, :rank], weights[Role.K_NORM], latent.norm_eps)
    shared = p.turn(new[..., rank:], a.rotary)
    (cached,) = p.cache.append(p.layer, np.concatenate([l_1TR[:, :, None], shared], axis=-1))
    l_SR, t_S1r = cached[0, :, 0, :rank], cached[0, :, :, rank:]
    k_SHn = np.einsum("sr,hrn->shn", l_SR, weights[Role.K_UP], optimize=True)
    v_SHv = np.einsum("sr,hvr->shv", l_SR, weights[Role.V_UP], optimize=True)
    k_SHh = np.concatenate([k_SHn, np.repeat(t_S1r, a.heads, axis=1)], axis=-1)
    sinks, seen = weights.get(Role.SINKS), _seen(a, p, made_of, x_1TD)
    values = v_SHv[None]
    return attend(
        q_1THh, k_SHh[None], values, p.cache.length, a.window, a.scale, sinks, seen_TS=seen
    )


def _seen(
    a: Attention, p: LayerPass, made_of_1TX: Floats, x_1TD: Floats
) -> npt.NDArray[np.bool_] | None:
    """Return which keys each token sees: [T, S]; None: all that come before it."""
    index = a.index
    if index is None:
        return None
    if a.index_of is not None:
        return p.seen[a.index_of]
    width = x_1TD.shape[1]
    q = linear(made_of_1TX, p.weights[Role.INDEX_Q]).reshape(1, width, index.heads, index.width)
    k = norm_stream(
        linear(x_1TD, p.weights[Role.INDEX_K]), p.weights[Role.INDEX_NORM], index.norm_eps, True
    )
    k_1T1d = (k + p.weights[Role.INDEX_NORM_BIAS])[:, :, None]
    (keys,) = p.cache.append(p.layer, p.turn(k_1T1d, a.rotary, index.style), at=1)
    q_THd, k_Sd = p.turn(q, a.rotary, index.style)[0], keys[0, :, 0]
    weights_TH = linear(x_1TD, p.weights[Role.INDEX_WEIGHTS])[0] * np.float32(index.heads**-0.5)
    queries_T = np.arange(p.cache.length, p.cache.length + width)
    hidden_TS = np.arange(len(k_Sd)) > queries_T[:, None]
    p.seen[p.layer] = choose_keys(q_THd, k_Sd, weights_TH, hidden_TS, index.chosen)
    return p.seen[p.layer]


def _rows(a: Attention, lanes: int) -> tuple[Row, ...]:
    rows = (Row(a.cached_heads // lanes, a.cached_width),) * a.kept_lists
    own = a.index is not None and a.index_of is None
    return (*rows, Row(1, a.index.width, rounded=False)) if a.index and own else rows


COMPUTATION = Computation(Attention, _run, rows=_rows)
