"""Which module reads and writes a model_type: the one place where families are listed."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from monolane.errors import ConfigError, ModelNotFoundError
from monolane.model import _laneformer
from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model._quantization import parse_quantization, render_quantization
from monolane.model._tensors import TensorSpec, quantized_specs

# A family is a module with MODEL_TYPES, parse(raw, source), render(config) and tensors(config).
_FAMILIES: dict[str, ModuleType] = {"laneformer": _laneformer}
_BY_MODEL_TYPE = {kind: module for module in _FAMILIES.values() for kind in module.MODEL_TYPES}

# The largest published config.json has some tens of kilobytes.
MAX_CONFIG_BYTES = 1 << 20


def parse_config(raw: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """Read the object of a config.json; ConfigError says which field is missing or wrong."""
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in _BY_MODEL_TYPE:
        known = ", ".join(map(repr, _BY_MODEL_TYPE))
        raise ConfigError(f"{source}: model_type: expected one of {known}, got {kind!r}")
    try:
        config: ModelConfig = _BY_MODEL_TYPE[kind].parse(raw, source)
        if (quantization := parse_quantization(Fields(raw, source))) is not None:
            config = replace(config, quantization=quantization)
    except ConfigError as error:
        if str(error).startswith(source):
            raise
        raise ConfigError(f"{source}: {error}") from None
    return config


def read_config(folder: Path) -> ModelConfig:
    """Read ``folder``/config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelNotFoundError(f"{folder}: expected a model folder with a config.json in it")
    return parse_config(read_json_object(path), str(path))


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a small JSON file that must hold an object; ConfigError names the file."""
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: expected at most {MAX_CONFIG_BYTES} bytes of JSON")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also bad UTF-8
        raise ConfigError(f"{path}: expected JSON in UTF-8, got: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(raw).__name__}")
    return raw


def render_config(config: ModelConfig, **options: Any) -> dict[str, Any]:
    """Write a config as the object of a config.json, in its family's spelling."""
    raw: dict[str, Any] = _FAMILIES[config.family].render(config, **options)
    if config.quantization is not None:
        raw["quantization_config"] = render_quantization(config.quantization)
    return raw


def tensor_specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return every tensor that a checkpoint of this config holds."""
    specs: tuple[TensorSpec, ...] = _FAMILIES[config.family].tensors(config)
    return specs if config.quantization is None else quantized_specs(config, specs)
