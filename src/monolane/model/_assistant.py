"""An assistant of a Gemma 4 model, in a folder as Transformers writes it.

Its type is ``gemma4_assistant`` or, of 12B, ``gemma4_unified_assistant``, which is the same.

A small model that drafts, whose layers read the keys and values of the model that it drafts for:
those of its last layer of the same kind, with a window or without, that keeps some. See
csrc/draft/assistant_drafter.h for what is computed. Both files are checked before a number of them
is used.

Shape legend: D hidden, F inner, B the model's hidden, H query heads, h head width, V vocabulary, N
centroids.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.errors import ConfigError
from monolane.model._config import ModelConfig
from monolane.model._drafter_tensors import DrafterTensors
from monolane.model._fields import Fields, read_json_object
from monolane.model._mapped_file import MappedFile
from monolane.model.families import ASSISTANTS, parse_config
from monolane.ops.per_layer.spec import PerLayer

_CONFIG = "config.json"
_TEXTS = ("gemma4_text", "gemma4_unified_text")  # what the layers of each are
_FAMILIES = (*_TEXTS, "gemma4", "gemma4_unified")
_LAYER = "model.layers.{i}."
# Of each layer, by what it is called here.
_NAMES = {
    "q": _LAYER + "self_attn.q_proj.weight",
    "o": _LAYER + "self_attn.o_proj.weight",
    "gate": _LAYER + "mlp.gate_proj.weight",
    "up": _LAYER + "mlp.up_proj.weight",
    "down": _LAYER + "mlp.down_proj.weight",
    "attention_norm": _LAYER + "input_layernorm.weight",
    "post_attention_norm": _LAYER + "post_attention_layernorm.weight",
    "mlp_norm": _LAYER + "pre_feedforward_layernorm.weight",
    "post_mlp_norm": _LAYER + "post_feedforward_layernorm.weight",
    "query_norm": _LAYER + "self_attn.q_norm.weight",
    "scale": _LAYER + "layer_scalar",
}
ASSISTANT_MATRICES = ("q", "o", "gate", "up", "down")
ASSISTANT_NORMS = (
    "attention_norm",
    "post_attention_norm",
    "mlp_norm",
    "post_mlp_norm",
    "query_norm",
)
_BEFORE, _AFTER = "pre_projection.weight", "post_projection.weight"
_EMBEDDING, _HEAD, _NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
_CENTROIDS = "masked_embedding.centroids.weight"
_ORDERING = "masked_embedding.token_ordering"

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ordering:
    """Tokens by centroids, of which some are chosen: only their tokens have logits.

    centroids  [N, D]
    tokens     int32 [V], those of one centroid after another
    chosen     how many centroids
    """

    centroids: Array
    tokens: npt.NDArray[np.int32]
    chosen: int


@dataclass(frozen=True, slots=True, eq=False)
class Assistant:
    """What drafts the next tokens of one Gemma 4 model.

    config    of its layers, which have no keys of their own
    layers    of each the matrices, as they are stored: q [Hh, D], o [D, Hh], gate and up [F, D],
              down [D, F]; norms [D], of queries [h]; and the scale [1] of what is behind it
    before    [D, 2B], what it makes of a token's embedding and a state
    after     [B, D], which makes the next state
    head      [V, D]
    mapped    the files that all this is read from while it drafts
    """

    config: ModelConfig
    layers: tuple[Mapping[str, Array], ...]
    before: Array
    after: Array
    head: Array
    final_norm: Array
    ordering: Ordering | None
    mapped: tuple[MappedFile, ...] = ()

    @property
    def backbone_size(self) -> int:
        """B, the hidden width of the model that it drafts for."""
        return int(self.after.shape[0])

    def check(self, config: ModelConfig, source: str) -> None:
        """ConfigError unless this is of a model's shapes; ``source`` names it in the message."""
        if config.family not in _FAMILIES:
            raise ConfigError(
                f"{source}: expected to draft for a Gemma 4 model, whose keys and values an "
                f"assistant reads, got a {config.family} model; take another draft, or leave it out"
            )
        for name, mine, wanted in (
            ("backbone_hidden_size", self.backbone_size, config.hidden_size),
            ("vocab_size", self.config.vocab_size, config.vocab_size),
        ):
            if mine != wanted:
                raise ConfigError(
                    f"{source}: {name}: expected {wanted}, the model's, got {mine}; take the "
                    "assistant that was trained with this model"
                )
        for i, layer in enumerate(self.read_layers(config, source)):
            theirs = _key_sizes(config, layer)
            for name, size in _key_sizes(self.config, i).items():
                if size != theirs[name]:
                    raise ConfigError(
                        f"{source}: {name}: expected {theirs[name]} in layer {i}, as layer {layer} "
                        f"of the model has it, whose keys it reads, got {size}; take the assistant "
                        "that was trained with this model"
                    )

    def read_layers(self, config: ModelConfig, source: str) -> tuple[int, ...]:
        """Return the layer of a model whose keys and values each of the assistant's reads.

        ConfigError where the model has none of its kind.
        """
        last = {config.layers[i].window is None: i for i in _keeping(config)}
        found = [last.get(layer.window is None) for layer in self.config.layers]
        if None in found:
            kind = "without" if self.config.layers[found.index(None)].window is None else "with"
            raise ConfigError(
                f"{source}: layer_types: expected kinds of layers that the model has, got one "
                f"{kind} a window, of which the model has none; take the assistant that was "
                "trained with this model"
            )
        return tuple(i for i in found if i is not None)

    @staticmethod
    def open(folder: Path) -> "Assistant":
        """Read a folder; ConfigError or CheckpointError says which file and what of it is wrong."""
        fields = Fields(read_json_object(folder / _CONFIG), str(folder / _CONFIG))
        fields.fixed("quantization_config", None, "assistants are read as floats")
        config = _read_config(fields)
        backbone = fields.size("backbone_hidden_size")
        tensors = DrafterTensors(folder, "an assistant")
        hidden, vocab = config.hidden_size, config.vocab_size
        tied = fields.flag("tie_word_embeddings", True)
        found = Assistant(
            config=config,
            layers=tuple(_read_layer(tensors, config, i) for i in range(config.num_layers)),
            before=tensors.floats(_BEFORE, (hidden, 2 * backbone)),
            after=tensors.floats(_AFTER, (backbone, hidden)),
            head=tensors.floats(_EMBEDDING if tied else _HEAD, (vocab, hidden)),
            final_norm=tensors.floats(_NORM, (hidden,)),
            ordering=_read_ordering(fields, tensors, config),
            mapped=tensors.mapped,
        )
        tensors.refuse_others((_EMBEDDING, _HEAD))
        return found


def is_assistant(folder: Path) -> bool:
    """Tell whether a folder's config.json says that it holds an assistant; ConfigError: no JSON."""
    path = folder / _CONFIG
    if not path.is_file():
        return False
    return read_json_object(path).get("model_type") in ASSISTANTS


def _read_config(fields: Fields) -> ModelConfig:
    """Read the layers, as those of a Gemma 4 model that keep keys: only their sizes count."""
    kind = ASSISTANTS.index(fields.choice("model_type", ASSISTANTS))
    text = fields.nested("text_config")
    if text is None:
        raise fields.fault("text_config", "an object")
    count = text.size("num_hidden_layers")
    if text.size("num_kv_shared_layers", 0, minimum=0) not in (0, count):
        raise text.fault("num_kv_shared_layers", f"{count}, all layers of an assistant")
    for name in ("enable_moe_block", "use_double_wide_mlp"):
        text.fixed(name, False, "an assistant's layers have plain MLPs")
    inner = text.choice("model_type", _TEXTS, _TEXTS[kind])
    raw = {**text.raw, "model_type": inner, "num_kv_shared_layers": 0}
    config = parse_config(raw, text.source)
    if config.find(0, PerLayer) is not None:
        raise text.fault("hidden_size_per_layer_input", "0")
    return config


def _keeping(config: ModelConfig) -> list[int]:
    """Return the layers that keep keys and values of their own."""
    return [i for i, layer in enumerate(config.layers) if layer.keys_of is None]


def _key_sizes(config: ModelConfig, layer: int) -> dict[str, int | None]:
    """Return what layers that read the same keys agree in."""
    attention = config.attention(layer)
    return {
        "sliding_window": attention.window,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
    }


def _read_layer(tensors: DrafterTensors, config: ModelConfig, i: int) -> Mapping[str, Array]:
    attention, hidden = config.attention(i), config.hidden_size
    wide, inner = attention.heads * attention.head_dim, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "q": (wide, hidden),
        "o": (hidden, wide),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
        **dict.fromkeys(ASSISTANT_NORMS, (hidden,)),
        "query_norm": (attention.head_dim,),
        "scale": (1,),
    }
    return {name: tensors.floats(_NAMES[name].format(i=i), x) for name, x in shapes.items()}


def _read_ordering(fields: Fields, tensors: DrafterTensors, config: ModelConfig) -> Ordering | None:
    if not fields.flag("use_ordered_embeddings", False):
        return None
    vocab, count = config.vocab_size, fields.size("num_centroids")
    if vocab % count:
        raise fields.fault("num_centroids", f"a divisor of the vocabulary's {vocab} tokens")
    chosen = fields.size("centroid_intermediate_top_k")
    if chosen > count:
        raise fields.fault("centroid_intermediate_top_k", f"at most {count}, num_centroids")
    return Ordering(
        tensors.floats(_CENTROIDS, (count, config.hidden_size)),
        tensors.ids(_ORDERING, tensors.integers(_ORDERING, vocab), vocab),
        chosen,
    )
