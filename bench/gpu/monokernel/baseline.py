"""The Laneformer's decode step as good PyTorch: packed weights, static cache, one CUDA graph.

What somebody who knows PyTorch writes who wants speed and no kernel of his own: queries, keys and
values in one product, gate and up in another, all lanes in one batched product, a cache that stays
where it is, the choice of the token on the device, and the whole step captured and replayed. Of two
ways to write a product or attention, each shape takes the one that is faster on this device.

Shape suffixes: L lanes, D hidden, H query heads, K KV heads, E head width, C cache capacity,
R rows of packed matrices; one sequence, one token.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from monolane.hf.modeling_laneformer import rotary_frequencies

_TRIALS = 20  # of each way to write something


class KeyValues:
    """Keys and values of one sequence, at fixed addresses; a windowed layer keeps its window only.

    Also what `monolane.hf` calls a cache, as far as a decode step with ready-made masks needs one.
    """

    def __init__(self, config: Any, capacity: int, like: Tensor) -> None:
        heads, width = config.num_key_value_heads, config.head_dim
        self.capacities = [
            min(config.sliding_window, capacity) if kind == "sliding_attention" else capacity
            for kind in config.layer_types
        ]
        # Random, as if something had been there: zeros would be faster to multiply.
        self.keys = [like.new_empty(1, heads, c, width).normal_() for c in self.capacities]
        self.values = [like.new_empty(1, heads, c, width).normal_() for c in self.capacities]

    def update(
        self, k_BKTE: Tensor, v_BKTE: Tensor, layer: int, arguments: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Put one token's keys and values in their places; return all of the layer's."""
        place_T = arguments["cache_position"] % self.capacities[layer]
        self.keys[layer].index_copy_(2, place_T, k_BKTE)
        self.values[layer].index_copy_(2, place_T, v_BKTE)
        return self.keys[layer], self.values[layer]


class Step(ABC):
    """One token: reads `token` and `position`, leaves `logits`, and moves both on.

    Of a model of `monolane.hf`, whose weights it keeps.
    """

    def __init__(self, model: Any, capacity: int) -> None:
        weight = model.model.tok_embeddings.weight
        self.config = model.config
        self.cache = KeyValues(self.config, capacity, weight)
        self.token = torch.zeros(1, dtype=torch.long, device=weight.device)
        self.position = torch.zeros(1, dtype=torch.long, device=weight.device)
        self.logits = weight.new_zeros(self.config.vocab_size, dtype=torch.float32)
        self._arange = {
            c: torch.arange(c, device=weight.device) for c in set(self.cache.capacities)
        }

    @abstractmethod
    def logits_of_token(self) -> Tensor:
        """The logits behind `token`, [V]."""

    def __call__(self) -> None:
        """The step."""
        logits_V = self.logits_of_token()
        self.logits.copy_(logits_V)
        self.token.copy_(logits_V.argmax(-1, keepdim=True))
        self.position.add_(1)

    def masks(self, dtype: torch.dtype) -> dict[int, Tensor]:
        """What to add to scores, by capacity [C]: nothing where a token has been, else -inf."""
        # A ring that has gone round holds nothing but what the window shows.
        return {
            c: torch.zeros_like(arange, dtype=dtype).masked_fill(
                arange > self.position, float("-inf")
            )
            for c, arange in self._arange.items()
        }


class HfStep(Step):
    """`monolane.hf` as it is, on the static cache."""

    def __init__(self, model: Any, capacity: int) -> None:
        super().__init__(model, capacity)
        self._model = model

    def logits_of_token(self) -> Tensor:
        """The logits behind `token`, [V]."""
        masks = self.masks(self._model.model.tok_embeddings.weight.dtype)
        by_kind = {
            kind: masks[c][None, None, None]
            for kind, c in zip(self.config.layer_types, self.cache.capacities, strict=True)
        }
        output = self._model(
            self.token[None],
            attention_mask=by_kind,
            cache=self.cache,
            cache_position=self.position,
            position_ids=self.position[None],
            use_cache=True,
        )
        logits: Tensor = output.logits[0, -1]
        return logits


class PackedStep(Step):
    """The same arithmetic with packed weights; models with a vocabulary-parallel head."""

    def __init__(self, model: Any, capacity: int) -> None:
        super().__init__(model, capacity)
        config = self.config
        assert config.lm_head_type == "vocab_parallel", "expected a vocabulary-parallel head"
        inner, layers = model.model, model.model.layers
        self._embedding = inner.tok_embeddings.weight
        self._final = _scale(inner.norm)
        head = model.lm_head
        tied = self._embedding.reshape(config.num_lanes, -1, config.hidden_size)
        self._head_LRD = tied if head is None else head.weight
        self._norms = [(_scale(x.attention_norm), _scale(x.ffn_norm)) for x in layers]
        self._qkv = [
            torch.cat([x.attention.wq.weight, x.attention.wk.weight, x.attention.wv.weight], 1)
            for x in layers
        ]
        self._out = [x.attention.wo.weight for x in layers]
        self._gate_up = [
            torch.cat([x.feed_forward.w1.weight, x.feed_forward.w3.weight], 1) for x in layers
        ]
        self._down = [x.feed_forward.w2.weight for x in layers]
        self._rules = [
            (config.reduce_rule("attention", i), config.reduce_rule("mlp", i))
            for i in range(len(layers))
        ]
        frequency = rotary_frequencies(config, self.token.device)
        angle = torch.arange(config.max_position_embeddings, device=self.token.device)[:, None]
        self._cos, self._sin = (angle * frequency).cos(), (angle * frequency).sin()
        self._multiply: dict[tuple[int, ...], Callable[[Tensor, Tensor], Tensor]] = {}
        self._attend: dict[int, Callable[..., Tensor]] = {}

    def choose(self) -> None:
        """Time the ways to write each product and attention, and keep the faster ones."""
        x_LD = self._stream()
        for weight in (self._qkv[0], self._out[0], self._gate_up[0], self._down[0], self._head_LRD):
            x = x_LD.new_ones(weight.shape[0], weight.shape[2])
            self._multiply[tuple(weight.shape)] = fastest(PRODUCTS, weight, x)
        for capacity, mask in self.masks(x_LD.dtype).items():
            layer = self.cache.capacities.index(capacity)
            k, v = self.cache.keys[layer][0], self.cache.values[layer][0]
            heads = self.config.num_attention_heads // k.shape[0]
            q = k.new_ones(k.shape[0], heads, k.shape[2])
            self._attend[capacity] = fastest(ATTENTIONS, q, k, v, mask)

    def logits_of_token(self) -> Tensor:
        """The logits behind `token`, [V]."""
        config, x_LD = self.config, self._stream()
        masks = self.masks(x_LD.dtype)
        cos, sin = self._cos[self.position], self._sin[self.position]
        attentions: list[Tensor] = []
        outputs: list[Tensor] = []
        for i, (attention_rule, mlp_rule) in enumerate(self._rules):
            late = i - config.broadcast_delay
            norms = self._norms[i]
            a_LD = self._attention(i, self._norm(x_LD, norms[0]), cos, sin, masks)
            attentions.append(a_LD)
            x_LD = x_LD + reduce(a_LD, attentions[late] if late >= 0 else None, attention_rule)
            gate, up = self._product(self._gate_up[i], self._norm(x_LD, norms[1])).chunk(2, -1)
            m_LD = self._product(self._down[i], functional.silu(gate) * up)
            outputs.append(m_LD)
            x_LD = x_LD + reduce(m_LD, outputs[late] if late >= 0 else None, mlp_rule)
        logits: Tensor = self._product(self._head_LRD, self._norm(x_LD, self._final)).flatten()
        return logits

    def _stream(self) -> Tensor:
        stream: Tensor = self._embedding[self.token].expand(self.config.num_lanes, -1)
        return stream

    def _norm(self, x_LD: Tensor, scale: Tensor) -> Tensor:
        wide = x_LD.to(torch.promote_types(x_LD.dtype, torch.float32))
        normed = functional.rms_norm(wide, (x_LD.shape[-1],), eps=self.config.norm_eps)
        return normed.to(x_LD.dtype) * scale

    def _product(self, w_LRD: Tensor, x_LD: Tensor) -> Tensor:
        return self._multiply.get(tuple(w_LRD.shape), PRODUCTS[0])(w_LRD, x_LD)

    def _attention(
        self, i: int, x_LD: Tensor, cos: Tensor, sin: Tensor, masks: dict[int, Tensor]
    ) -> Tensor:
        config = self.config
        lanes, width = config.num_lanes, config.head_dim
        heads, kv_heads = config.num_attention_heads // lanes, config.num_key_value_heads // lanes
        rows = self._product(self._qkv[i], x_LD).reshape(lanes, -1, width)  # [L, h + 2 k, E]
        turned = rotate(rows[:, : heads + kv_heads], cos, sin)
        q_KgE = turned[:, :heads].reshape(config.num_key_value_heads, -1, width)
        k_KE = turned[:, heads:].reshape(1, -1, 1, width)
        v_KE = rows[:, heads + kv_heads :].reshape(1, -1, 1, width)
        k, v = self.cache.update(k_KE, v_KE, i, {"cache_position": self.position})
        capacity = self.cache.capacities[i]
        attend = self._attend.get(capacity, ATTENTIONS[0])
        y_KgE = attend(q_KgE, k[0], v[0], masks[capacity])
        return self._product(self._out[i], y_KgE.reshape(lanes, -1))


def _scale(norm: Any) -> Tensor:
    found: Tensor = norm.scale if norm.per_lane else norm.weight
    return found


def rotate(x_LhE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x0, x1), (x2, x3), ... of each head, in at least float32."""
    wide = x_LhE.to(torch.promote_types(x_LhE.dtype, torch.float32))
    even, odd = wide[..., 0::2], wide[..., 1::2]
    pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return pairs.flatten(-2).to(x_LhE.dtype)


def reduce(o_LD: Tensor, late_LD: Tensor | None, rule: str) -> Tensor:
    """What each lane adds to its stream."""
    if rule == "now":
        return o_LD.sum(0, keepdim=True)
    if rule == "never":
        return o_LD * math.sqrt(o_LD.shape[0])
    assert late_LD is not None
    return o_LD + (late_LD.sum(0, keepdim=True) - late_LD)


# ---- the ways to write something -----------------------------------------------------------------
def _matrix_first(w_LRD: Tensor, x_LD: Tensor) -> Tensor:
    return torch.bmm(w_LRD, x_LD[:, :, None])[..., 0]


def _vector_first(w_LRD: Tensor, x_LD: Tensor) -> Tensor:
    return torch.bmm(x_LD[:, None], w_LRD.transpose(1, 2))[:, 0]


def _products_apart(q_KgE: Tensor, k_KCE: Tensor, v_KCE: Tensor, mask_C: Tensor) -> Tensor:
    scores = torch.bmm(q_KgE, k_KCE.transpose(1, 2)) * q_KgE.shape[-1] ** -0.5 + mask_C
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return torch.bmm(wide.softmax(-1).to(q_KgE.dtype), v_KCE)


def _sdpa(q_KgE: Tensor, k_KCE: Tensor, v_KCE: Tensor, mask_C: Tensor) -> Tensor:
    # The heads of a group as if they were positions: no key is read twice.
    mask = mask_C.expand(1, 1, q_KgE.shape[1], -1)
    return functional.scaled_dot_product_attention(
        q_KgE[None], k_KCE[None], v_KCE[None], attn_mask=mask
    )[0]


PRODUCTS: Sequence[Callable[[Tensor, Tensor], Tensor]] = (_matrix_first, _vector_first)
ATTENTIONS: Sequence[Callable[..., Tensor]] = (_products_apart, _sdpa)


def fastest(ways: Sequence[Callable[..., Tensor]], *arguments: Tensor) -> Callable[..., Tensor]:
    """The way that takes least here; the first where there is no GPU to time it on."""
    if arguments[0].device.type != "cuda":
        return ways[0]
    times = []
    for way in ways:
        graph = capture(partial(way, *arguments))
        graph.replay()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(_TRIALS):
            graph.replay()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return ways[times.index(min(times))]


# ---- graphs --------------------------------------------------------------------------------------
def capture(work: Callable[[], Any]) -> Any:
    """Work as a CUDA graph: warmed up in a stream of its own, then recorded."""
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph
