"""The gated delta rule, token by token, as spec.py defines it.

Shape legend: T tokens, c channels, C tokens of the kernel, G key heads, U value heads, k width of a
query and a key, v of a value.
"""

import numpy as np

from monolane.ops._names import Role
from monolane.ops.delta.spec import Delta
from monolane.reference import Computation, Floats, LayerPass, linear, rms_norm, sigmoid, silu

# Of the lengths by which queries and keys are divided, squared.
_EPS = np.float32(1e-6)


def part_gates(gates_TX: Floats, delta: Delta) -> tuple[Floats, Floats]:
    """Part what DELTA_GATES made: b and a, each [T, U], as the value heads lie."""
    by_head = gates_TX.reshape(len(gates_TX), delta.key_heads, 2, delta.each)
    each = by_head.transpose(2, 0, 3, 1) if delta.tiled else by_head.transpose(2, 0, 1, 3)
    b, a = each.reshape(2, -1, delta.value_heads)
    return b, a


def convolve(inputs_Xc: Floats, conv_cC: Floats) -> Floats:
    """Sum each channel over its last C numbers, this token's the last: [X - C + 1, c]."""
    kernel = conv_cC.shape[1]
    width = len(inputs_Xc) - kernel + 1
    summed = np.zeros((width, inputs_Xc.shape[1]), np.float32)
    for i in range(kernel):
        summed += inputs_Xc[i : i + width] * conv_cC[:, i]
    return silu(summed)


def step_states(
    channels_Tc: Floats,
    b_TU: Floats,
    a_TU: Floats,
    decay_U: Floats,
    step_U: Floats,
    state_Ukv: Floats,
    delta: Delta,
) -> tuple[Floats, Floats]:
    """Take the step of each token in turn; return what the states say, [T, U, v], and the last."""
    queries = delta.key_heads * delta.key
    q_Tk, k_Tk, v_Tv = np.split(channels_Tc, (queries, 2 * queries), axis=-1)
    width = len(channels_Tc)
    q_TUk, k_TUk = (
        _for_each_value(_unit(x.reshape(width, delta.key_heads, delta.key)), delta)
        for x in (q_Tk, k_Tk)
    )
    q_TUk *= np.float32(delta.key**-0.5)
    v_TUv = v_Tv.reshape(width, delta.value_heads, delta.value)
    kept_TU = np.exp(-np.exp(decay_U) * np.logaddexp(0, a_TU + step_U, dtype=np.float32))
    beta_TU = sigmoid(b_TU)
    said = np.empty((width, delta.value_heads, delta.value), np.float32)
    for t in range(width):
        state_Ukv = state_Ukv * kept_TU[t, :, None, None]
        known_Uv = np.einsum("uk,ukv->uv", k_TUk[t], state_Ukv)
        new_Uv = (v_TUv[t] - known_Uv) * beta_TU[t, :, None]
        state_Ukv = state_Ukv + k_TUk[t, :, :, None] * new_Uv[:, None, :]
        said[t] = np.einsum("uk,ukv->uv", q_TUk[t], state_Ukv)
    return said, state_Ukv


def _for_each_value(x_TGk: Floats, delta: Delta) -> Floats:
    """Repeat what a key head has for each of its value heads, as these lie: [T, U, k]."""
    if delta.tiled:
        return np.tile(x_TGk, (1, delta.each, 1))
    return np.repeat(x_TGk, delta.each, axis=1)


def _unit(x: Floats) -> Floats:
    length: Floats = np.sqrt((x * x).sum(axis=-1, keepdims=True) + _EPS)
    return x / length


def _run(delta: Delta, p: LayerPass, x_1TD: Floats) -> Floats:
    """Take the steps of all tokens, one after the other."""
    new_Tc, z_TX = (linear(x_1TD, p.weights[role])[0] for role in (Role.DELTA_QKV, Role.DELTA_Z))
    b_TU, a_TU = part_gates(linear(x_1TD, p.weights[Role.DELTA_GATES])[0], delta)
    state, inputs = p.cache.state(p.layer)
    inputs_Xc = np.concatenate([inputs, new_Tc])
    channels_Tc = convolve(inputs_Xc, p.weights[Role.DELTA_CONV][0, :, 0])
    gates = b_TU, a_TU, p.weights[Role.DELTA_DECAY][0], p.weights[Role.DELTA_STEP][0]
    said_TUv, state[:] = step_states(channels_Tc, *gates, state, delta)
    inputs[:] = inputs_Xc[len(inputs_Xc) - len(inputs) :]
    normed_TUv = rms_norm(said_TUv, p.weights[Role.DELTA_NORM], p.config.norm_eps)
    heads_1TX = normed_TUv.reshape(1, *z_TX.shape) * silu(z_TX)
    return linear(heads_1TX, p.weights[Role.DELTA_OUT])


def _state(delta: Delta) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the states [U, k, v] and of the channels' last inputs [C - 1, c]."""
    states = (delta.value_heads, delta.key, delta.value)
    return states, (delta.kernel - 1, delta.channels)


COMPUTATION = Computation(Delta, _run, _state)
