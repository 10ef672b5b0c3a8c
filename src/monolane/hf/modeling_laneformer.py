"""The Laneformer for transformers, in one long file because exported folders carry it whole.

This file and ``configuration_laneformer.py`` are copied as they are into every exported folder, so
they import nothing but torch, transformers and the standard library, and run on transformers 4.57
as on 5: where the two differ, the installed signature is inspected once, at import. No tensor is
kept as a buffer, because transformers 5 leaves buffers that are not in the checkpoint unset.

Shape suffixes: L lanes, B sequences, T tokens, D hidden, F intermediate per lane, H query heads,
K KV heads, E head width, V vocabulary; lowercase (h, k, v) is one lane's share.
The residual is [L, B, T, D], lanes first, so that each product is one batched matmul on
contiguous memory. Attention folds lanes into heads, lane-major, which is the checkpoint's order.
"""

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional, init
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_laneformer import LaneformerConfig, ReduceRule

MASK_FUNCTIONS = {
    "full_attention": create_causal_mask,
    "sliding_attention": create_sliding_window_causal_mask,
}
# Renamed in transformers 5.2; cache_position was dropped from the masks in the course of 5.
_MASK_PARAMETERS = inspect.signature(create_causal_mask).parameters
_MASK_EMBEDDINGS = "inputs_embeds" if "inputs_embeds" in _MASK_PARAMETERS else "input_embeds"
_MASK_WANTS_POSITION = "cache_position" in _MASK_PARAMETERS
# Renamed in transformers 5.24: a cache's name in arguments and outputs. Models take it by both.
_CACHE = "cache" if "cache" in _MASK_PARAMETERS else "past_key_values"


def _at_least_float32(x: Tensor) -> Tensor:
    """Widen 16-bit values to float32; leave float32, and the float64 of gradient tests."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class LaneRMSNorm(nn.Module):
    """RMSNorm with one scale per lane (``scale``) or one for all of them (``weight``)."""

    def __init__(self, lanes: int | None, width: int, eps: float) -> None:
        super().__init__()
        self.width = width
        self.eps = eps
        if lanes is None:
            self.weight = nn.Parameter(torch.ones(width))  # [D]
        else:
            self.scale = nn.Parameter(torch.ones(lanes, width))  # [L, D]
        self.per_lane = lanes is not None

    def forward(self, x: Tensor) -> Tensor:
        """Norm each position: [L, B, T, D], or [B, T, D] where one scale serves all lanes."""
        normed = functional.rms_norm(_at_least_float32(x), (self.width,), eps=self.eps).to(x.dtype)
        return normed * (self.scale[:, None, None, :] if self.per_lane else self.weight)


class LaneLinear(nn.Module):
    """One matrix per lane, applied to that lane's own stream."""

    def __init__(self, lanes: int, rows: int, columns: int, init_scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(lanes, rows, columns))
        self.init_scale = init_scale

    def forward(self, x_LBTc: Tensor) -> Tensor:
        """Return [L, B, T, rows]."""
        y = torch.bmm(x_LBTc.flatten(1, 2), self.weight.transpose(1, 2))
        return y.unflatten(1, x_LBTc.shape[1:3])


class LaneAttention(nn.Module):
    """Attention in which each lane owns a slice of the heads; the result is a partial output."""

    is_causal = True  # read by transformers' attention functions, as are the two fields below

    def __init__(self, config: LaneformerConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        lanes, width, head = config.num_lanes, config.hidden_size, config.head_dim
        q_rows = config.num_attention_heads // lanes * head
        kv_rows = config.num_key_value_heads // lanes * head
        self.wq = LaneLinear(lanes, q_rows, width)
        self.wk = LaneLinear(lanes, kv_rows, width)
        self.wv = LaneLinear(lanes, kv_rows, width)
        self.wo = LaneLinear(lanes, width, q_rows, _output_init_scale(config))

    def forward(
        self,
        x_LBTD: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        past_key_values: Any,
        cache_position: Tensor,
    ) -> Tensor:
        """Return each lane's partial output, [L, B, T, D]."""
        q_BHTE = self._heads(_rotate(self._split(self.wq(x_LBTD)), rotary))
        k_BKTE = self._heads(_rotate(self._split(self.wk(x_LBTD)), rotary))
        v_BKTE = self._heads(self._split(self.wv(x_LBTD)))
        if past_key_values is not None:
            k_BKTE, v_BKTE = past_key_values.update(
                k_BKTE, v_BKTE, self.layer_idx, {"cache_position": cache_position}
            )
        y_BTHE, _ = _attention_function(self.config._attn_implementation)(
            self, q_BHTE, k_BKTE, v_BKTE, mask, dropout=0.0, scaling=self.scaling
        )
        y_BTLX = y_BTHE.flatten(2, 3).unflatten(2, (self.config.num_lanes, -1))
        return self.wo(y_BTLX.permute(2, 0, 1, 3))

    def _split(self, x_LBTX: Tensor) -> Tensor:
        return x_LBTX.unflatten(-1, (-1, self.config.head_dim))  # [L, B, T, h or k, E]

    def _heads(self, x_LBThE: Tensor) -> Tensor:
        return x_LBThE.permute(1, 0, 3, 2, 4).flatten(1, 2)  # [B, H or K, T, E]


class LaneMLP(nn.Module):
    """SwiGLU in which each lane owns a slice of the intermediate width."""

    def __init__(self, config: LaneformerConfig) -> None:
        super().__init__()
        lanes, width = config.num_lanes, config.hidden_size
        inner = config.intermediate_size // lanes
        self.w1 = LaneLinear(lanes, inner, width)
        self.w3 = LaneLinear(lanes, inner, width)
        self.w2 = LaneLinear(lanes, width, inner, _output_init_scale(config))

    def forward(self, x_LBTD: Tensor) -> Tensor:
        """Return each lane's partial output, [L, B, T, D]."""
        return self.w2(functional.silu(self.w1(x_LBTD)) * self.w3(x_LBTD))


class LaneReduce(nn.Module):
    """How the outputs of one module reach the lanes: at once, late, or not at all."""

    def __init__(self, rule: ReduceRule) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, o_LBTD: Tensor, late_LBTD: Tensor | None) -> Tensor:
        """What each lane adds to its stream; [1, B, T, D] where that is the same for all lanes."""
        if self.rule == "now":
            return o_LBTD.sum(0, keepdim=True)
        if self.rule == "never":
            return o_LBTD * math.sqrt(o_LBTD.shape[0])
        assert late_LBTD is not None, "a layer that reads late outputs was given none"
        return o_LBTD + (late_LBTD.sum(0, keepdim=True) - late_LBTD)


class LaneformerLayer(GradientCheckpointingLayer):
    """Attention and MLP of one layer, and what each lane hears of the others after each."""

    def __init__(self, config: LaneformerConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = _layer_norm(config)
        self.attention = LaneAttention(config, layer)
        self.ffn_norm = _layer_norm(config)
        self.feed_forward = LaneMLP(config)
        # Modules without parameters, so that training can put another rule in their place.
        self.attention_reduce = LaneReduce(config.reduce_rule("attention", layer))
        self.mlp_reduce = LaneReduce(config.reduce_rule("mlp", layer))
        # An output that no later layer reads need not outlive the layer: memory in training.
        reader = layer + config.broadcast_delay
        read = range(layer + 1, config.num_hidden_layers)
        self.sends_attention = reader in read and config.use_attention_comm
        self.sends_mlp = reader in read and config.use_mlp_comm

    def forward(
        self,
        x_LBTD: Tensor,
        late_attention_LBTD: Tensor | None,
        late_mlp_LBTD: Tensor | None,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache_position: Tensor,
        past_key_values: Any = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the residual and the un-reduced outputs that a later layer reads."""
        a_LBTD = self.attention(
            self.attention_norm(x_LBTD), rotary, mask, past_key_values, cache_position
        )
        x_LBTD = x_LBTD + self.attention_reduce(a_LBTD, late_attention_LBTD)
        m_LBTD = self.feed_forward(self.ffn_norm(x_LBTD))
        x_LBTD = x_LBTD + self.mlp_reduce(m_LBTD, late_mlp_LBTD)
        return (
            x_LBTD,
            a_LBTD if self.sends_attention else None,
            m_LBTD if self.sends_mlp else None,
        )


class VocabParallelHead(nn.Module):
    """A vocabulary slice per lane, read from that lane's own stream."""

    def __init__(self, config: LaneformerConfig) -> None:
        super().__init__()
        rows = config.vocab_size // config.num_lanes
        self.weight = nn.Parameter(torch.empty(config.num_lanes, rows, config.hidden_size))

    def forward(self, x_BTX: Tensor) -> Tensor:
        """Return the logits, [B, T, V]; X = L * D."""
        return _vocab_parallel(x_BTX, self.weight)


class LaneHead(nn.Module):
    """One matrix over all lanes side by side."""

    def __init__(self, config: LaneformerConfig) -> None:
        super().__init__()
        width = config.num_lanes * config.hidden_size
        self.linear = nn.Linear(width, config.vocab_size, bias=False)

    def forward(self, x_BTX: Tensor) -> Tensor:
        """Return the logits, [B, T, V]; X = L * D."""
        return self.linear(x_BTX)


class LaneformerPreTrainedModel(PreTrainedModel):
    """What the two models share: config class, initial weights, and what transformers may use."""

    config_class = LaneformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("LaneformerLayer",)
    _skip_keys_device_placement = ("past_key_values", "cache")
    _supports_sdpa = True
    _can_compile_fullgraph = True

    def _init_weights(self, module: nn.Module) -> None:
        # torch.nn.init, reached through its module: transformers 5 guards these functions while it
        # loads, so that weights that came from a checkpoint stay; 4.57 skips such modules itself.
        std = self.config.initializer_range
        if isinstance(module, LaneLinear):
            init.normal_(module.weight, std=std * module.init_scale)
        elif isinstance(module, VocabParallelHead | nn.Linear | nn.Embedding):
            init.normal_(module.weight, std=std)
        elif isinstance(module, LaneRMSNorm):
            init.ones_(module.scale if module.per_lane else module.weight)


class LaneformerModel(LaneformerPreTrainedModel):
    """Embedding, layers and final norm.

    The last hidden state is what the head reads: all lanes side by side [B, T, L * D], or for the
    replicated head their aggregate [B, T, D].
    """

    def __init__(self, config: LaneformerConfig) -> None:
        super().__init__(config)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            LaneformerLayer(config, layer) for layer in range(config.num_hidden_layers)
        )
        shared = config.replicated_rmsn_scale or config.pre_norm_lane_agg
        self.norm = LaneRMSNorm(
            None if shared else config.num_lanes, config.hidden_size, config.norm_eps
        )
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table."""
        return self.tok_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding table."""
        self.tok_embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict[str, Tensor | None] | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """Run the layers; ``input_ids`` [B, T] or ``inputs_embeds`` [B, T, D]."""
        config = self.config
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected either input_ids or inputs_embeds, got both or neither")
        _refuse_attentions(config, output_attentions)
        x_BTD = self.tok_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        past_key_values = self._cache(_given(past_key_values, cache), use_cache)
        # In the kwargs, not in the signature: transformers 5 warns of models that name it.
        cache_position = kwargs.get("cache_position")
        if cache_position is None:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            cache_position = torch.arange(x_BTD.shape[1], device=x_BTD.device) + seen
        masks = _masks(config, x_BTD, attention_mask, position_ids, past_key_values, cache_position)
        rotary = _rotary(config, cache_position[None] if position_ids is None else position_ids)
        keep_states = _wanted(output_hidden_states, config.output_hidden_states)
        states: list[Tensor] | None = [] if keep_states else None
        x_LBTD = self._layers(x_BTD, rotary, masks, past_key_values, cache_position, states)
        output = BaseModelOutputWithPast(
            last_hidden_state=self._aggregate(x_LBTD),
            hidden_states=None if states is None else tuple(states),
            **{_CACHE: past_key_values},
        )
        return output if _wanted(return_dict, config.return_dict) else output.to_tuple()

    def _cache(self, past_key_values: Any, use_cache: bool | None) -> Any:
        # A training step never reads a cache, and filling one copies every key and value.
        if not _wanted(use_cache, self.config.use_cache and not self.training):
            return None
        if self.gradient_checkpointing and self.training:
            return None  # the recomputation would append every key twice
        return DynamicCache(config=self.config) if past_key_values is None else past_key_values

    def _layers(
        self,
        x_BTD: Tensor,
        rotary: tuple[Tensor, Tensor],
        masks: dict[str, Tensor | None],
        past_key_values: Any,
        cache_position: Tensor,
        states: list[Tensor] | None,
    ) -> Tensor:
        x_LBTD = x_BTD.expand(self.config.num_lanes, -1, -1, -1)
        delay = self.config.broadcast_delay
        sent: list[tuple[Tensor | None, Tensor | None]] = []
        for i, (layer, kind) in enumerate(zip(self.layers, self.config.layer_types, strict=True)):
            if states is not None:
                states.append(_side_by_side(x_LBTD))
            late_attention, late_mlp = sent[i - delay] if 0 < delay <= i else (None, None)
            # Positional: reentrant checkpointing sees gradients of positional arguments only.
            x_LBTD, attention, mlp = layer(
                x_LBTD,
                late_attention,
                late_mlp,
                rotary,
                masks[kind],
                cache_position,
                past_key_values=past_key_values,
            )
            sent.append((attention, mlp))
        if states is not None:
            states.append(_side_by_side(x_LBTD))
        return x_LBTD

    def _aggregate(self, x_LBTD: Tensor) -> Tensor:
        if self.config.pre_norm_lane_agg:
            return self.norm(x_LBTD.sum(0))
        normed_LBTD = self.norm(x_LBTD)
        if self.config.lm_head_type == "replicate":
            return normed_LBTD.mean(0)
        return _side_by_side(normed_LBTD)


class LaneformerForCausalLM(LaneformerPreTrainedModel, GenerationMixin):
    """A Laneformer with its head: logits, loss and generation."""

    def __init__(self, config: LaneformerConfig) -> None:
        super().__init__(config)
        self.model = LaneformerModel(config)
        # A tied head has no parameter at all and reads the embedding, so that no version's way of
        # tying, saving or loading shared tensors has a part in it.
        self.lm_head = None if config.tie_word_embeddings else _head(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the head, or None where the embedding serves as one."""
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module | None) -> None:
        """Replace the head."""
        self.lm_head = value

    def resize_token_embeddings(self, new_num_tokens: int | None = None, **kwargs: Any) -> Any:
        """Resize the embedding and the head; only the replicated head can change its size."""
        kind = self.config.lm_head_type
        if kind == "replicate":
            return super().resize_token_embeddings(new_num_tokens, **kwargs)
        if new_num_tokens not in (None, self.config.vocab_size) or kwargs.get("pad_to_multiple_of"):
            raise ValueError(
                f"expected lm_head_type 'replicate' to resize the vocabulary, got {kind!r}, whose "
                "head is laid out by lanes; choose the vocabulary before training"
            )
        return self.get_input_embeddings()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict[str, Tensor | None] | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: Any = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Return logits [B, T, V], and the mean next-token loss where ``labels`` [B, T] are given.

        ``logits_to_keep`` computes only the last so many positions (0: all), or those at its ids.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=_given(past_key_values, cache),
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
            cache_position=kwargs.pop("cache_position", None),
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits_BTV = self._logits(outputs.last_hidden_state[:, keep])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits_BTV, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits_BTV,
            hidden_states=outputs.hidden_states,
            **{_CACHE: outputs.get(_CACHE)},
        )
        return output if _wanted(return_dict, self.config.return_dict) else output.to_tuple()

    def _logits(self, x_BTX: Tensor) -> Tensor:
        if self.lm_head is not None:
            return self.lm_head(x_BTX)
        weight_VD = self.model.tok_embeddings.weight
        if self.config.lm_head_type == "replicate":
            return functional.linear(x_BTX, weight_VD)
        return _vocab_parallel(x_BTX, weight_VD.unflatten(0, (self.config.num_lanes, -1)))


def _head(config: LaneformerConfig) -> nn.Module:
    if config.lm_head_type == "vocab_parallel":
        return VocabParallelHead(config)
    if config.lm_head_type == "lane":
        return LaneHead(config)
    return nn.Linear(config.hidden_size, config.vocab_size, bias=False)


def _layer_norm(config: LaneformerConfig) -> LaneRMSNorm:
    lanes = None if config.replicated_rmsn_scale else config.num_lanes
    return LaneRMSNorm(lanes, config.hidden_size, config.norm_eps)


def _output_init_scale(config: LaneformerConfig) -> float:
    """2 N outputs add up in the residual; this keeps its variance near that of one of them."""
    return 1 / math.sqrt(2 * config.num_hidden_layers)


def _side_by_side(x_LBTD: Tensor) -> Tensor:
    return x_LBTD.permute(1, 2, 0, 3).flatten(2)  # [B, T, L * D]


def _vocab_parallel(x_BTX: Tensor, weight_LvD: Tensor) -> Tensor:
    lanes = weight_LvD.shape[0]
    x_LND = x_BTX.flatten(0, 1).unflatten(1, (lanes, -1)).transpose(0, 1)
    logits_LNv = torch.bmm(x_LND, weight_LvD.transpose(1, 2))
    return logits_LNv.transpose(0, 1).flatten(1).unflatten(0, x_BTX.shape[:2])


def _rotary(config: LaneformerConfig, position_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines in float32, [B or 1, T, 1, E / 2]."""
    frequency = rotary_frequencies(config, position_BT.device)
    angle = position_BT[:, :, None, None].to(torch.float32) * frequency
    return angle.cos(), angle.sin()


def rotary_frequencies(config: LaneformerConfig, device: torch.device | None = None) -> Tensor:
    """Radians per position of each pair of a head, [E / 2], in float32."""
    pair = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device)
    frequency = config.rope_theta ** (-pair / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return frequency
    # Llama 3: turns that fit the original context often enough stay, rare ones are stretched by
    # factor, and those between are blended.
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (kept + (1 - kept) / scaling["factor"])


def _rotate(x_LBThE: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the pairs (x0, x1), (x2, x3), ... of each head."""
    cos, sin = rotary
    even, odd = _at_least_float32(x_LBThE).unflatten(-1, (-1, 2)).unbind(-1)
    pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return pairs.flatten(-2).to(x_LBThE.dtype)


def _given(past_key_values: Any, cache: Any) -> Any:
    """Return the cache, by whichever of its two names it was passed."""
    if past_key_values is not None and cache is not None:
        raise ValueError("expected a cache as cache or as past_key_values, got both; pass one")
    return past_key_values if cache is None else cache


def _masks(
    config: LaneformerConfig,
    x_BTD: Tensor,
    attention_mask: Tensor | dict[str, Tensor | None] | None,
    position_ids: Tensor | None,
    past_key_values: Any,
    cache_position: Tensor,
) -> dict[str, Tensor | None]:
    """One mask per kind of attention; generate() with a static cache hands them in ready-made."""
    if isinstance(attention_mask, dict):
        return attention_mask
    arguments: dict[str, Any] = {
        "config": config,
        _MASK_EMBEDDINGS: x_BTD,
        "attention_mask": attention_mask,
        _CACHE: past_key_values,
        "position_ids": position_ids,
    }
    if _MASK_WANTS_POSITION:
        arguments["cache_position"] = cache_position
    return {kind: MASK_FUNCTIONS[kind](**arguments) for kind in set(config.layer_types)}


def _attention_function(name: str) -> Any:
    if name == "eager":
        return eager_attention
    return ALL_ATTENTION_FUNCTIONS[name]


def eager_attention(
    module: LaneAttention,
    q_BHTE: Tensor,
    k_BKSE: Tensor,
    v_BKSE: Tensor,
    mask: Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention in plain operations, softmax in float32; returns [B, T, H, E] and no weights."""
    groups = module.num_key_value_groups
    k_BHSE = k_BKSE.repeat_interleave(groups, dim=1)
    v_BHSE = v_BKSE.repeat_interleave(groups, dim=1)
    scores_BHTS = q_BHTE @ k_BHSE.transpose(2, 3) * scaling
    if mask is not None:
        scores_BHTS = scores_BHTS + mask[..., : k_BHSE.shape[2]]
    weights_BHTS = _at_least_float32(scores_BHTS).softmax(-1).to(q_BHTE.dtype)
    return (weights_BHTS @ v_BHSE).transpose(1, 2), None


def _wanted(given: bool | None, default: bool) -> bool:
    return default if given is None else given


def _refuse_attentions(config: LaneformerConfig, output_attentions: bool | None) -> None:
    if _wanted(output_attentions, config.output_attentions):
        raise ValueError(
            "expected output_attentions=False, got True: attention weights are not kept; "
            "take the hidden states, or hook LaneAttention"
        )
