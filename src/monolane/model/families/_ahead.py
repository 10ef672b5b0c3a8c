"""Layers that predict further ahead (nextn, MTP), which some models come with, as small models.

The files of such a model have one more layer behind its last, as one of the model's own, and what
brings it a token's embedding and the state of the token before (ops/ahead/spec.py). Embedding and
head are the model's. What is read here is the config and the names of that layer, as of a small
model that drafts for the other. Of several such layers it is the first, which is used again for the
tokens behind.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from monolane.model._config import ModelConfig
from monolane.model._layer_config import LayerConfig, ModuleConfig
from monolane.model._reduce import NOW
from monolane.ops import Role
from monolane.ops.ahead.spec import Ahead

_LAYER = re.compile(r"^.*?(layers|blk)\.\{i\}\.")


@dataclass(frozen=True, slots=True)
class AheadSpelling:
    """How files name what is not in the model itself; ``{n}`` is the number of its layers."""

    layer: str  # what names in the layer begin with
    token_norm: str
    state_norm: str
    joined: str
    final_norm: str  # where a file has none it is the model's

    def names(self, count: int, model: Mapping[Role, str]) -> dict[Role, str]:
        """Return the tensors' names, of those of a model with so many layers."""
        own = {
            Role.AHEAD_TOKEN_NORM: self.token_norm,
            Role.AHEAD_STATE_NORM: self.state_norm,
            Role.AHEAD_IN: self.joined,
            Role.FINAL_NORM: self.final_norm,
        }
        own = {role: name.format(n=count) for role, name in own.items()}
        return {role: self.placed(count, name) for role, name in model.items()} | own

    def placed(self, count: int, name: str) -> str:
        """Return a name of the layer's, of that of a tensor in a layer of the model."""
        return _LAYER.sub(self.layer.format(n=count), name)


DEEPSEEK_AHEAD = AheadSpelling(
    layer="model.layers.{n}.",
    token_norm="model.layers.{n}.enorm.weight",
    state_norm="model.layers.{n}.hnorm.weight",
    joined="model.layers.{n}.eh_proj.weight",
    final_norm="model.layers.{n}.shared_head.norm.weight",
)
QWEN_AHEAD = AheadSpelling(
    layer="mtp.layers.0.",
    token_norm="mtp.pre_fc_norm_embedding.weight",
    state_norm="mtp.pre_fc_norm_hidden.weight",
    joined="mtp.fc.weight",
    final_norm="mtp.norm.weight",
)
GGUF_AHEAD = AheadSpelling(
    layer="blk.{n}.",
    token_norm="blk.{n}.nextn.enorm.weight",
    state_norm="blk.{n}.nextn.hnorm.weight",
    joined="blk.{n}.nextn.eh_proj.weight",
    final_norm="blk.{n}.nextn.shared_head_norm.weight",
)


def ahead_of(
    config: ModelConfig, spelling: AheadSpelling | None, stored: Container[str]
) -> ModelConfig | None:
    """Return the config of the layer that predicts further ahead of a model; None if it has none.

    ``stored``: the names of the model's tensors, which alone tell whether it is there.
    """
    if spelling is None or spelling.token_norm.format(n=config.num_layers) not in stored:
        return None
    return layer_ahead(config)


def layer_ahead(config: ModelConfig) -> ModelConfig:
    """Return the config of a layer that predicts further ahead of a model."""
    # It attends, as the model's layers without a state, and is a mixture where the model has any.
    like = next(x for x in reversed(config.layers) if not x.delta)
    begin = ModuleConfig(Ahead(width=config.hidden_size), False, False, replaces=True)
    layer = replace(like, experts=config.experts is not None)
    layers = (LayerConfig(NOW, NOW, modules=(begin,)), layer)
    return replace(config, layers=layers, delta=None, behind=config.num_layers)
