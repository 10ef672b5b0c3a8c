"""What a model is: its config, the names and shapes of its tensors, and its files.

A leaf room: it imports no other. Executors read ``ModelConfig`` and ``Weights`` and need to know
nothing of families, config.json or safetensors.
"""

from monolane.model._checkpoint import Checkpoint, write_checkpoint
from monolane.model._config import Head, LayerConfig, ModelConfig
from monolane.model._families import (
    parse_config,
    read_config,
    read_json_object,
    render_config,
    tensor_specs,
)
from monolane.model._reduce import NEVER, NOW, Reduce
from monolane.model._rotary import Rotary, RotaryScaling
from monolane.model._safetensors import SafetensorsFile, write_safetensors
from monolane.model._tensors import Role, TensorSpec, lane_shape, layer_roles
from monolane.model._weights import Weights

__all__ = [
    "NEVER",
    "NOW",
    "Checkpoint",
    "Head",
    "LayerConfig",
    "ModelConfig",
    "Reduce",
    "Role",
    "Rotary",
    "RotaryScaling",
    "SafetensorsFile",
    "TensorSpec",
    "Weights",
    "lane_shape",
    "layer_roles",
    "parse_config",
    "read_config",
    "read_json_object",
    "render_config",
    "tensor_specs",
    "write_checkpoint",
    "write_safetensors",
]
