"""A layer that predicts further ahead in a folder of its own, as SGLang writes it ("NextN").

Its config.json is the model's, but for one hidden layer and an architecture that ends with NextN;
its tensors are those of the layer behind the model's last, with the number 0. Embedding and head
are the model's, and are not in it. What is computed: ops/ahead/spec.py.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from monolane.errors import ConfigError
from monolane.model._config import ModelConfig
from monolane.model._drafter_tensors import DrafterTensors
from monolane.model._fields import Fields, read_json_object
from monolane.model._rotary import PairStyle
from monolane.model._safetensors import write_safetensors
from monolane.model._tensors import TensorSpec, lane_shape, list_specs
from monolane.model._weights import Weights
from monolane.model.families import find_family, parse_config, render_config
from monolane.model.families._ahead import DEEPSEEK_AHEAD, layer_ahead
from monolane.ops import Role

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_SGLANG = "nextn_layer_parameters.safetensors"  # beside an index that may be the whole model's
_ENDING = "ForCausalLMNextN"
_ARCHITECTURE = "LlamaForCausalLMNextN"
_OUTER = (Role.EMBEDDING, Role.HEAD)  # the model's own
# Copies of these, which some folders have.
_UNREAD = ("model.layers.0.embed_tokens.weight", "model.layers.0.shared_head.head.weight")

Arrays = Mapping[Role, npt.NDArray[Any]]


def is_nextn(folder: Path) -> bool:
    """Tell whether a folder's config.json says that it holds such a layer."""
    path = folder / _CONFIG
    if not path.is_file():
        return False
    said = read_json_object(path).get("architectures")
    names = said if isinstance(said, list) else [said]
    return any(isinstance(name, str) and name.endswith(_ENDING) for name in names)


def open_nextn(folder: Path, model: Weights) -> Weights:
    """Read a layer that predicts further ahead of a model; ConfigError or CheckpointError."""
    fields = Fields(read_json_object(folder / _CONFIG), str(folder / _CONFIG))
    config = model.config
    for name, mine, wanted in (
        ("hidden_size", fields.size("hidden_size"), config.hidden_size),
        ("vocab_size", fields.size("vocab_size"), config.vocab_size),
    ):
        if mine != wanted:
            raise ConfigError(
                f"{folder}: {name}: expected {wanted}, the model's, got {mine}; take the layer "
                "that was trained with this model"
            )
    ahead = nextn_config(config, str(folder))
    tensors = DrafterTensors(folder, "a layer that predicts further ahead", _SGLANG)
    outer: dict[Role, Any] = {x: model.outer[x] for x in _OUTER if x in model.outer}
    layers: list[dict[Role, Any]] = [{} for _ in range(ahead.num_layers)]
    # Pairs that turn together are half a head apart in a Llama's folder, side by side in its GGUF.
    raw = {name: x for name, x in fields.raw.items() if name != "layer_types"}  # of all layers
    said = parse_config(raw, fields.source).rotary.style
    for spec in _specs(ahead):
        array = tensors.floats(spec.name, spec.shape)
        if spec.role in (Role.Q, Role.K) and said != ahead.rotary.style:
            array = paired(array, ahead.head_dim, ahead.rotary.style)
        array = array.reshape(lane_shape(ahead, spec.role, layer=spec.layer))
        (outer if spec.layer is None else layers[spec.layer])[spec.role] = array
    tensors.refuse_others(_UNREAD)
    coded = {place: x for place, x in model.quantized.items() if place[0] in _OUTER}
    return Weights(config=ahead, outer=outer, layers=tuple(layers), quantized=coded)


def nextn_config(config: ModelConfig, source: str) -> ModelConfig:
    """Return the config of such a layer of a model; ConfigError where none is read from folders."""
    if config.num_lanes > 1 or config.experts is not None or config.latent is not None:
        raise ConfigError(
            f"{source}: expected a model of one lane without experts and latents, got "
            f"{config.num_lanes} lanes of a {config.family} model; 'monolane tune heads' takes "
            "others, and 'mtp' drafts with a layer that is in the model's own folder"
        )
    return layer_ahead(config)


def check_nextn(config: ModelConfig, source: str) -> None:
    """ConfigError for a model of which no such layer is trained: its arithmetic is a Llama's."""
    nextn_config(config, source)
    if config.features:
        raise ConfigError(
            f"{source}: expected a model that computes what Llama does, got one with "
            f"{', '.join(config.features)}; 'monolane tune heads' takes others"
        )


def paired(rows: npt.NDArray[Any], head: int, style: PairStyle) -> npt.NDArray[Any]:
    """Return the rows [heads x h, D] of Q or K, which had the other style, in this one."""
    pairs = (-1, 2, head // 2) if style == "interleaved" else (-1, head // 2, 2)
    found: npt.NDArray[Any] = rows.reshape(*pairs, rows.shape[-1]).swapaxes(1, 2)
    return np.ascontiguousarray(found).reshape(rows.shape)


def write_nextn(folder: Path, config: ModelConfig, arrays: Arrays) -> None:
    """Write such a layer of a model, by roles, in bfloat16.

    ``arrays``: those of its beginning, of the layer, and the last norm; of Q and K with pairs half
    a head apart.
    """
    config = replace(config, rotary=replace(config.rotary, style="half"))
    ahead = nextn_config(config, str(folder))
    said = render_config(replace(config, layers=config.layers[-1:])) | {
        "architectures": [_ARCHITECTURE],
        "num_hidden_layers": 1,
        "num_nextn_predict_layers": 1,
        "torch_dtype": "bfloat16",
    }
    (folder / _CONFIG).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    written = [
        (spec.name, np.asarray(arrays[spec.role]).reshape(spec.shape).astype(ml_dtypes.bfloat16))
        for spec in _specs(ahead)
    ]
    write_safetensors(folder / _WEIGHTS, written)


def _specs(ahead: ModelConfig) -> list[TensorSpec]:
    """Return the tensors of a folder; a role is in one layer alone."""
    family = find_family(ahead)
    names = DEEPSEEK_AHEAD.names(0, family.names(ahead))
    listed = list_specs(ahead, names, family.shared(ahead), halves=family.halves)
    return [spec for spec in listed if spec.role not in _OUTER]
