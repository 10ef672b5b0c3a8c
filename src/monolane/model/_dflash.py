"""A DFlash or DSpark drafter, in a folder as its authors write it (arXiv:2602.06036, DeepSpec).

Layers of Qwen3's kind that draft a block of tokens at once, over what several places of a model's
stream held of each token; see csrc/draft/dflash_drafter.h for what is computed. Embedding and head
are the model's. Both files are checked before a number of them is used.

Shape legend: D hidden, F inner, H query heads, K KV heads, h head width, n streams, B tokens of a
block.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from monolane.errors import CheckpointError, ConfigError
from monolane.model._config import ModelConfig
from monolane.model._drafter_tensors import DrafterTensors
from monolane.model._fields import Fields, read_json_object
from monolane.model._markov import MarkovHead
from monolane.model.families import parse_config

_CONFIG = "config.json"
_DSPARK = "Qwen3DSparkModel"
DFLASH_ARCHITECTURES = ("DFlashDraftModel", "Qwen3DFlashDraftModel", _DSPARK)
_MOST_ROWS = 64  # of a block: it is one step
_LAYER = "layers.{i}."
# Of each layer, by what it is called here.
_NAMES = {
    "q": _LAYER + "self_attn.q_proj.weight",
    "k": _LAYER + "self_attn.k_proj.weight",
    "v": _LAYER + "self_attn.v_proj.weight",
    "o": _LAYER + "self_attn.o_proj.weight",
    "gate": _LAYER + "mlp.gate_proj.weight",
    "up": _LAYER + "mlp.up_proj.weight",
    "down": _LAYER + "mlp.down_proj.weight",
    "input_norm": _LAYER + "input_layernorm.weight",
    "mlp_norm": _LAYER + "post_attention_layernorm.weight",
    "query_norm": _LAYER + "self_attn.q_norm.weight",
    "key_norm": _LAYER + "self_attn.k_norm.weight",
}
DFLASH_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
DFLASH_NORMS = ("input_norm", "mlp_norm", "query_norm", "key_norm")
_FC, _CONTEXT_NORM, _FINAL_NORM = "fc.weight", "hidden_norm.weight", "norm.weight"
_OUTER = ("embed_tokens.weight", "lm_head.weight")  # copies of the model's, in DSpark's folders
_DOMINO = "prefix_gru"  # in names of what Domino adds: it draws the tokens of a block in a row

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Dflash:
    """What drafts the next tokens of one model, a block at once.

    config        of its layers; vocabulary, embedding and head are the model's
    layers        of each the matrices, as they are stored: q [Hh, D], k and v [Kh, D], o [D, Hh],
                  gate and up [F, D], down [D, F]; norms [D], and of queries and keys [h]
    fc            [D, nD], which joins the streams
    read_behind   the n layers of the model behind which the stream is read; -1: before the first
    model_layers  how many that model has
    block         B: rows of the last token, and B - 1 behind it
    mask          the model's token that stands for those
    causal        a row of a block sees those before it, not all
    markov        of DSpark, where each row says the token behind its own: B are drafted; None: each
                  but the first says its own, and B - 1 are
    """

    config: ModelConfig
    layers: tuple[Mapping[str, Array], ...]
    fc: Array
    context_norm: Array
    final_norm: Array
    read_behind: tuple[int, ...]
    model_layers: int
    block: int
    mask: int
    causal: bool = False
    markov: MarkovHead | None = None

    @property
    def drafted(self) -> int:
        """Return how many tokens a block drafts: its last rows say them."""
        return self.block if self.markov is not None else self.block - 1

    @property
    def read_before(self) -> tuple[int, ...]:
        """Return the layers of the model before which that is."""
        return tuple(layer + 1 for layer in self.read_behind)

    def check(self, config: ModelConfig, source: str) -> None:
        """ConfigError unless this is of a model's shapes; ``source`` names it in the message."""
        for name, mine, wanted in (
            ("hidden_size", self.config.hidden_size, config.hidden_size),
            ("vocab_size", self.config.vocab_size, config.vocab_size),
            ("num_target_layers", self.model_layers, config.num_layers),
        ):
            if mine != wanted:
                raise ConfigError(
                    f"{source}: {name}: expected {wanted}, the model's, got {mine}; take the "
                    "drafter that was trained with this model"
                )

    @staticmethod
    def open(folder: Path) -> "Dflash":
        """Read a folder; ConfigError or CheckpointError says which file and what of it is wrong."""
        fields = Fields(read_json_object(folder / _CONFIG), str(folder / _CONFIG))
        fields.fixed("attention_bias", False, "drafters have no biases")
        # Its layers are a Qwen3's.
        raw = {**fields.raw, "model_type": "qwen3", "tie_word_embeddings": False}
        config = parse_config(raw, fields.source)
        block = fields.size("block_size", minimum=2)
        windows = [layer.window for layer in config.layers if layer.window is not None]
        if block > min([_MOST_ROWS, *windows]):
            raise fields.fault("block_size", f"at most {_MOST_ROWS}, and no more than a window")
        is_dspark = fields.raw.get("architectures") == [_DSPARK]
        own = fields if is_dspark else fields.nested("dflash_config") or Fields({}, fields.source)
        model_layers = fields.size("num_target_layers")
        read = _read_behind(own, model_layers, config.num_layers)
        mask = own.size("mask_token_id", minimum=0)
        if mask >= config.vocab_size:
            raise own.fault("mask_token_id", f"one of the model's {config.vocab_size} tokens")
        tensors = DrafterTensors(folder, "a DSpark drafter" if is_dspark else "a DFlash drafter")
        if domino := [name for name in tensors.names if _DOMINO in name]:
            raise CheckpointError(
                f"{folder}: expected the tensors of a DFlash drafter, got {domino[0]}, of a Domino "
                "head, which draws a block's tokens one behind the other; take a drafter without it"
            )
        prefix = "model." if "model." + _FC in tensors else ""
        hidden = config.hidden_size
        found = Dflash(
            config=config,
            layers=tuple(_read_layer(tensors, prefix, config, i) for i in range(config.num_layers)),
            fc=tensors.grouped(prefix + _FC, (hidden, len(read) * hidden)),
            context_norm=tensors.floats(prefix + _CONTEXT_NORM, (hidden,)),
            final_norm=tensors.floats(prefix + _FINAL_NORM, (hidden,)),
            read_behind=read,
            model_layers=model_layers,
            block=block,
            mask=mask,
            causal=not is_dspark and own.flag("causal", False),
            markov=MarkovHead.read(tensors, own, config.vocab_size, hidden) if is_dspark else None,
        )
        tensors.refuse_others(_OUTER if is_dspark else ())
        return found


def is_dflash(folder: Path) -> bool:
    """Tell whether a folder's config.json says that it holds a DFlash drafter."""
    path = folder / _CONFIG
    if not path.is_file():
        return False
    said = read_json_object(path).get("architectures")
    return isinstance(said, list) and len(said) == 1 and said[0] in DFLASH_ARCHITECTURES


def _read_layer(
    tensors: DrafterTensors, prefix: str, config: ModelConfig, i: int
) -> Mapping[str, Array]:
    attention, hidden, inner = config.attention(i), config.hidden_size, config.intermediate_size
    wide = attention.heads * attention.head_dim
    narrow = attention.kv_heads * attention.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "q": (wide, hidden),
        "k": (narrow, hidden),
        "v": (narrow, hidden),
        "o": (hidden, wide),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
        "input_norm": (hidden,),
        "mlp_norm": (hidden,),
        "query_norm": (attention.head_dim,),
        "key_norm": (attention.head_dim,),
    }
    return {
        name: tensors.grouped(prefix + _NAMES[name].format(i=i), shape)
        for name, shape in shapes.items()
    }


def _read_behind(own: Fields, model_layers: int, layers: int) -> tuple[int, ...]:
    """Return the layers of the model behind which the stream is read; ConfigError.

    Without ``target_layer_ids`` as the authors spread them: from the second one to the third last.
    """
    said = own.raw.get("target_layer_ids")
    if isinstance(said, list) and said[:1] == [-1]:  # the embeddings
        found = (-1, *Fields({"target_layer_ids": said[1:]}, own.source).ids("target_layer_ids"))
    elif said is not None:
        found = own.ids("target_layer_ids")
    elif layers == 1:
        found = (model_layers // 2,)
    else:
        found = tuple(round(1 + i * (model_layers - 4) / (layers - 1)) for i in range(layers))
    # What is behind the last one is normed in the authors' code, and no place of the stream.
    if not found or any(layer >= model_layers - 1 for layer in found):
        raise own.fault("target_layer_ids", f"layers before the last of {model_layers}")
    return found
