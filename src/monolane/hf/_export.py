"""Export of a model folder to a complete Hub folder, which loads without monolane installed.

The folder carries its own modeling code (``trust_remote_code=True`` runs it), so the two files are
copied as they are. torch is not needed here: weights go from mapped file to file.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from monolane.errors import ModelNotFoundError
from monolane.hf._card import model_card
from monolane.hf._text_files import write_settings
from monolane.model import (
    Checkpoint,
    ModelConfig,
    check_replaceable,
    copy_beside,
    folder_aside,
    open_laneformer,
    render_config,
    rounded,
    tensor_specs,
    write_checkpoint,
)

CODE_FILES = ("configuration_laneformer.py", "modeling_laneformer.py")
AUTO_MAP = {
    "AutoConfig": "configuration_laneformer.LaneformerConfig",
    "AutoModel": "modeling_laneformer.LaneformerModel",
    "AutoModelForCausalLM": "modeling_laneformer.LaneformerForCausalLM",
}
EMBEDDING = "model.tok_embeddings.weight"
# Readers load a shard at a time: 5 GB is the Hub's own default.
MAX_SHARD_BYTES = 5_000_000_000


def export_hub_layout(
    source: Path, destination: Path, *, dtype: str | None = None, overwrite: bool = False
) -> Path:
    """Write the model in ``source`` as a complete Hub folder; return ``destination``.

    ``dtype`` converts the weights to bfloat16, float16 or float32. An existing folder is refused;
    with ``overwrite`` it is replaced, if it is a model folder. Nothing is left behind on failure.
    """
    source, destination = Path(source), Path(destination)
    if not source.is_dir():
        raise ModelNotFoundError(f"{source}: expected a model folder, got nothing there")
    config, checkpoint = open_laneformer(
        source, "export", "such a folder is in Hub layout as it is"
    )
    # The weights know their dtype better than the source's own field does; ConfigError if unknown.
    config = replace(config, dtype=cast("Any", dtype or checkpoint[EMBEDDING].dtype.name))
    check_replaceable(source, destination, overwrite)
    with folder_aside(destination) as folder:
        _write_json(folder / "config.json", render_config(config) | {"auto_map": AUTO_MAP})
        tensors = _tensors(config, checkpoint, convert=dtype is not None)
        write_checkpoint(folder, tensors, MAX_SHARD_BYTES)
        copy_beside(source, folder)
        write_settings(source, folder, config)
        _copy_or_write(source, folder, "generation_config.json", _generation_config(config))
        _copy_or_write(source, folder, "README.md", model_card(config, destination.name))
        for name in CODE_FILES:
            shutil.copyfile(Path(__file__).with_name(name), folder / name)
    return destination


def _tensors(
    config: ModelConfig, checkpoint: Checkpoint, convert: bool
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """The weights by name, views of the source's mapping unless they are converted."""
    for spec in tensor_specs(config):
        array = checkpoint[spec.name]
        yield spec.name, rounded(spec.name, array, config.dtype) if convert else array


def _generation_config(config: ModelConfig) -> str:
    ids: dict[str, Any] = {
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids) or None,
        "pad_token_id": config.pad_id,
    }
    return _json({name: value for name, value in ids.items() if value is not None})


def _copy_or_write(source: Path, folder: Path, name: str, text: str) -> None:
    copy_beside(source, folder, (name,))
    if not (folder / name).is_file():
        (folder / name).write_text(text, encoding="utf-8")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(_json(content), encoding="utf-8")


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"
