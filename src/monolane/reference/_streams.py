"""The residual streams of a pass: how modules join them, and what layers begin with.

Shape legend: L lanes, T tokens, D hidden, A streams of a model that has several, and one lane.
"""

from collections.abc import Mapping

import numpy as np

from monolane.model import ALTUP_IN, ALTUP_OUT, HYPER, HYPER_OUT, ModelConfig, Role
from monolane.reference._operations import Floats, linear, rms_norm, sigmoid, softmax

_LEAST = np.float32(1e-5)  # of the mean square by which a stream's length is divided


class Streams:
    """Streams that a layer begins with as the one before left them."""

    def __init__(self, config: ModelConfig, outer: Mapping[Role, Floats], x_LTD: Floats) -> None:
        self.config, self.outer, self.x = config, outer, x_LTD

    def enter(self, layer: Mapping[Role, Floats]) -> None:
        """Begin a layer."""

    def read(self, place: int, layer: Mapping[Role, Floats]) -> None:
        """Have ``x`` be what the module in a layer's place reads."""

    def join(self, place: int, layer: Mapping[Role, Floats], gain: Floats) -> None:
        """Add what the module in a layer's place says."""
        self.x = self.x + gain

    def leave(self) -> Floats:
        """Return the streams behind the last layer: [L, T, D]."""
        return self.x


class AltUpStreams(Streams):
    """Several streams of which layers work on the first: see model/_altup.py."""

    def __init__(self, config: ModelConfig, outer: Mapping[Role, Floats], x_LTD: Floats) -> None:
        super().__init__(config, outer, x_LTD)
        products = [linear(x_LTD, outer[role]) for role in ALTUP_IN if role in outer]
        self.h = np.concatenate([x_LTD, *(as_long(x, x_LTD) for x in products)])  # [A, T, D]

    def enter(self, layer: Mapping[Role, Floats]) -> None:
        """Predict all streams of what they were; the first is the layer's."""
        count = len(self.h)
        said_1TX = linear(self._routed(layer, self.h[:1]), layer[Role.ALTUP_PREDICT])
        shares_TAA = said_1TX.reshape(-1, count, count)
        self.h = self.h + np.einsum("tij,jtd->itd", shares_TAA, self.h, optimize=True)
        self.x = self.h[:1]

    def join(self, place: int, layer: Mapping[Role, Floats], gain: Floats) -> None:
        """Add it to the layer's stream; from its last module to all others."""
        if place == 3:
            self.h = np.concatenate([self.h[:1], self.h[1:] + gain])
            return
        self.x = self.x + gain
        if place == 1:
            self.x = self.x * np.float32(0.5**0.5)
        if place == 2:
            self._correct(layer)

    def leave(self) -> Floats:
        """Return the mean of what the streams say: [1, T, D]."""
        outs = [self.outer[role] for role in ALTUP_OUT if role in self.outer]
        products = [linear(self.h[i : i + 1], out) for i, out in enumerate(outs, 1)]
        each = [self.h[:1], *(as_long(x, self.h[:1]) for x in products)]
        mean: Floats = np.concatenate(each).mean(axis=0, keepdims=True)
        return mean

    def _correct(self, layer: Mapping[Role, Floats]) -> None:
        """Have all streams follow the layer's, which its last module reads scaled."""
        error_1TD = self.x - self.h[:1]
        shares_1TA = linear(self._routed(layer, self.x), layer[Role.ALTUP_CORRECT])
        self.h = self.h + (shares_1TA[0].T[:, :, None] + np.float32(1)) * error_1TD
        self.x = self.h[:1] * layer.get(Role.ALTUP_SCALE, np.ones((1, 1), np.float32))

    def _routed(self, layer: Mapping[Role, Floats], x_1TD: Floats) -> Floats:
        scale = layer[Role.ALTUP_NORM] + np.float32(self.config.norm_offset)
        normed = rms_norm(x_1TD, scale, self.config.norm_eps)
        routed = linear(normed * np.float32(1 / x_1TD.shape[-1]), layer[Role.ALTUP_ROUTER])
        bent: Floats = np.tanh(routed)
        return bent


class HyperStreams(Streams):
    """Several streams that each module reads as one and writes to all: see model/_hyper.py."""

    def __init__(self, config: ModelConfig, outer: Mapping[Role, Floats], x_LTD: Floats) -> None:
        super().__init__(config, outer, x_LTD)
        assert config.hyper is not None
        self.hyper = config.hyper
        self.h = np.repeat(x_LTD, self.hyper.streams, axis=0)  # [A, T, D]

    def read(self, place: int, layer: Mapping[Role, Floats]) -> None:
        """Add the streams up, and work out how what the module says will join them."""
        fn, base, scale = (layer[role] for role in HYPER[place])
        count, eps = self.hyper.streams, np.float32(self.hyper.eps)
        said_TX, parts = self._said(fn), (count, 2 * count)
        in_TA, out_TA, mix_TX = np.split(said_TX, parts, axis=-1)
        in_base, out_base, mix_base = np.split(base[0], parts)
        self.x = self._sum(in_TA * scale[0, 0] + in_base)
        self._out_TA = np.float32(2) * sigmoid(out_TA * scale[0, 1] + out_base)
        mix_TAA = softmax((mix_TX * scale[0, 2] + mix_base).reshape(-1, count, count)) + eps
        mix_TAA = mix_TAA / (mix_TAA.sum(axis=1, keepdims=True) + eps)
        for _ in range(self.hyper.rounds - 1):
            mix_TAA = mix_TAA / (mix_TAA.sum(axis=2, keepdims=True) + eps)
            mix_TAA = mix_TAA / (mix_TAA.sum(axis=1, keepdims=True) + eps)
        self._mix_TAA = mix_TAA

    def join(self, place: int, layer: Mapping[Role, Floats], gain: Floats) -> None:
        """Mix the streams, and add what the module says to each."""
        del place, layer
        mixed = np.einsum("tjk,jtd->ktd", self._mix_TAA, self.h, optimize=True)
        self.h = self._out_TA.T[:, :, None] * gain + mixed

    def leave(self) -> Floats:
        """Return their sum, of shares of its own: [1, T, D]."""
        fn, base, scale = (self.outer[role] for role in HYPER_OUT)
        return self._sum(self._said(fn) * scale[0, 0] + base[0])

    def _said(self, fn_1XY: Floats) -> Floats:
        """Return what a matrix makes of all streams, normed as one: [T, X]."""
        flat_1TY = self.h.swapaxes(0, 1).reshape(1, self.h.shape[1], -1)
        normed = rms_norm(flat_1TY, np.ones((1, 1), np.float32), self.config.norm_eps)
        said: Floats = linear(normed, fn_1XY)[0]
        return said

    def _sum(self, shares_TA: Floats) -> Floats:
        shares = sigmoid(shares_TA) + np.float32(self.hyper.eps)
        summed: Floats = (shares.T[:, :, None] * self.h).sum(axis=0, keepdims=True)
        return summed


def as_long(x: Floats, first: Floats) -> Floats:
    """Scale each token's numbers so that their mean square is that of the first stream."""
    wanted = np.sqrt(np.mean(first * first, axis=-1, keepdims=True))
    own = np.sqrt(np.maximum(np.mean(x * x, axis=-1, keepdims=True), _LEAST))
    scaled: Floats = x * wanted / own
    return scaled


def begin_streams(config: ModelConfig, outer: Mapping[Role, Floats], x_LTD: Floats) -> Streams:
    """Return the streams of a pass, of what is embedded."""
    if config.altup is not None:
        return AltUpStreams(config, outer, x_LTD)
    return (Streams if config.hyper is None else HyperStreams)(config, outer, x_LTD)
