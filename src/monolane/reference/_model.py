"""One forward pass of a decoder of lanes, in the order in which its definition is written.

Shape legend: see _operations.py.
"""

import numpy as np
import numpy.typing as npt

from monolane.errors import RequestError
from monolane.model import (
    COMMON_FEATURES,
    JOINING_NORMS,
    Attention,
    Delta,
    Experts,
    Head,
    LayerRotary,
    Mlp,
    Operation,
    QkNorm,
    Role,
    Weights,
)
from monolane.reference._cache import Cache
from monolane.reference._delta import convolve, part_gates, step_states
from monolane.reference._experts import choose_experts
from monolane.reference._operations import (
    GATES,
    Floats,
    attend,
    cap_logits,
    linear,
    reduce,
    rms_norm,
    rotate,
    sigmoid,
    silu,
)

Layer = dict[Role, Floats]
_MLP_ROLES = (Role.GATE, Role.UP, Role.DOWN)
_SHARED_ROLES = (Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN)


class ReferenceModel:
    """The oracle: weights in float32, one pass at a time, nothing fused and nothing reused."""

    def __init__(self, weights: Weights) -> None:
        weights = weights.dequantized()
        self.config = weights.config
        self.config.check_features("reference", *COMMON_FEATURES)
        self._outer = {role: _float32(array) for role, array in weights.outer.items()}
        self._layers = [
            {role: _float32(array) for role, array in layer.items()} for layer in weights.layers
        ]
        self._experts = {
            place: [_float32(array) for array in each if isinstance(array, np.ndarray)]
            for place, each in weights.experts.items()
        }

    def new_cache(self, capacity: int | None = None, cache_dtype: str = "auto") -> Cache:
        """Return an empty cache, by default for the model's whole context, in float32."""
        whole = self.config.max_positions if capacity is None else capacity
        return Cache(self.config, whole, cache_dtype)

    def forward(self, token_ids: npt.ArrayLike, cache: Cache) -> Floats:
        """Feed T tokens behind those in the cache; return their logits, float32 [T, V].

        RequestError if a token id is not in the vocabulary or the cache cannot hold the tokens.
        """
        return self._head(self._residual(token_ids, cache))

    def hidden(self, token_ids: npt.ArrayLike, cache: Cache) -> Floats:
        """Feed T tokens as ``forward``; return what the head reads, normed: float32 [T, D].

        Of several lanes it is their mean.
        """
        hidden: Floats = self._normed(self._residual(token_ids, cache)).mean(axis=0)
        return hidden

    def _residual(self, token_ids: npt.ArrayLike, cache: Cache) -> Floats:
        """Feed T tokens; return the stream behind the last layer, [L, T, D]."""
        ids_T = self._check(np.asarray(token_ids, np.int64), cache)
        config = self.config
        embedded_TD = self._outer[Role.EMBEDDING][ids_T] * np.float32(config.embedding_scale)
        x_LTD = np.repeat(embedded_TD[None], config.num_lanes, axis=0)
        outputs: tuple[list[Floats], ...] = tuple([] for _ in JOINING_NORMS)
        for i, (modules, layer) in enumerate(zip(config.modules, self._layers, strict=True)):
            # A layer's modules in their order, each with the norms and the outputs of its place.
            for module, norms, said in zip(modules, JOINING_NORMS, outputs, strict=False):
                read = self._norm_if(config.norm_before, x_LTD, layer, norms[0])
                said.append(self._run(module.operation, i, layer, read, cache))
                gain = reduce(module.reduce, said)
                gain = self._norm_if(config.norm_after, gain, layer, norms[1])
                x_LTD += gain * np.float32(module.scale)
        cache.advance(len(ids_T))
        return x_LTD

    def _run(self, x: Operation, i: int, layer: Layer, read_LTD: Floats, cache: Cache) -> Floats:
        match x:
            case Attention(latent=None):
                return self._attention(x, i, layer, read_LTD, cache)
            case Attention():
                return self._latent_attention(x, i, layer, read_LTD, cache)
            case Delta():
                return self._gated_delta(x, i, layer, read_LTD, cache)
            case Experts():
                return self._mixture(x, i, read_LTD)
            case Mlp():
                return self._mlp(layer, read_LTD)
        raise TypeError(f"reference: computes no {type(x).__name__}")

    def _norm_if(self, there: bool, x_LTD: Floats, layer: Layer, role: Role) -> Floats:
        return self._norm(x_LTD, layer[role]) if there else x_LTD

    def _norm(self, x: Floats, scale: Floats, eps: float | None = None) -> Floats:
        offset = np.float32(self.config.norm_offset)
        return rms_norm(x, scale + offset, self.config.norm_eps if eps is None else eps)

    def _norm_lanes(self, x_LTX: Floats, scale: Floats) -> Floats:
        """Norm what all lanes have of a token at once."""
        lanes, width, columns = x_LTX.shape
        whole_TX = x_LTX.swapaxes(0, 1).reshape(1, width, lanes * columns)
        normed: Floats = self._norm(whole_TX, scale)
        return normed.reshape(width, lanes, columns).swapaxes(0, 1)

    def _attention(self, a: Attention, i: int, layer: Layer, x_LTD: Floats, cache: Cache) -> Floats:
        lanes, width, _ = x_LTD.shape
        q, k, v = (
            linear(x_LTD, layer[weight]) + (layer[bias][:, None] if a.bias else 0)
            for weight, bias in (
                (Role.Q, Role.Q_BIAS),
                (Role.K, Role.K_BIAS),
                (Role.V, Role.V_BIAS),
            )
        )
        if a.gate:  # of each head the query, then its gate
            q, gate = np.split(q.reshape(lanes, width, -1, 2 * a.head_dim), 2, axis=-1)
        if a.qk_norm is QkNorm.ALL:
            q, k = self._norm_lanes(q, layer[Role.Q_NORM]), self._norm_lanes(k, layer[Role.K_NORM])
        q_LTHh, k_LTKh, v_LTKh = (y.reshape(lanes, width, -1, a.head_dim) for y in (q, k, v))
        if a.qk_norm is QkNorm.HEAD:
            q_LTHh = self._norm(q_LTHh, layer[Role.Q_NORM])
            k_LTKh = self._norm(k_LTKh, layer[Role.K_NORM])
        first = cache.length
        positions = np.arange(first, first + width)
        q_LTHh, k_LTKh = (self._turn(y, positions, a.rotary) for y in (q_LTHh, k_LTKh))
        keys, values = cache.append(i, k_LTKh, v_LTKh)
        heads = attend(q_LTHh, keys, values, first, a.window, a.scale, layer.get(Role.SINKS))
        if a.gate:
            heads = heads * sigmoid(gate.reshape(heads.shape))
        return linear(heads, layer[Role.O]) + layer.get(Role.O_BIAS, np.float32(0))

    def _gated_delta(
        self, delta: Delta, i: int, layer: Layer, x_1TD: Floats, cache: Cache
    ) -> Floats:
        """Take the steps of model/_delta.py, one token after the other."""
        new_Tc, z_TX = (linear(x_1TD, layer[role])[0] for role in (Role.DELTA_QKV, Role.DELTA_Z))
        b_TU, a_TU = part_gates(linear(x_1TD, layer[Role.DELTA_GATES])[0], delta)
        state_Ukv, before_Xc = cache.state(i)
        inputs_Xc = np.concatenate([before_Xc, new_Tc])
        channels_Tc = convolve(inputs_Xc, layer[Role.DELTA_CONV][0, :, 0])
        gates = b_TU, a_TU, layer[Role.DELTA_DECAY][0], layer[Role.DELTA_STEP][0]
        said_TUv, state_Ukv = step_states(channels_Tc, *gates, state_Ukv, delta)
        cache.set_state(i, state_Ukv, inputs_Xc)
        normed_TUv = rms_norm(said_TUv, layer[Role.DELTA_NORM], self.config.norm_eps)
        heads_1TX = normed_TUv.reshape(1, *z_TX.shape) * silu(z_TX)
        return linear(heads_1TX, layer[Role.DELTA_OUT])

    def _latent_attention(
        self, a: Attention, i: int, layer: Layer, x_1TD: Floats, cache: Cache
    ) -> Floats:
        """Attend to keys and values of all heads, made of the cached latents anew in each pass."""
        latent = a.latent
        assert latent is not None
        width, rank, plain = x_1TD.shape[1], latent.rank, latent.plain
        positions = np.arange(cache.length, cache.length + width)
        made_of = x_1TD
        if latent.query_rank is not None:
            made_of = linear(x_1TD, layer[Role.Q_DOWN])
            made_of = self._norm(made_of, layer[Role.Q_NORM], latent.norm_eps)
        q_1THh = linear(made_of, layer[Role.Q]).reshape(1, width, a.heads, latent.head)
        turned = self._turn(q_1THh[..., plain:], positions, a.rotary)
        q_1THh = np.concatenate([q_1THh[..., :plain], turned], axis=-1)
        new = linear(x_1TD, layer[Role.KV_DOWN])[:, :, None]  # [1, T, 1, R + r]
        l_1TR = self._norm(new[:, :, 0, :rank], layer[Role.K_NORM], latent.norm_eps)
        shared = self._turn(new[..., rank:], positions, a.rotary)
        first = cache.length
        (cached,) = cache.append(i, np.concatenate([l_1TR[:, :, None], shared], axis=-1))
        l_SR, t_S1r = cached[0, :, 0, :rank], cached[0, :, :, rank:]
        k_SHn = np.einsum("sr,hrn->shn", l_SR, layer[Role.K_UP], optimize=True)
        v_SHv = np.einsum("sr,hvr->shv", l_SR, layer[Role.V_UP], optimize=True)
        k_SHh = np.concatenate([k_SHn, np.repeat(t_S1r, a.heads, axis=1)], axis=-1)
        sinks, scale = layer.get(Role.SINKS), a.scale
        heads = attend(q_1THh, k_SHh[None], v_SHv[None], first, a.window, scale, sinks)
        return linear(heads, layer[Role.O]) + layer.get(Role.O_BIAS, np.float32(0))

    def _turn(
        self, x_LTHh: Floats, positions_T: npt.NDArray[np.int64], which: LayerRotary
    ) -> Floats:
        if which == "none":
            return x_LTHh
        rotary = self.config.rotary if which == "main" else self.config.local_rotary
        assert rotary is not None
        x_LTHr, rest = np.split(x_LTHh, [self.config.rotary_dim(which)], axis=-1)
        frequencies = rotary.frequencies(self.config.rotary_dim(which))
        turned = rotate(x_LTHr, positions_T, frequencies, rotary.style, rotary.amplitude)
        return np.concatenate([turned, rest], axis=-1)

    def _mlp(
        self, layer: Layer, x_LTD: Floats, roles: tuple[Role, Role, Role] = _MLP_ROLES
    ) -> Floats:
        gate, up = (linear(x_LTD, layer[role]) for role in roles[:2])
        return linear(GATES[self.config.activation](gate, up), layer[roles[2]])

    def _expert(self, i: int, expert: int, x_1TD: Floats) -> Floats:
        """Return what one expert of layer i makes of its tokens."""

        def product(y_1TX: Floats, role: Role, bias: Role) -> Floats:
            made = linear(y_1TX, self._experts[role, i][expert])
            return made + self._layers[i][bias][0, expert] if bias in self._layers[i] else made

        gate = product(x_1TD, Role.EXPERT_GATE, Role.EXPERT_GATE_BIAS)
        up = product(x_1TD, Role.EXPERT_UP, Role.EXPERT_UP_BIAS)
        hidden = GATES[self.config.activation](gate, up)
        return product(hidden, Role.EXPERT_DOWN, Role.EXPERT_DOWN_BIAS)

    def _mixture(self, experts: Experts, i: int, x_1TD: Floats) -> Floats:
        """Add up what each token's experts make of it, in their order, then what all share."""
        layer = self._layers[i]
        logits_TE = linear(x_1TD, layer[Role.ROUTER])[0]
        logits_TE += layer.get(Role.ROUTER_BIAS, np.float32(0))
        correction_1E = layer.get(Role.ROUTER_CORRECTION)
        weights_TE = choose_experts(logits_TE, experts, correction_1E)
        y_1TD = np.zeros_like(x_1TD)
        for expert, weights_T in enumerate(weights_TE.T):
            mine = np.flatnonzero(weights_T)
            if mine.size:
                y_1TD[:, mine] += weights_T[mine, None] * self._expert(i, expert, x_1TD[:, mine])
        if experts.shared:
            shared_1TD = self._mlp(layer, x_1TD, _SHARED_ROLES)
            if (gate_1D := layer.get(Role.SHARED_EXPERT_GATE)) is not None:
                shared_1TD *= sigmoid(linear(x_1TD, gate_1D[:, None]))
            y_1TD += shared_1TD
        return y_1TD

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
