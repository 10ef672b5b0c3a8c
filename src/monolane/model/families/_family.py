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
from monolane.model.families._ahead import AheadSpelling
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import write_rotary
from monolane.ops import Role

Reader = Callable[[Fields], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family's spelling of a decoder, in config.json and in weight files."""

    name: str  # ModelConfig.family
    model_types: tuple[str, ...]
    # Where several families have a model_type: those of text_config that this one is of; the one
    # that has none is of all others.
    inside: tuple[str, ...] = ()
    # Field of ModelConfig -> how to read it; a field that is not named has ModelConfig's default.
    fields: Mapping[str, Reader]
    # Field of config.json -> the one value that executors compute, and what to say of others.
    fixed: Mapping[str, tuple[str | float | None, str]] = field(default_factory=dict)
    # The tensors' names in files, ``{i}`` for the layer, and those without an axis for the lanes.
    names: Callable[[ModelConfig], Mapping[Role, str]]
    shared: Callable[[ModelConfig], frozenset[Role]]
    # Experts' matrices that files hold with the columns before the rows.
    columns_first: frozenset[Role] = frozenset()
    # Of two roles in one tensor the rows are behind each other, and not in turn.
    halves: bool = False
    # Names of experts' matrices where a checkpoint has one tensor for all of a layer, with the rows
    # of gate, then those of up, of each. Not all files of a family are alike in this.
    merged: Mapping[Role, str] = field(default_factory=dict)
    # Names of tensors that a checkpoint may hold besides, and that say nothing.
    surplus: Callable[[ModelConfig, str], bool] = lambda config, name: False
    render: Callable[[ModelConfig], dict[str, Any]]
    gguf: GgufSpelling | None = None  # how GGUF files spell it, where there are such
    ahead: AheadSpelling | None = None  # the same of layers that predict further ahead, in folders
    # Where in config.json the decoder's fields are, with what they mean where they are not there.
    view: Callable[[Fields], Fields] = lambda fields: fields

    def parse(self, fields: Fields) -> ModelConfig:
        """Read a config.json; ConfigError names the field that is missing or wrong."""
        fields = self.view(fields)
        for name, (value, why) in self.fixed.items():
            fields.fixed(name, value, why)
        return ModelConfig(
            family=self.name, **{name: read(fields) for name, read in self.fields.items()}
        )


def with_defaults(defaults: Mapping[str, Any]) -> Callable[[Fields], Fields]:
    """Return a view in which the fields of ``defaults`` that are not there, or null, are those."""

    def view(fields: Fields) -> Fields:
        there = {k: x for k, x in fields.raw.items() if x is not None or k not in defaults}
        return Fields({**defaults, **there}, fields.source, fields.spelled)

    return view


def layer_count(fields: Fields) -> int:
    """Read the number of layers, before anything of that length is made."""
    count = fields.size("num_hidden_layers")
    if count > MAX_LAYERS:
        raise fields.fault("num_hidden_layers", f"at most {MAX_LAYERS} layers")
    return count


def _pad_id(fields: Fields) -> int | None:
    """Read the padding token, or None where the id is no token's: decoding never pads.

    Published files say -1, or the size of the vocabulary, and mean that there is none.
    """
    value = fields.raw.get("pad_token_id")
    first = value[0] if isinstance(value, list) and value else value
    if type(first) is int and not 0 <= first < fields.size("vocab_size"):
        return None
    return next(iter(fields.ids("pad_token_id")), None)


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
    "pad_id": _pad_id,
    "dtype": lambda f: f.choice(f.first("dtype", "torch_dtype"), WEIGHT_DTYPES, "bfloat16"),
}


def render_common(config: ModelConfig, architecture: str, model_type: str) -> dict[str, Any]:
    """Write what all families spell alike, as ``COMMON`` and ``read_rotary`` read it."""
    eos_ids: list[int] = list(config.eos_ids)
    return {
        "architectures": [architecture],
        "model_type": model_type,
        **{name: getattr(config, place) for place, name in SIZES.items()},
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        **write_rotary(config.rotary),
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_id,
        "eos_token_id": eos_ids[0] if len(eos_ids) == 1 else eos_ids or None,
        "pad_token_id": config.pad_id,
        "torch_dtype": config.dtype,
    }
