"""What a family states of itself, and what all families spell alike in config.json.

A family is data: for each field of ``ModelConfig`` how config.json says it, the fields of
config.json that leave no choice, and the names of the tensors. It has no class of its own and no
arithmetic: executors see ``ModelConfig`` and ``Weights``, never a family.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from monolane.model._config import MAX_LAYERS, WEIGHT_DTYPES, ModelConfig
from monolane.model._fields import Fields
from monolane.model._rotary import Llama3Scaling, PairStyle, Rotary
from monolane.model._tensors import Role
from monolane.model.families._gguf import GgufSpelling

Reader = Callable[[Fields], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family's spelling of a decoder, in config.json and in weight files."""

    name: str  # ModelConfig.family
    model_types: tuple[str, ...]
    # Field of ModelConfig -> how to read it; a field that is not named has ModelConfig's default.
    fields: Mapping[str, Reader]
    # Field of config.json -> the one value that executors compute, and what to say of others.
    fixed: Mapping[str, tuple[str | float, str]] = field(default_factory=dict)
    # The tensors' names in files, ``{i}`` for the layer, and those without an axis for the lanes.
    names: Callable[[ModelConfig], Mapping[Role, str]]
    shared: Callable[[ModelConfig], frozenset[Role]]
    # Names of tensors that a checkpoint may hold besides, and that say nothing.
    surplus: Callable[[ModelConfig, str], bool] = lambda config, name: False
    render: Callable[[ModelConfig], dict[str, Any]]
    gguf: GgufSpelling | None = None  # how GGUF files spell it, where there are such

    def parse(self, fields: Fields) -> ModelConfig:
        """Read a config.json; ConfigError names the field that is missing or wrong."""
        for name, (value, why) in self.fixed.items():
            fields.fixed(name, value, why)
        return ModelConfig(
            family=self.name, **{name: read(fields) for name, read in self.fields.items()}
        )


def layer_count(fields: Fields) -> int:
    """Read the number of layers, before anything of that length is made."""
    count = fields.size("num_hidden_layers")
    if count > MAX_LAYERS:
        raise fields.fault("num_hidden_layers", f"at most {MAX_LAYERS} layers")
    return count


# Field of Llama3Scaling -> field of rope_scaling.
SCALING = {
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
}


def read_rotary(fields: Fields, style: PairStyle) -> Rotary:
    """Read base frequency and stretch; ConfigError for a stretch other than Llama 3's."""
    # Transformers 5 gathers theta and scaling in rope_parameters; earlier files have both apart.
    scaling = fields.nested(fields.first("rope_parameters", "rope_scaling"))
    inner = scaling if scaling is not None else fields
    for place in (fields, inner):
        place.fixed("partial_rotary_factor", 1, "all of a head turns")
    theta = (inner if inner.has("rope_theta") else fields).number("rope_theta", default=10000.0)
    if scaling is None:
        return Rotary(theta, style)
    kind = scaling.choice(scaling.first("rope_type", "type"), ("default", "llama3"), "default")
    if kind == "default":
        return Rotary(theta, style)
    numbers = {place: scaling.number(name) for place, name in SCALING.items()}
    context = scaling.size("original_max_position_embeddings")
    return Rotary(theta, style, Llama3Scaling(original_context=context, **numbers))


# What all families spell alike: field of ModelConfig -> field of config.json, or how to read it.
SIZES = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
}
COMMON: dict[str, Reader] = {
    **{place: partial(Fields.size, name=name) for place, name in SIZES.items()},
    "num_kv_heads": lambda f: f.size("num_key_value_heads", f.size("num_attention_heads")),
    "head_dim": lambda f: f.size(
        "head_dim", max(1, f.size("hidden_size") // f.size("num_attention_heads"))
    ),
    "tie_embeddings": lambda f: f.flag("tie_word_embeddings", False),
    "bos_id": lambda f: next(iter(f.ids("bos_token_id")), None),
    "eos_ids": lambda f: f.ids("eos_token_id"),
    "pad_id": lambda f: next(iter(f.ids("pad_token_id")), None),
    "dtype": lambda f: f.choice(f.first("dtype", "torch_dtype"), WEIGHT_DTYPES, "bfloat16"),
}


def render_common(config: ModelConfig, architecture: str, model_type: str) -> dict[str, Any]:
    """Write what all families spell alike, as ``COMMON`` and ``read_rotary`` read it."""
    eos_ids: list[int] = list(config.eos_ids)
    raw: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        **{name: getattr(config, place) for place, name in SIZES.items()},
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rope_theta": config.rotary.theta,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_id,
        "eos_token_id": eos_ids[0] if len(eos_ids) == 1 else eos_ids or None,
        "pad_token_id": config.pad_id,
        "torch_dtype": config.dtype,
    }
    if isinstance(scaling := config.rotary.scaling, Llama3Scaling):
        raw["rope_scaling"] = {
            "rope_type": "llama3",
            **{name: getattr(scaling, place) for place, name in SCALING.items()},
            "original_max_position_embeddings": scaling.original_context,
        }
    return raw
