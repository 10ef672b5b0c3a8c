"""An EAGLE-3 drafter, in a folder as SpecForge and its authors, or Speculators, write it.

The method is arXiv:2503.01840. One layer that attends, over what three places of a model's stream
held of each token; see csrc/draft/eagle_drafter.h for what is computed. It has a vocabulary of its
own, a part of the model's, and the model's embedding. Both files are checked before a number of
them is used.

Shape legend: D hidden, F inner, H query heads, K KV heads, h head width, R drafted vocabulary, V
vocabulary of the model.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from monolane.errors import CheckpointError, ConfigError
from monolane.model._config import ModelConfig
from monolane.model._dflash import DFLASH_ARCHITECTURES
from monolane.model._drafter_tensors import DrafterTensors
from monolane.model._fields import Fields, read_json_object
from monolane.model._rotary import Rotary
from monolane.model._safetensors import write_safetensors
from monolane.model.families import parse_config

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_POSITIONS = 131072  # that a drafter is said to take: as many as are drafted for
_ARCHITECTURE = "LlamaForCausalLMEagle3"
# What drafts in other ways, by words of its architecture or model_type.
_OTHERS = {
    "dflash": "a DFlash drafter of another kind",
    "dspark": "a DSpark drafter of another kind",
    "speculator": "a drafter of Speculators of another kind",
    "eagle": "an EAGLE drafter of another kind",
}
# Speculators: the layer's config is apart, and its name is another.
_SPECULATORS = "eagle3"
_LAYER, _THEIR_LAYER = "midlayer.", "layers.0."
_UNKNOWN = ("norm_before_fc", "fc_norm", "norm_output")  # norms that are not computed
NAMES = {
    "fc": "fc.weight",
    "q": "midlayer.self_attn.q_proj.weight",
    "k": "midlayer.self_attn.k_proj.weight",
    "v": "midlayer.self_attn.v_proj.weight",
    "o": "midlayer.self_attn.o_proj.weight",
    "gate": "midlayer.mlp.gate_proj.weight",
    "up": "midlayer.mlp.up_proj.weight",
    "down": "midlayer.mlp.down_proj.weight",
    "head": "lm_head.weight",
    "token_norm": "midlayer.input_layernorm.weight",
    "state_norm": "midlayer.hidden_norm.weight",
    "mlp_norm": "midlayer.post_attention_layernorm.weight",
    "final_norm": "norm.weight",
}
EAGLE_MATRICES = ("fc", "q", "k", "v", "o", "gate", "up", "down", "head")
EAGLE_NORMS = ("token_norm", "state_norm", "mlp_norm", "final_norm")
# Not read: the model's own embedding, which drafters are trained with, and which of the model's
# tokens are drafted, which d2t says, too.
_UNREAD = ("t2d", "embed_tokens.weight")

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Eagle:
    """What drafts the next tokens of one model.

    weights     the matrices, as they are stored: fc [D, 3D], q [Hh, 2D], k and v [Kh, 2D],
                o [D, Hh], gate and up [F, D], down [D, F], head [R, D]; and four norms [D]
    tokens      int32 [R], the model's id of each row of ``head``
    layers      the three layers of the model before which the stream is read; None: the usual ones
    heads       H, K and h
    rotary      by which queries and keys turn
    norm_joins  the stream goes on from what was normed, not from what was read
    """

    weights: Mapping[str, Array]
    tokens: npt.NDArray[np.int32]
    vocab_size: int
    layers: tuple[int, int, int] | None
    heads: tuple[int, int, int]
    rotary: Rotary
    norm_eps: float
    norm_joins: bool = False

    @property
    def hidden_size(self) -> int:
        """D."""
        return int(self.weights["fc"].shape[0])

    @property
    def inner_size(self) -> int:
        """F."""
        return int(self.weights["gate"].shape[0])

    def layers_of(self, config: ModelConfig) -> tuple[int, int, int]:
        """Return the layers before which the stream of a model is read."""
        count = config.num_layers
        return self.layers or (2, count // 2, count - 3)

    def check(self, config: ModelConfig, source: str) -> None:
        """ConfigError unless this is of a model's shapes; ``source`` names it in the message."""
        for name, mine in (("hidden_size", self.hidden_size), ("vocab_size", self.vocab_size)):
            wanted = getattr(config, name)
            if mine != wanted:
                raise ConfigError(
                    f"{source}: {name}: expected {wanted}, the model's, got {mine}; take the "
                    "drafter that was trained with this model"
                )
        layers = self.layers_of(config)
        if any(not 0 <= layer < config.num_layers for layer in layers):
            raise ConfigError(
                f"{source}: eagle_aux_hidden_state_layer_ids: expected layers of the model, which "
                f"has {config.num_layers}, got those before {layers}"
            )

    def write(self, folder: Path) -> None:
        """Write the folder, which is there, for this and for other engines; weights as bfloat16.

        Of a rotary that is not stretched.
        """
        heads, kv_heads, width = self.heads
        assert self.rotary.scaling is None
        layers = self.layers and [layer - 1 for layer in self.layers]
        said = {
            "architectures": [_ARCHITECTURE],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.inner_size,
            "num_hidden_layers": 1,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": width,
            "hidden_act": "silu",
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rotary.theta,
            "max_position_embeddings": _POSITIONS,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": len(self.tokens),
            "norm_before_residual": self.norm_joins,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "eagle_config": {
                "use_aux_hidden_state": True,
                "eagle_aux_hidden_state_layer_ids": layers,
            },
        }
        (folder / _CONFIG).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        chosen = np.zeros(self.vocab_size, np.bool_)
        chosen[self.tokens] = True
        arrays = [(NAMES[n], x.astype(ml_dtypes.bfloat16)) for n, x in self.weights.items()]
        more = self.tokens.astype(np.int64) - np.arange(len(self.tokens))
        write_safetensors(folder / _WEIGHTS, [*arrays, ("d2t", more), ("t2d", chosen)])

    @staticmethod
    def open(folder: Path) -> "Eagle":
        """Read a folder; ConfigError or CheckpointError says which file and what of it is wrong."""
        fields = Fields(read_json_object(folder / _CONFIG), str(folder / _CONFIG))
        theirs = fields.raw.get("speculators_model_type") == _SPECULATORS
        layer = _layer_of_speculators(fields) if theirs else fields
        raw = layer.raw
        if not theirs and raw.get("architectures") != [_ARCHITECTURE]:
            raise fields.fault("architectures", f"[{_ARCHITECTURE!r}]")
        if raw.get("num_hidden_layers") != 1:
            raise layer.fault("num_hidden_layers", "1")
        # Its layer is a Llama's, but for what it reads.
        config = parse_config(
            {**raw, "model_type": "llama", "tie_word_embeddings": False}, str(folder / _CONFIG)
        )
        attention = config.attention(0)
        heads = attention.heads, attention.kv_heads, attention.head_dim
        drafted = fields.size("draft_vocab_size")
        tensors = DrafterTensors(folder, "an EAGLE-3 drafter")
        shapes = _shapes(config.hidden_size, config.intermediate_size, *heads, drafted)
        names = {x: y.replace(_LAYER, _THEIR_LAYER) if theirs else y for x, y in NAMES.items()}
        found = {name: tensors.grouped(names[name], shape) for name, shape in shapes.items()}
        tokens = _tokens(tensors, folder, drafted, config.vocab_size)
        tensors.refuse_others(_UNREAD)
        return Eagle(
            weights=found,
            tokens=tokens,
            vocab_size=config.vocab_size,
            layers=_their_layers(fields) if theirs else _layers(fields),
            heads=heads,
            rotary=config.rotary,
            norm_eps=config.norm_eps,
            norm_joins=bool(fields.raw.get("norm_before_residual", False)),
        )


def is_eagle(folder: Path) -> bool:
    """Tell whether a folder's config.json says that it holds an EAGLE-3 drafter.

    ConfigError if it holds a drafter of a kind that is not read, which it names, or no JSON.
    """
    path = folder / _CONFIG
    if not path.is_file():
        return False
    raw = read_json_object(path)
    said = [*_texts(raw.get("architectures")), *_texts(raw.get("speculators_model_type"))]
    said += _texts(raw.get("model_type"))
    if _ARCHITECTURE in said or raw.get("speculators_model_type") == _SPECULATORS:
        return True
    for word, what in _OTHERS.items():
        if any(word in text.lower() for text in said):
            raise ConfigError(
                f"{path}: expected a model, heads, or a drafter of architecture "
                f"{_ARCHITECTURE} or {DFLASH_ARCHITECTURES[0]}, got {what} ({said[0]!r:.80}); use "
                "one of those, or leave it out"
            )
    return False


def _texts(value: object) -> list[str]:
    """Return the texts that a field holds, one or a list."""
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]


def _shapes(
    hidden: int, inner: int, heads: int, kv_heads: int, width: int, drafted: int
) -> dict[str, tuple[int, ...]]:
    return {
        "fc": (hidden, 3 * hidden),
        "q": (heads * width, 2 * hidden),
        "k": (kv_heads * width, 2 * hidden),
        "v": (kv_heads * width, 2 * hidden),
        "o": (hidden, heads * width),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
        "head": (drafted, hidden),
        **dict.fromkeys(EAGLE_NORMS, (hidden,)),
    }


def _tokens(
    tensors: DrafterTensors, folder: Path, drafted: int, vocab: int
) -> npt.NDArray[np.int32]:
    """Return the model's id of each drafted token: d2t says by how much it is more."""
    if "d2t" not in tensors:
        if drafted != vocab:
            raise CheckpointError(f"{folder}: d2t: expected it, for {drafted} of {vocab} tokens")
        return np.arange(vocab, dtype=np.int32)
    ids = np.arange(drafted, dtype=np.int64) + tensors.integers("d2t", drafted).astype(np.int64)
    return tensors.ids("d2t", ids, vocab)


def _layer_of_speculators(fields: Fields) -> Fields:
    """Return the config of the layer; ConfigError if more is computed than is read here."""
    for name in _UNKNOWN:
        fields.fixed(name, False, "drafters of this kind have no such norm here")
    layer = fields.nested("transformer_layer_config")
    if layer is None:
        raise fields.fault("transformer_layer_config", "the config of a layer")
    layer.fixed("model_type", "llama", "drafters have a Llama's layer")
    layer.fixed("use_sliding_window", False, "drafters attend to all that they have read")
    return layer


def _their_layers(fields: Fields) -> tuple[int, int, int] | None:
    """Return the layers before which the stream is read, which the config names by number."""
    ids = fields.raw.get("eagle_aux_hidden_state_layer_ids")
    if not ids:
        return None
    if not isinstance(ids, list) or len(ids) != 3 or any(type(i) is not int for i in ids):
        raise fields.fault("eagle_aux_hidden_state_layer_ids", "three numbers of layers")
    return ids[0], ids[1], ids[2]


def _layers(fields: Fields) -> tuple[int, int, int] | None:
    """Return the layers before which the stream is read: behind those that the config names."""
    said = fields.raw.get("eagle_config")
    ids = said.get("eagle_aux_hidden_state_layer_ids") if isinstance(said, dict) else None
    if ids is None:
        return None
    if not isinstance(ids, list) or len(ids) != 3 or any(type(i) is not int for i in ids):
        raise fields.fault("eagle_config", "three numbers as eagle_aux_hidden_state_layer_ids")
    return ids[0] + 1, ids[1] + 1, ids[2] + 1


def check_eagle(config: ModelConfig, source: str) -> None:
    """ConfigError for a model of which no such drafter is trained."""
    if config.num_lanes > 1 or config.num_layers < 6 or config.hidden_size % 32:
        raise ConfigError(
            f"{source}: expected a model of one lane, of 6 layers or more, and of a hidden width "
            f"that is a multiple of 32, got {config.num_lanes} lanes, {config.num_layers} layers "
            f"and {config.hidden_size}; 'monolane tune heads' takes others"
        )
