"""The Laneformer family: its config.json, in both published spellings, and its tensor names.

    earlier    model_type "laneformer_tp"; use_comm; sliding_window_n_layers (first n layers are
               windowed; negative: the last |n|)
    released   model_type "laneformer"; use_attention_comm, use_mlp_comm; swa_layers (layer ids)

Both are read whatever the model_type says; the released one is written. In either,
``unclamped_layers`` names layers that have full attention though the rest says windowed.

Sizes, lanes, delay, windows, head and rotary base are those of the card of kogai/laneformer-2b-it.
``use_early_comm``, ``pre_norm_lane_agg``, ``replicated_rmsn_scale``, the switches and
``unclamped_layers`` are fields of the released code's config, which the card does not name.
"""

from typing import Any

from monolane.errors import ConfigError
from monolane.model._config import Head, ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model._reduce import NEVER, NOW, Reduce
from monolane.model.families._family import (
    COMMON,
    Family,
    layer_count,
    render_common,
)
from monolane.model.families._rotary import read_rotary
from monolane.ops import Role

_NAMES = {
    Role.EMBEDDING: "model.tok_embeddings.weight",
    Role.ATTENTION_NORM: "model.layers.{i}.attention_norm.weight",
    Role.Q: "model.layers.{i}.attention.wq.weight",
    Role.K: "model.layers.{i}.attention.wk.weight",
    Role.V: "model.layers.{i}.attention.wv.weight",
    Role.O: "model.layers.{i}.attention.wo.weight",
    Role.MLP_NORM: "model.layers.{i}.ffn_norm.weight",
    Role.GATE: "model.layers.{i}.feed_forward.w1.weight",
    Role.UP: "model.layers.{i}.feed_forward.w3.weight",
    Role.DOWN: "model.layers.{i}.feed_forward.w2.weight",
    Role.FINAL_NORM: "model.norm.weight",
    Role.HEAD: "lm_head.weight",
}


def render(config: ModelConfig) -> dict[str, Any]:
    """Write a config as config.json; ConfigError if it is not a Laneformer's."""
    _check_fields(config)
    windows = [layer.window for layer in config.layers]
    sizes = sorted({window for window in windows if window is not None})
    if len(sizes) > 1:
        raise ConfigError(
            f"a Laneformer's config.json has one sliding_window, got layers with {sizes}"
        )
    early, delay, attention_comm, mlp_comm = _communication(config)
    return render_common(config, "LaneformerForCausalLM", "laneformer") | {
        "num_lanes": config.num_lanes,
        "broadcast_delay": delay,
        "use_early_comm": early,
        "use_attention_comm": attention_comm,
        "use_mlp_comm": mlp_comm,
        "lm_head_type": _HEAD_NAMES[config.head],
        "pre_norm_lane_agg": config.head is Head.SUM,
        "replicated_rmsn_scale": not config.norm_scale_per_lane,
        "norm_eps": config.norm_eps,
        "sliding_window": sizes[0] if sizes else None,
        "swa_layers": [i for i, window in enumerate(windows) if window is not None],
    }


def _shared(config: ModelConfig) -> frozenset[Role]:
    """Return the tensors that serve all lanes."""
    norms = {Role.ATTENTION_NORM, Role.MLP_NORM}
    found = set() if config.norm_scale_per_lane else norms
    found |= set() if config.final_norm_per_lane else {Role.FINAL_NORM}
    return frozenset(found | (set() if config.head is Head.VOCAB_PARALLEL else {Role.HEAD}))


def _names(config: ModelConfig) -> dict[Role, str]:
    """Return the names in files: scales of a lane's own and the head over all lanes differ."""
    names = dict(_NAMES)
    for role in {Role.ATTENTION_NORM, Role.MLP_NORM, Role.FINAL_NORM} - _shared(config):
        names[role] = names[role].removesuffix("weight") + "scale"
    if config.head is Head.CONCAT:
        names[Role.HEAD] = "lm_head.linear.weight"
    return names


def _head_dim(fields: Fields) -> int:
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    head_dim = fields.size("head_dim", default=max(1, hidden // heads))
    if head_dim * heads != hidden:
        advice = f" (hidden_size / num_attention_heads = {hidden} / {heads}); mend one of the three"
        raise fields.fault("head_dim", f"{hidden / heads:g}", advice)
    return head_dim


def _layers(fields: Fields) -> tuple[LayerConfig, ...]:
    count = layer_count(fields)
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
    by_list, by_count = fields.layer_ids("swa_layers", count), None
    if fields.has("sliding_window_n_layers"):
        n = fields.raw["sliding_window_n_layers"]
        if type(n) is not int or not -count <= n <= count:
            raise fields.fault("sliding_window_n_layers", f"an integer from {-count} to {count}")
        by_count = set(range(n)) if n >= 0 else set(range(count + n, count))
    unclamped = fields.layer_ids("unclamped_layers", count) or set()
    found = [ids - unclamped for ids in (by_list, by_count) if ids is not None]
    if len(found) == 2 and found[0] != found[1]:
        advice = ", as sliding_window_n_layers says; remove one of the two"
        raise fields.fault("swa_layers", str(sorted(found[1])), advice)
    return found[0] if found else None


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


def _check_fields(config: ModelConfig) -> None:
    """Refuse fields of other families, for which a Laneformer's config.json has no word."""
    for name in config.features:
        raise ConfigError(f"{name}: expected a model without, as Laneformers are")
    if config.rotary.style != "interleaved":
        raise ConfigError(f"rotary pairs: expected interleaved ones, got {config.rotary.style}")
    if config.head_dim * config.num_heads != config.hidden_size:
        expected = f"{config.hidden_size / config.num_heads:g}, hidden_size / num_attention_heads"
        raise ConfigError(f"head_dim: expected {expected}, got {config.head_dim}")


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


LANEFORMER = Family(
    name="laneformer",
    model_types=("laneformer", "laneformer_tp"),
    fields=COMMON
    | {
        "head_dim": _head_dim,
        "num_lanes": lambda f: f.size("num_lanes"),
        "layers": _layers,
        "head": _head,
        "rotary": lambda f: read_rotary(f, "interleaved", stretches=("llama3",)),
        "norm_eps": lambda f: f.number(f.first("norm_eps", "rms_norm_eps"), default=1e-5),
        "norm_scale_per_lane": lambda f: not f.flag("replicated_rmsn_scale", False),
    },
    fixed={
        "hidden_act": ("silu", ""),
        "attention_bias": (False, "a Laneformer has no biases"),
        "mlp_bias": (False, "a Laneformer has no biases"),
    },
    names=_names,
    shared=_shared,
    render=render,
)
