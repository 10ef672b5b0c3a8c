"""The Laneformer family: its config.json, in both published spellings, and its tensor names.

    earlier    model_type "laneformer_tp"; use_comm; sliding_window_n_layers (first n layers are
               windowed; negative: the last |n|)
    released   model_type "laneformer"; use_attention_comm, use_mlp_comm; swa_layers (layer ids)

Both are read whatever the model_type says; the released one is written unless asked otherwise.
Source: the model card of kogai/laneformer-2b-it.
"""

from collections.abc import Mapping
from typing import Any, Literal

from monolane.errors import ConfigError
from monolane.model._config import MAX_LAYERS, WEIGHT_DTYPES, Head, LayerConfig, ModelConfig
from monolane.model._fields import Fields
from monolane.model._reduce import NEVER, NOW, Reduce
from monolane.model._rotary import Rotary, RotaryScaling
from monolane.model._tensors import Role, TensorSpec, lane_shape, layer_roles

MODEL_TYPES = ("laneformer", "laneformer_tp")
Spelling = Literal["released", "earlier"]

_NAMES = {
    Role.EMBEDDING: "model.tok_embeddings.weight",
    Role.ATTENTION_NORM: "attention_norm",
    Role.Q: "attention.wq.weight",
    Role.K: "attention.wk.weight",
    Role.V: "attention.wv.weight",
    Role.O: "attention.wo.weight",
    Role.MLP_NORM: "ffn_norm",
    Role.GATE: "feed_forward.w1.weight",
    Role.UP: "feed_forward.w3.weight",
    Role.DOWN: "feed_forward.w2.weight",
}


def parse(raw: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """Read a Laneformer's config.json; ConfigError names the field that is missing or wrong."""
    fields = Fields(raw, source)
    hidden = fields.size("hidden_size")
    heads = fields.size("num_attention_heads")
    head_dim = fields.size("head_dim", default=max(1, hidden // heads))
    if head_dim * heads != hidden:
        advice = f" (hidden_size / num_attention_heads = {hidden} / {heads}); mend one of the three"
        raise fields.fault("head_dim", f"{hidden / heads:g}", advice)
    if fields.has("hidden_act"):
        fields.choice("hidden_act", ("silu",))
    if fields.flag("attention_bias", False) or fields.flag("mlp_bias", False):
        raise ConfigError(
            f"{source}: a Laneformer has no biases: set attention_bias and mlp_bias to false"
        )
    return ModelConfig(
        family="laneformer",
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        num_heads=heads,
        num_kv_heads=fields.size("num_key_value_heads", default=heads),
        head_dim=head_dim,
        vocab_size=fields.size("vocab_size"),
        max_positions=fields.size("max_position_embeddings"),
        num_lanes=fields.size("num_lanes"),
        layers=_layers(fields),
        head=_head(fields),
        rotary=_rotary(fields),
        norm_eps=fields.number(fields.first("norm_eps", "rms_norm_eps"), default=1e-5),
        norm_scale_per_lane=not fields.flag("replicated_rmsn_scale", False),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        bos_id=next(iter(fields.ids("bos_token_id")), None),
        eos_ids=fields.ids("eos_token_id"),
        pad_id=next(iter(fields.ids("pad_token_id")), None),
        dtype=_dtype(fields),
    )


def render(config: ModelConfig, spelling: Spelling = "released") -> dict[str, Any]:
    """Write a config as config.json; ConfigError if it is not a Laneformer's."""
    early, delay, attention_comm, mlp_comm = _communication(config)
    released = spelling == "released"
    raw: dict[str, Any] = {
        "architectures": ["LaneformerForCausalLM" if released else "LaneformerTPForCausalLM"],
        "model_type": "laneformer" if released else "laneformer_tp",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "num_lanes": config.num_lanes,
        "broadcast_delay": delay,
        "use_early_comm": early,
        "lm_head_type": _HEAD_NAMES[config.head],
        "pre_norm_lane_agg": config.head is Head.SUM,
        "replicated_rmsn_scale": not config.norm_scale_per_lane,
        "rope_theta": config.rotary.theta,
        "norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_ids[0]
        if len(config.eos_ids) == 1
        else list(config.eos_ids) or None,
        "pad_token_id": config.pad_id,
        "torch_dtype": config.dtype,
    }
    raw |= _render_windows(config, spelling)
    if released:
        raw |= {"use_attention_comm": attention_comm, "use_mlp_comm": mlp_comm}
    elif attention_comm != mlp_comm:
        raise ConfigError(
            "the earlier spelling has one use_comm for both modules: expected both to communicate "
            "or neither, got one of each; write the released spelling"
        )
    else:
        raw["use_comm"] = attention_comm
    if config.rotary.scaling is not None:
        raw["rope_scaling"] = _render_scaling(config.rotary.scaling)
    return raw


def tensors(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return every tensor of a Laneformer checkpoint, in the order in which a pass reads them."""
    specs = [_spec(config, Role.EMBEDDING, _NAMES[Role.EMBEDDING])]
    for i in range(config.num_layers):
        for role in layer_roles(config):
            name = f"model.layers.{i}.{_NAMES[role]}"
            if role in (Role.ATTENTION_NORM, Role.MLP_NORM):
                name += ".scale" if config.norm_scale_per_lane else ".weight"
            specs.append(_spec(config, role, name, i))
    norm = "model.norm.scale" if config.final_norm_per_lane else "model.norm.weight"
    specs.append(_spec(config, Role.FINAL_NORM, norm))
    if not config.tie_embeddings:
        concat = config.head is Head.CONCAT
        specs.append(
            _spec(config, Role.HEAD, "lm_head.linear.weight" if concat else "lm_head.weight")
        )
    return tuple(specs)


def _spec(config: ModelConfig, role: Role, name: str, layer: int | None = None) -> TensorSpec:
    shape = lane_shape(config, role)
    shared_norm = name.endswith("norm.weight")
    one_head = role is Role.HEAD and config.head is not Head.VOCAB_PARALLEL
    # The file has no lane axis where the lanes share a tensor.
    return TensorSpec(name, shape[1:] if shared_norm or one_head else shape, role, layer)


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    count = fields.size("num_hidden_layers")
    if count > MAX_LAYERS:
        raise fields.fault("num_hidden_layers", f"at most {MAX_LAYERS} layers")
    delay = fields.size("broadcast_delay", minimum=0)
    early = NOW if fields.flag("use_early_comm", False) else NEVER
    attention = _late_rule(fields, "use_attention_comm", delay)
    mlp = _late_rule(fields, "use_mlp_comm", delay)
    windows = _windows(fields, count)
    return tuple(
        LayerConfig(early, early, window) if i < delay else LayerConfig(attention, mlp, window)
        for i, window in enumerate(windows)
    )


def _late_rule(fields: Fields, name: str, delay: int) -> Reduce:
    """Return the rule of the layers that have a layer ``delay`` below them."""
    both = fields.flag("use_comm", True)
    if fields.has(name) and fields.has("use_comm") and fields.flag(name, both) != both:
        raise fields.fault(
            name, f"{str(both).lower()}, as use_comm says", "; remove one of the two"
        )
    return Reduce(delay) if fields.flag(name, both) else NEVER


def _windows(fields: Fields, count: int) -> list[int | None]:
    window = fields.optional_size("sliding_window")
    named = _windowed_layers(fields, count)
    if window is not None and named is None:
        raise fields.fault("swa_layers", "the layers that sliding_window is for", "; add it")
    if window is None and named:
        raise fields.fault("sliding_window", "a window, since layers are named that have one")
    return [window if i in (named or ()) else None for i in range(count)]


def _windowed_layers(fields: Fields, count: int) -> set[int] | None:
    by_list = by_count = None
    if fields.has("swa_layers"):
        value = fields.raw["swa_layers"]
        expected = f"a list of layer ids from 0 to {count - 1}"
        if not isinstance(value, list) or not all(type(i) is int and 0 <= i < count for i in value):
            raise fields.fault("swa_layers", expected)
        by_list = set(value)
    if fields.has("sliding_window_n_layers"):
        n = fields.raw["sliding_window_n_layers"]
        if type(n) is not int or not -count <= n <= count:
            raise fields.fault("sliding_window_n_layers", f"an integer from {-count} to {count}")
        by_count = set(range(n)) if n >= 0 else set(range(count + n, count))
    if by_list is not None and by_count is not None and by_list != by_count:
        advice = ", as sliding_window_n_layers says; remove one of the two"
        raise fields.fault("swa_layers", str(sorted(by_count)), advice)
    return by_count if by_list is None else by_list


_HEAD_NAMES = {
    Head.VOCAB_PARALLEL: "vocab_parallel",
    Head.MEAN: "replicate",
    Head.SUM: "replicate",
    Head.CONCAT: "lane",
}


def _head(fields: Fields) -> Head:
    name = fields.choice("lm_head_type", ("vocab_parallel", "replicate", "lane"), "vocab_parallel")
    before_norm = fields.flag("pre_norm_lane_agg", False)
    if name == "replicate":
        return Head.SUM if before_norm else Head.MEAN
    if before_norm:
        advice = f"; only the replicate head sums the lanes, and lm_head_type is {name!r}"
        raise fields.fault("pre_norm_lane_agg", "false", advice)
    return Head.VOCAB_PARALLEL if name == "vocab_parallel" else Head.CONCAT


def _rotary(fields: Fields) -> Rotary:
    # Transformers 5 gathers theta and scaling in rope_parameters; earlier files have both apart.
    scaling = fields.nested(fields.first("rope_parameters", "rope_scaling"))
    theta_fields = scaling if scaling is not None and scaling.has("rope_theta") else fields
    theta = theta_fields.number("rope_theta", default=10000.0)
    if scaling is None:
        return Rotary(theta)
    kind = scaling.choice(scaling.first("rope_type", "type"), ("default", "llama3"), "default")
    if kind == "default":
        return Rotary(theta)
    stretch = RotaryScaling(
        factor=scaling.number("factor"),
        low_frequency_factor=scaling.number("low_freq_factor"),
        high_frequency_factor=scaling.number("high_freq_factor"),
        original_context=scaling.size("original_max_position_embeddings"),
    )
    return Rotary(theta, scaling=stretch)


def _dtype(fields: Fields) -> Any:
    return fields.choice(fields.first("dtype", "torch_dtype"), WEIGHT_DTYPES, "bfloat16")


def _communication(config: ModelConfig) -> tuple[bool, int, bool, bool]:
    """Return (use_early_comm, broadcast_delay, attention communicates, MLP communicates)."""
    first, last = config.layers[0], config.layers[-1]
    delays = {r.delay for x in config.layers for r in (x.attention_reduce, x.mlp_reduce)} - {
        0,
        None,
    }
    early = first.attention_reduce == NOW
    if delays:
        delay = min(d for d in delays if d is not None)
    else:  # nothing is delayed: the early layers are those before the rule changes, if it does
        delay = next((i for i, x in enumerate(config.layers) if x.attention_reduce != NOW), 0)
    attention, mlp = last.attention_reduce != NEVER, last.mlp_reduce != NEVER
    late = LayerConfig(Reduce(delay) if attention else NEVER, Reduce(delay) if mlp else NEVER)
    early_rule = NOW if early else NEVER
    for i, layer in enumerate(config.layers):
        found = (layer.attention_reduce, layer.mlp_reduce)
        early_pair, late_pair = (early_rule,) * 2, (late.attention_reduce, late.mlp_reduce)
        if found != (early_pair if i < delay else late_pair):
            raise ConfigError(
                f"layer {i} reduces {found[0]} / {found[1]}: a Laneformer's config.json has one "
                "rule for the first layers, one delay, and one switch per module for the others"
            )
    return early and delay > 0, delay, attention, mlp


def _render_windows(config: ModelConfig, spelling: Spelling) -> dict[str, Any]:
    windowed = [i for i, layer in enumerate(config.layers) if layer.window is not None]
    sizes = sorted({layer.window for layer in config.layers if layer.window is not None})
    if len(sizes) > 1:
        raise ConfigError(
            f"a Laneformer's config.json has one sliding_window, got layers with {sizes}"
        )
    window = sizes[0] if sizes else None
    if spelling == "released":
        return {"sliding_window": window, "swa_layers": windowed}
    n, count = len(windowed), config.num_layers
    if windowed not in (list(range(n)), list(range(count - n, count))):
        raise ConfigError(
            "the earlier spelling windows the first or the last layers, got layers "
            f"{windowed}; write the released spelling"
        )
    return {
        "sliding_window": window,
        "sliding_window_n_layers": n if windowed[:1] in ([], [0]) else -n,
    }


def _render_scaling(scaling: RotaryScaling) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": scaling.original_context,
    }
