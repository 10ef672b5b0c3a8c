"""Llama 2 and 3, and what other dense families have of them: one lane that reduces at once."""

from collections.abc import Callable
from typing import Any

from monolane.model._config import Head, ModelConfig
from monolane.model._fields import Fields
from monolane.model._layer_config import LayerConfig
from monolane.model._reduce import NOW
from monolane.model.families._family import (
    COMMON,
    Family,
    Reader,
    layer_count,
    render_common,
)
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import FULL, WINDOWED, read_rotary
from monolane.ops import Role

NAMES = {
    Role.EMBEDDING: "model.embed_tokens.weight",
    Role.ATTENTION_NORM: "model.layers.{i}.input_layernorm.weight",
    Role.Q: "model.layers.{i}.self_attn.q_proj.weight",
    Role.K: "model.layers.{i}.self_attn.k_proj.weight",
    Role.V: "model.layers.{i}.self_attn.v_proj.weight",
    Role.O: "model.layers.{i}.self_attn.o_proj.weight",
    Role.MLP_NORM: "model.layers.{i}.post_attention_layernorm.weight",
    Role.GATE: "model.layers.{i}.mlp.gate_proj.weight",
    Role.UP: "model.layers.{i}.mlp.up_proj.weight",
    Role.DOWN: "model.layers.{i}.mlp.down_proj.weight",
    Role.FINAL_NORM: "model.norm.weight",
    Role.HEAD: "lm_head.weight",
    # Where the config has them.
    Role.Q_BIAS: "model.layers.{i}.self_attn.q_proj.bias",
    Role.K_BIAS: "model.layers.{i}.self_attn.k_proj.bias",
    Role.V_BIAS: "model.layers.{i}.self_attn.v_proj.bias",
    Role.O_BIAS: "model.layers.{i}.self_attn.o_proj.bias",
}


def read_layers(
    fields: Fields,
    window: int | None = None,
    windowed: Callable[[int], bool] = lambda layer: True,
) -> tuple[LayerConfig, ...]:
    """Return layers that reduce at once, with a window where ``layer_types`` says.

    Without that field those that ``windowed`` names have one. None has where ``window`` is None.
    """
    count = layer_count(fields)
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        kinds = [WINDOWED if windowed(i) else FULL for i in range(count)]
    known = isinstance(kinds, list) and all(kind in (FULL, WINDOWED) for kind in kinds)
    if not known or len(kinds) != count:
        expected = f"a list of {count} kinds of attention, one a layer: {FULL!r} or {WINDOWED!r}"
        raise fields.fault("layer_types", expected)
    return tuple(LayerConfig(NOW, NOW, window if kind == WINDOWED else None) for kind in kinds)


def read_alike(fields: Fields, window: int | None) -> tuple[LayerConfig, ...]:
    """Return layers of a family that Transformers gives one window, whatever ``layer_types`` says.

    ConfigError where that field says another thing.
    """
    layers = read_layers(fields, window)
    if any(layer.window != window for layer in layers):
        advice = "; remove the one field, or set the other to null"
        expected = f"{WINDOWED!r} of all layers, which have the sliding_window in this family"
        raise fields.fault("layer_types", expected, advice)
    return layers


def check_switched(fields: Fields, layers: tuple[LayerConfig, ...]) -> None:
    """Refuse windows that ``layer_types`` has and ``use_sliding_window`` does not switch on.

    Transformers would hide keys by the one field, and not by the other.
    """
    off = not fields.flag("use_sliding_window", False)
    if off and any(layer.window is not None for layer in layers):
        advice = f"; remove {WINDOWED!r} or set use_sliding_window"
        raise fields.fault("layer_types", f"{FULL!r} only without use_sliding_window", advice)


DENSE: dict[str, Reader] = COMMON | {
    "num_lanes": lambda f: 1,
    "head": lambda f: Head.VOCAB_PARALLEL,
    "layers": read_layers,
    "rotary": lambda f: read_rotary(f, "half"),
    "norm_eps": lambda f: f.number("rms_norm_eps", default=1e-6),
}

# Of the families whose four products in attention have biases where ``attention_bias`` says so.
BIASES: dict[str, Reader] = {
    "qkv_bias": lambda f: f.flag("attention_bias", False),
    "out_bias": lambda f: f.flag("attention_bias", False),
}


def surplus(config: ModelConfig, name: str) -> bool:
    """Tell tensors that old files store: frequencies, and a tied head beside the embedding."""
    tied_head = config.tie_embeddings and name == NAMES[Role.HEAD]
    return tied_head or name.endswith("rotary_emb.inv_freq")


def render_as(kind: str, model_type: str | None = None) -> Callable[[ModelConfig], dict[str, Any]]:
    """Return how to write a config of the family that Transformers calls ``kind``.

    ``model_type`` is that name in small letters, if not another one.
    """

    def render(config: ModelConfig) -> dict[str, Any]:
        windows = [layer.window for layer in config.layers]
        biases = {"attention_bias": True} if config.out_bias else {}
        return render_common(config, f"{kind}ForCausalLM", model_type or kind.lower()) | {
            "hidden_act": "silu",
            "head_dim": config.head_dim,
            "rms_norm_eps": config.norm_eps,
            "sliding_window": max(filter(None, windows), default=None),
            "use_sliding_window": any(windows),
            "layer_types": [WINDOWED if x else FULL for x in windows],
            **biases,
        }

    return render


LLAMA = Family(
    name="llama",
    model_types=("llama",),
    fields=DENSE | BIASES,
    fixed={
        "hidden_act": ("silu", ""),
        "mlp_bias": (False, "executors have no biases in the MLP"),
    },
    names=lambda config: NAMES,
    shared=lambda config: frozenset(Role),  # no tensor has an axis for the one lane
    surplus=surplus,
    render=render_as("Llama"),
    gguf=GgufSpelling(architecture="llama", style="interleaved"),
)
