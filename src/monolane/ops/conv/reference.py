"""A gated short convolution, as its definition.

Shape legend: T tokens, D hidden, C channels, K taps.
"""

import numpy as np

from monolane.ops._names import Role
from monolane.ops.conv.spec import Conv
from monolane.reference import Computation, Floats, LayerPass, linear


def sums(inputs_XC: Floats, taps_CK: Floats) -> Floats:
    """Sum each channel over its last K inputs, this token's the last: [X - K + 1, C]."""
    count = taps_CK.shape[1]
    width = len(inputs_XC) - count + 1
    summed = np.zeros((width, inputs_XC.shape[1]), np.float32)
    for i in range(count):
        summed += inputs_XC[i : i + width] * taps_CK[:, i]
    return summed


def _run(conv: Conv, p: LayerPass, x_1TD: Floats) -> Floats:
    b_TC, c_TC, u_TC = np.split(linear(x_1TD, p.weights[Role.CONV_IN])[0], 3, axis=-1)
    (before,) = p.cache.state(p.layer)
    inputs_XC = np.concatenate([before, b_TC * u_TC])
    gated_TC = c_TC * sums(inputs_XC, p.weights[Role.CONV_TAPS][0, :, 0])
    before[:] = inputs_XC[len(inputs_XC) - len(before) :]
    return linear(gated_TC[None], p.weights[Role.CONV_OUT])


COMPUTATION = Computation(Conv, _run, lambda conv: ((conv.taps - 1, conv.channels),))
