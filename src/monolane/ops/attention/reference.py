"""Attention, plain and latent, as its definition.

Shape legend: L lanes, T tokens of the pass, S cached tokens, D hidden, H query heads of a lane,
K KV heads of a lane, h width of a head; of latents R rank, r turned, n not turned, v of a value.
"""

import numpy as np

from monolane.ops._names import Role
from monolane.ops.attention.spec import Attention, QkNorm
from monolane.reference import Computation, Floats, LayerPass, attend, linear, sigmoid

_PRODUCTS = ((Role.Q, Role.Q_BIAS), (Role.K, Role.K_BIAS), (Role.V, Role.V_BIAS))


def _run(a: Attention, p: LayerPass, x_LTD: Floats) -> Floats:
    heads = _plain(a, p, x_LTD) if a.latent is None else _latent(a, p, x_LTD)
    return linear(heads, p.weights[Role.O]) + p.weights.get(Role.O_BIAS, np.float32(0))


def _plain(a: Attention, p: LayerPass, x_LTD: Floats) -> Floats:
    lanes, width, _ = x_LTD.shape
    q, k, v = (
        linear(x_LTD, p.weights[weight]) + (p.weights[bias][:, None] if a.bias else 0)
        for weight, bias in _PRODUCTS
    )
    if a.gate:  # of each head the query, then its gate
        q, gate = np.split(q.reshape(lanes, width, -1, 2 * a.head_dim), 2, axis=-1)
    if a.qk_norm is QkNorm.ALL:
        q, k = _norm_lanes(p, q, Role.Q_NORM), _norm_lanes(p, k, Role.K_NORM)
    q_LTHh, k_LTKh, v_LTKh = (y.reshape(lanes, width, -1, a.head_dim) for y in (q, k, v))
    if a.qk_norm is QkNorm.HEAD:
        q_LTHh = p.norm(q_LTHh, p.weights[Role.Q_NORM])
        k_LTKh = p.norm(k_LTKh, p.weights[Role.K_NORM])
    q_LTHh, k_LTKh = (p.turn(y, a.rotary) for y in (q_LTHh, k_LTKh))
    keys, values = p.cache.append(p.layer, k_LTKh, v_LTKh)
    sinks = p.weights.get(Role.SINKS)
    heads = attend(q_LTHh, keys, values, p.cache.length, a.window, a.scale, sinks)
    return heads * sigmoid(gate.reshape(heads.shape)) if a.gate else heads


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
    q_1THh = np.concatenate([q_1THh[..., :plain], turned], axis=-1)
    new = linear(x_1TD, weights[Role.KV_DOWN])[:, :, None]  # [1, T, 1, R + r]
    l_1TR = p.norm(new[:, :, 0, :rank], weights[Role.K_NORM], latent.norm_eps)
    shared = p.turn(new[..., rank:], a.rotary)
    (cached,) = p.cache.append(p.layer, np.concatenate([l_1TR[:, :, None], shared], axis=-1))
    l_SR, t_S1r = cached[0, :, 0, :rank], cached[0, :, :, rank:]
    k_SHn = np.einsum("sr,hrn->shn", l_SR, weights[Role.K_UP], optimize=True)
    v_SHv = np.einsum("sr,hvr->shv", l_SR, weights[Role.V_UP], optimize=True)
    k_SHh = np.concatenate([k_SHn, np.repeat(t_S1r, a.heads, axis=1)], axis=-1)
    sinks = weights.get(Role.SINKS)
    return attend(q_1THh, k_SHh[None], v_SHv[None], p.cache.length, a.window, a.scale, sinks)


COMPUTATION = Computation(Attention, _run)
