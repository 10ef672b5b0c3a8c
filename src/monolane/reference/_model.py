"""One forward pass of a decoder of lanes, in the order in which its definition is written.

Shape legend: see _operations.py.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from monolane.errors import RequestError
from monolane.model import COMMON_FEATURES, JOINING_NORMS, Head, Role, Weights, norm_read_by
from monolane.reference._cache import Cache
from monolane.reference._computation import find_computation
from monolane.reference._layer_pass import LayerPass
from monolane.reference._operations import Floats, cap_logits, linear, norm_stream, reduce
from monolane.reference._streams import begin_streams

Layer = dict[Role, Floats]
# Features that no other executor computes.
_ALONE = (
    *("index", "layers.index_of"),
    *("hyper", "layers.hashed", "experts.limit", "experts.scores"),
)


class ReferenceModel:
    """The oracle: weights in float32, one pass at a time, nothing fused and nothing reused."""

    def __init__(self, weights: Weights) -> None:
        weights = weights.dequantized()
        self.config = weights.config
        self.config.check_features("reference", *COMMON_FEATURES, *_ALONE)
        self._outer = {role: _float32(array) for role, array in weights.outer.items()}
        self._layers = [
            {role: _float32(array) for role, array in layer.items()} for layer in weights.layers
        ]
        self._experts: list[dict[Role, list[Floats]]] = [{} for _ in weights.layers]
        for (role, layer), each in weights.experts.items():
            arrays = [_float32(array) for array in each if isinstance(array, np.ndarray)]
            self._experts[layer][role] = arrays

    def new_cache(self, capacity: int | None = None, cache_dtype: str = "auto") -> Cache:
        """Return an empty cache, by default for the model's whole context, in float32."""
        whole = self.config.max_positions if capacity is None else capacity
        return Cache(self.config, whole, cache_dtype)

    def forward(
        self, token_ids: npt.ArrayLike, cache: Cache, states: Floats | None = None
    ) -> Floats:
        """Feed T tokens behind those in the cache; return their logits, float32 [T, V].

        ``states`` [T, D] are for layers that predict further ahead, and only for them: what the
        model's head read of the token before each.

        RequestError if a token id is not in the vocabulary or the cache cannot hold the tokens.
        """
        return self._head(self._residual(token_ids, cache, states))

    def hidden(
        self, token_ids: npt.ArrayLike, cache: Cache, states: Floats | None = None
    ) -> Floats:
        """Feed T tokens as ``forward``; return what the head reads, normed: float32 [T, D].

        Of several lanes it is their mean.
        """
        residual = self._residual(token_ids, cache, states)
        hidden: Floats = self._normed(residual).mean(axis=0)
        return hidden

    def streams(
        self, token_ids: npt.ArrayLike, cache: Cache, layers: Sequence[int]
    ) -> tuple[Floats, ...]:
        """Feed T tokens; return the stream as it is before each of some layers: float32 [T, D].

        Of models with one lane. They are what EAGLE-3 drafters read.
        """
        found: dict[int, Floats] = {}
        self._residual(token_ids, cache, None, found)
        return tuple(found[layer][0] for layer in layers)

    def _residual(
        self,
        token_ids: npt.ArrayLike,
        cache: Cache,
        states: Floats | None,
        kept: dict[int, Floats] | None = None,
    ) -> Floats:
        """Feed T tokens; return the stream behind the last layer, [L, T, D].

        ``kept`` takes it as it is before each layer.
        """
        ids_T = self._check(np.asarray(token_ids, np.int64), cache)
        config = self.config
        self._check_states(states, len(ids_T))
        embedded_TD = self._outer[Role.EMBEDDING][ids_T] * np.float32(config.embedding_scale)
        x_LTD = np.repeat(embedded_TD[None], config.num_lanes, axis=0)
        streams = begin_streams(config, self._outer, x_LTD)
        outputs: tuple[list[Floats], ...] = tuple([] for _ in JOINING_NORMS)
        seen: dict[int, npt.NDArray[np.bool_]] = {}
        for i, (modules, layer) in enumerate(zip(config.modules, self._layers, strict=True)):
            streams.enter(layer)
            if kept is not None:
                kept[i] = streams.x.copy()
            layer_pass = LayerPass(
                config,
                i,
                layer,
                self._outer,
                self._experts[i],
                cache,
                ids_T,
                streams.x,
                states,
                seen,
                {} if cache.adapter is None else cache.adapter.of_layer(i),
            )
            held = np.zeros(1, np.float32)  # what joins the streams with the next module's
            # A layer's modules in their order, each with the norms and the outputs of its place.
            places = zip(modules, JOINING_NORMS, outputs, strict=False)
            for place, (module, (_, after), said) in enumerate(places):
                if not module.beside:
                    streams.read(place, layer)
                    layer_pass = replace(layer_pass, stream=streams.x)
                before = norm_read_by(modules, place)
                read = self._norm_if(module.norm_before, layer_pass.stream, layer, before)
                computation = find_computation(module.operation)
                said.append(computation.run(module.operation, layer_pass, read))
                gain = reduce(module.reduce, said)
                gain = self._norm_if(module.norm_after, gain, layer, after)
                if module.held:
                    held = gain
                    continue
                if module.joint_norm:
                    gain = self._norm(held + gain, layer[Role.JOINT_NORM])
                if module.replaces:
                    streams.x = np.zeros_like(streams.x)
                streams.join(place, layer, gain * np.float32(module.scale))
                if module.stream_scale:
                    streams.x = streams.x * layer[Role.LAYER_SCALE][0]
        cache.advance(len(ids_T))
        return streams.leave()

    def _norm_if(self, there: bool, x_LTD: Floats, layer: Layer, role: Role) -> Floats:
        return self._norm(x_LTD, layer[role]) if there else x_LTD

    def _norm(self, x: Floats, scale: Floats) -> Floats:
        whole = scale + np.float32(self.config.norm_offset)
        return norm_stream(x, whole, self.config.norm_eps, self.config.norm_centred)

    def _head(self, x_LTD: Floats) -> Floats:
        kind, y_LTD = self.config.head, self._normed(x_LTD)
        if kind is Head.MEAN:
            y_LTD = y_LTD.mean(axis=0, keepdims=True)
        if kind is Head.CONCAT:
            y_LTD = np.concatenate(list(y_LTD), axis=-1)[None]  # [1, T, L*D]
        logits = linear(y_LTD, self._outer[Role.HEAD])  # [L, T, V/L] or [1, T, V]
        joined = np.concatenate(list(logits), axis=-1)
        return cap_logits(joined, self.config.logit_scale, self.config.logit_cap)

    def _normed(self, x_LTD: Floats) -> Floats:
        if self.config.head is Head.SUM:
            x_LTD = x_LTD.sum(axis=0, keepdims=True)
        return self._norm(x_LTD, self._outer[Role.FINAL_NORM])

    def _check_states(self, states: Floats | None, width: int) -> None:
        wanted = (width, self.config.hidden_size) if self.config.behind is not None else None
        found = None if states is None else states.shape
        if found != wanted:
            raise RequestError(
                f"states: expected {'none' if wanted is None else list(wanted)} with {width} "
                f"tokens, got {'none' if found is None else list(found)}"
            )

    def _check(self, ids_T: npt.NDArray[np.int64], cache: Cache) -> npt.NDArray[np.int64]:
        vocab = self.config.vocab_size
        if ids_T.ndim != 1 or ids_T.size == 0:
            raise RequestError(
                f"token ids: expected a list of at least one, got shape {ids_T.shape}"
            )
        wrong = ids_T[(ids_T < 0) | (ids_T >= vocab)]
        if wrong.size:
            raise RequestError(f"token ids: expected 0 to {vocab - 1}, got {wrong[0]}")
        if cache.stale:
            raise RequestError(
                "restore: expected the last part with its tail before the slot goes on, got none"
            )
        if cache.length + ids_T.size > cache.capacity:
            raise RequestError(
                f"context: expected at most {cache.capacity} tokens, got {cache.length} in the "
                f"cache and {ids_T.size} more"
            )
        return ids_T


def _float32(array: npt.NDArray[np.generic]) -> Floats:
    return np.ascontiguousarray(array, dtype=np.float32)
