"""One forward pass of a decoder of lanes, in the order in which its definition is written.

Shape legend: see _operations.py.
"""

import numpy as np
import numpy.typing as npt

from monolane.errors import RequestError
from monolane.model import Head, Role, Weights
from monolane.reference._cache import Cache
from monolane.reference._operations import (
    Floats,
    attend,
    linear,
    reduce,
    rms_norm,
    rotate,
    silu,
)

Layer = dict[Role, Floats]


class ReferenceModel:
    """The oracle: weights in float32, one pass at a time, nothing fused and nothing reused."""

    def __init__(self, weights: Weights) -> None:
        weights = weights.dequantized()
        self.config = weights.config
        self.config.check_features("reference", "qkv_bias", "qk_norm")
        self._outer = {role: _float32(array) for role, array in weights.outer.items()}
        self._layers = [
            {role: _float32(array) for role, array in layer.items()} for layer in weights.layers
        ]
        self._frequencies = self.config.rotary.frequencies(self.config.head_dim)

    def new_cache(self, capacity: int | None = None) -> Cache:
        """Return an empty cache, by default for the model's whole context."""
        return Cache(self.config, self.config.max_positions if capacity is None else capacity)

    def forward(self, token_ids: npt.ArrayLike, cache: Cache) -> Floats:
        """Feed T tokens behind those in the cache; return their logits, float32 [T, V].

        RequestError if a token id is not in the vocabulary or the cache cannot hold the tokens.
        """
        ids_T = self._check(np.asarray(token_ids, np.int64), cache)
        config = self.config
        embedded_TD = self._outer[Role.EMBEDDING][ids_T]
        x_LTD = np.repeat(embedded_TD[None], config.num_lanes, axis=0)
        attention_outputs: list[Floats] = []
        mlp_outputs: list[Floats] = []
        for i, (rules, layer) in enumerate(zip(config.layers, self._layers, strict=True)):
            normed = rms_norm(x_LTD, layer[Role.ATTENTION_NORM], config.norm_eps)
            attention_outputs.append(self._attention(i, layer, normed, cache))
            x_LTD = x_LTD + reduce(rules.attention_reduce, attention_outputs)
            normed = rms_norm(x_LTD, layer[Role.MLP_NORM], config.norm_eps)
            mlp_outputs.append(_mlp(layer, normed))
            x_LTD = x_LTD + reduce(rules.mlp_reduce, mlp_outputs)
        cache.advance(len(ids_T))
        return self._head(x_LTD)

    def _attention(self, i: int, layer: Layer, x_LTD: Floats, cache: Cache) -> Floats:
        config = self.config
        lanes, width, _ = x_LTD.shape
        q, k, v = (
            linear(x_LTD, layer[weight]) + (layer[bias][:, None] if config.qkv_bias else 0)
            for weight, bias in (
                (Role.Q, Role.Q_BIAS),
                (Role.K, Role.K_BIAS),
                (Role.V, Role.V_BIAS),
            )
        )
        q_LTHh, k_LTKh, v_LTKh = (y.reshape(lanes, width, -1, config.head_dim) for y in (q, k, v))
        if config.qk_norm:
            q_LTHh = rms_norm(q_LTHh, layer[Role.Q_NORM], config.norm_eps)
            k_LTKh = rms_norm(k_LTKh, layer[Role.K_NORM], config.norm_eps)
        first = cache.length
        positions = np.arange(first, first + width)
        q_LTHh = rotate(q_LTHh, positions, self._frequencies, config.rotary.style)
        k_LTKh = rotate(k_LTKh, positions, self._frequencies, config.rotary.style)
        keys, values = cache.append(i, k_LTKh, v_LTKh)
        heads = attend(q_LTHh, keys, values, first, config.layers[i].window)
        return linear(heads, layer[Role.O])

    def _head(self, x_LTD: Floats) -> Floats:
        kind, scale = self.config.head, self._outer[Role.FINAL_NORM]
        if kind is Head.SUM:
            x_LTD = x_LTD.sum(axis=0, keepdims=True)
        y_LTD = rms_norm(x_LTD, scale, self.config.norm_eps)
        if kind is Head.MEAN:
            y_LTD = y_LTD.mean(axis=0, keepdims=True)
        if kind is Head.CONCAT:
            y_LTD = np.concatenate(list(y_LTD), axis=-1)[None]  # [1, T, L*D]
        logits = linear(y_LTD, self._outer[Role.HEAD])  # [L, T, V/L] or [1, T, V]
        return np.concatenate(list(logits), axis=-1)

    def _check(self, ids_T: npt.NDArray[np.int64], cache: Cache) -> npt.NDArray[np.int64]:
        vocab = self.config.vocab_size
        if ids_T.ndim != 1 or ids_T.size == 0:
            raise RequestError(
                f"token ids: expected a list of at least one, got shape {ids_T.shape}"
            )
        wrong = ids_T[(ids_T < 0) | (ids_T >= vocab)]
        if wrong.size:
            raise RequestError(f"token ids: expected 0 to {vocab - 1}, got {wrong[0]}")
        if cache.length + ids_T.size > cache.capacity:
            raise RequestError(
                f"context: expected at most {cache.capacity} tokens, got {cache.length} in the "
                f"cache and {ids_T.size} more"
            )
        return ids_T


def _mlp(layer: Layer, x_LTD: Floats) -> Floats:
    gate, up = linear(x_LTD, layer[Role.GATE]), linear(x_LTD, layer[Role.UP])
    return linear(silu(gate) * up, layer[Role.DOWN])


def _float32(array: npt.NDArray[np.generic]) -> Floats:
    return np.ascontiguousarray(array, dtype=np.float32)
