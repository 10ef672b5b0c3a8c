"""Mamba-2, token by token, as spec.py defines it.

Shape legend: T tokens, c channels, C tokens of the kernel, G groups, H heads, p width of a head,
n width of a state's inputs.
"""

import numpy as np

from monolane.ops._names import Role
from monolane.ops.mamba.spec import Mamba
from monolane.reference import Computation, Floats, LayerPass, linear, rms_norm, silu


def part_mixed(mixed_TX: Floats, mamba: Mamba) -> tuple[Floats, Floats, Floats]:
    """Part what MAMBA_IN made, and scale it: z [T, H*p], the channels [T, c] and t [T, H]."""
    columns, shared = mamba.columns, mamba.shared
    widths = np.cumsum((columns, columns, shared, shared))
    kinds = np.split(mixed_TX, widths, axis=-1)
    z, *channels, t = (
        kind if scale == 1 else kind * np.float32(scale)
        for kind, scale in zip(kinds, mamba.scales, strict=True)
    )
    return z, np.concatenate(channels, axis=-1), t


def convolve(inputs_Xc: Floats, conv_cC: Floats, bias_c: Floats | None) -> Floats:
    """Sum each channel over its last C numbers, this token's the last: [X - C + 1, c]."""
    kernel = conv_cC.shape[1]
    width = len(inputs_Xc) - kernel + 1
    summed = np.zeros((width, inputs_Xc.shape[1]), np.float32)
    for i in range(kernel):
        summed += inputs_Xc[i : i + width] * conv_cC[:, i]
    return silu(summed if bias_c is None else summed + bias_c)


def step_states(
    u_THp: Floats,
    b_THn: Floats,
    c_THn: Floats,
    rate_TH: Floats,
    decay_H: Floats,
    skip_H: Floats,
    state_Hnp: Floats,
) -> tuple[Floats, Floats]:
    """Take the step of each token in turn; return what the states say, [T, H, p], and the last."""
    kept_TH = np.exp(-np.exp(decay_H) * rate_TH)
    added_THp = rate_TH[..., None] * u_THp
    said = np.empty_like(u_THp)
    for t in range(len(u_THp)):
        state_Hnp = state_Hnp * kept_TH[t, :, None, None]
        state_Hnp = state_Hnp + b_THn[t, :, :, None] * added_THp[t, :, None, :]
        said[t] = np.einsum("hn,hnp->hp", c_THn[t], state_Hnp)
    return said + skip_H[:, None] * u_THp, state_Hnp


def rates(t_TH: Floats, step_H: Floats) -> Floats:
    """Return by how much each head's state decays, and takes in: softplus(t + step)."""
    found: Floats = np.logaddexp(0, t_TH + step_H, dtype=np.float32)
    return found


def norm_groups(gated_TX: Floats, scale_X: Floats | None, groups: int, eps: float) -> Floats:
    """Norm each group's numbers by their own square; without scales there is no norm."""
    if scale_X is None:
        return gated_TX
    by_group = gated_TX.reshape(len(gated_TX), groups, -1).swapaxes(0, 1)  # [G, T, H/G * p]
    normed = rms_norm(by_group, scale_X.reshape(groups, -1), eps)
    return normed.swapaxes(0, 1).reshape(gated_TX.shape)


def _run(mamba: Mamba, p: LayerPass, x_1TD: Floats) -> Floats:
    """Take the steps of all tokens, one after the other."""
    z_TX, new_Tc, t_TH = part_mixed(linear(x_1TD, p.weights[Role.MAMBA_IN])[0], mamba)
    state, inputs = p.cache.state(p.layer)
    inputs_Xc = np.concatenate([inputs, new_Tc])
    bias = p.weights.get(Role.MAMBA_CONV_BIAS)
    conv_cC = p.weights[Role.MAMBA_CONV][0, :, 0]
    channels_Tc = convolve(inputs_Xc, conv_cC, None if bias is None else bias[0])
    width, columns, shared = len(new_Tc), mamba.columns, mamba.shared
    u_TX, b_TX, c_TX = np.split(channels_Tc, (columns, columns + shared), axis=-1)
    b_THn, c_THn = (
        np.repeat(x.reshape(width, mamba.groups, -1), mamba.heads // mamba.groups, axis=1)
        for x in (b_TX, c_TX)
    )
    said_THp, state[:] = step_states(
        u_TX.reshape(width, mamba.heads, mamba.head),
        b_THn,
        c_THn,
        rates(t_TH, p.weights[Role.MAMBA_STEP][0]),
        p.weights[Role.MAMBA_DECAY][0],
        p.weights[Role.MAMBA_SKIP][0],
        state,
    )
    inputs[:] = inputs_Xc[len(inputs_Xc) - len(inputs) :]
    gated_TX = said_THp.reshape(width, columns) * silu(z_TX)
    norm = p.weights.get(Role.MAMBA_NORM)
    scale = None if norm is None else norm[0]
    normed_TX = norm_groups(gated_TX, scale, mamba.groups, p.config.norm_eps)
    return linear(normed_TX[None], p.weights[Role.MAMBA_OUT])


def _state(mamba: Mamba) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the states [H, n, p] and of the channels' last inputs [C - 1, c]."""
    states = (mamba.heads, mamba.state_size, mamba.head)
    return states, (mamba.kernel - 1, mamba.channels)


COMPUTATION = Computation(Mamba, _run, _state)
