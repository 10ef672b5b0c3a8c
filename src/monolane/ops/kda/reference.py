"""Kimi's delta rule, token by token, as spec.py defines it.

Shape legend: T tokens, c channels, C tokens of the kernel, U heads, d width of a head.
"""

import numpy as np

from monolane.ops._names import Role
from monolane.ops.kda.spec import Kda
from monolane.reference import Computation, Floats, LayerPass, linear, rms_norm, sigmoid, silu

_EPS = np.float32(1e-6)  # of the lengths by which queries and keys are divided, squared
CONVS = (Role.KDA_Q_CONV, Role.KDA_K_CONV, Role.KDA_V_CONV)


def convolve(inputs_Xc: Floats, taps_cC: Floats) -> Floats:
    """Sum each channel over its last C numbers, this token's the last: [X - C + 1, c]."""
    kernel = taps_cC.shape[1]
    width = len(inputs_Xc) - kernel + 1
    summed = np.zeros((width, inputs_Xc.shape[1]), np.float32)
    for i in range(kernel):
        summed += inputs_Xc[i : i + width] * taps_cC[:, i]
    return silu(summed)


def step_states(
    channels_T3Ud: Floats, a_TUd: Floats, b_TU: Floats, decay_U: Floats, state_Udd: Floats
) -> tuple[Floats, Floats]:
    """Take the step of each token in turn; return what the states say, [T, U, d], and the last.

    ``a_TUd`` has the steps in it.
    """
    width = a_TUd.shape[-1]
    q_TUd, k_TUd, v_TUd = channels_T3Ud.swapaxes(0, 1)
    q_TUd, k_TUd = _unit(q_TUd) * np.float32(width**-0.5), _unit(k_TUd)
    rates_TUd = np.exp(decay_U)[:, None] * np.logaddexp(0, a_TUd, dtype=np.float32)
    kept_TUd, beta_TU = np.exp(-rates_TUd), sigmoid(b_TU)
    said = np.empty_like(a_TUd)
    for t in range(len(a_TUd)):
        state_Udd = state_Udd * kept_TUd[t, :, :, None]
        known_Ud = np.einsum("uk,ukv->uv", k_TUd[t], state_Udd)
        new_Ud = (v_TUd[t] - known_Ud) * beta_TU[t, :, None]
        state_Udd = state_Udd + k_TUd[t, :, :, None] * new_Ud[:, None, :]
        said[t] = np.einsum("uk,ukv->uv", q_TUd[t], state_Udd)
    return said, state_Udd


def _unit(x: Floats) -> Floats:
    length: Floats = np.sqrt((x * x).sum(axis=-1, keepdims=True) + _EPS)
    return x / length


def _run(o: Kda, p: LayerPass, x_1TD: Floats) -> Floats:
    """Take the steps of all tokens, one after the other."""
    weights, width = p.weights, x_1TD.shape[1]
    new_Tc = np.concatenate([linear(x_1TD, weights[x])[0] for x in (Role.Q, Role.K, Role.V)], -1)
    a_TX, z_TX = (
        linear(linear(x_1TD, weights[down]), weights[up])[0]
        for down, up in (
            (Role.KDA_DECAY_DOWN, Role.KDA_DECAY_UP),
            (Role.KDA_GATE_DOWN, Role.KDA_GATE_UP),
        )
    )
    a_TUd = (a_TX + weights[Role.KDA_STEP]).reshape(width, o.heads, o.width)
    b_TU = linear(x_1TD, weights[Role.KDA_BETA])[0]
    state, inputs = p.cache.state(p.layer)
    inputs_Xc = np.concatenate([inputs, new_Tc])
    channels_Tc = convolve(inputs_Xc, np.concatenate([weights[x][0, :, 0] for x in CONVS]))
    channels_T3Ud = channels_Tc.reshape(width, 3, o.heads, o.width)
    decay_U = weights[Role.KDA_DECAY].reshape(-1)
    said_TUd, state[:] = step_states(channels_T3Ud, a_TUd, b_TU, decay_U, state)
    inputs[:] = inputs_Xc[len(inputs_Xc) - len(inputs) :]
    normed_TUd = rms_norm(said_TUd, weights[Role.KDA_NORM], p.config.norm_eps)
    heads_1TX = normed_TUd.reshape(1, *z_TX.shape) * sigmoid(z_TX)
    return linear(heads_1TX, weights[Role.O])


def _state(o: Kda) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the states [U, d, d] and of the channels' last inputs [C - 1, c]."""
    return (o.heads, o.width, o.width), (o.kernel - 1, 3 * o.columns)


COMPUTATION = Computation(Kda, _run, _state)
