"""A run's checkpoint as a model folder in Hub layout: the same numbers under the same names.

Training keeps float32 weights, and so does the folder unless another dtype is asked for; with
``bfloat16`` it holds what the products of a mixed-precision run used.
"""

import json
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from monolane.errors import CheckpointError
from monolane.hf import export_hub_layout
from monolane.model import render_config, tensor_specs, write_checkpoint
from monolane.train._build import model_config
from monolane.train._checkpoints import check_checkpoint, checkpoint_folder, checkpoint_steps
from monolane.train._config import RunConfig, load_config
from monolane.train._run import CONFIG

_TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def export_run(
    run: Path,
    destination: Path,
    *,
    step: int | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a checkpoint of ``run`` as a complete Hub folder; return ``destination``.

    ``step`` picks the checkpoint, the newest if none is given. ``dtype`` is bfloat16, float16 or
    float32, in which the weights are trained. The tokenizer is that of the run's corpus, where its
    folder is still there. CheckpointError where there is no such checkpoint.
    """
    config = load_config(run / CONFIG)
    weights = read_weights(run, _pick(run, step))
    parent = destination.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    # Aside on the destination's own file system, as the weights may be large.
    with tempfile.TemporaryDirectory(dir=parent) as aside:
        source = Path(aside)
        _write_source(source, config, weights)
        return export_hub_layout(source, destination, dtype=dtype, overwrite=overwrite)


def read_weights(run: Path, step: int) -> dict[str, Tensor]:
    """Return the whole float32 weights of a checkpoint by name; needs no process group."""
    folder = checkpoint_folder(run, step)
    known = FileSystemReader(folder).read_metadata().state_dict_metadata
    weights = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in known.items()
        if name.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is meant
        load(weights, checkpoint_id=str(folder), no_dist=True)
    return {name.removeprefix("model."): value for name, value in weights.items()}


def _pick(run: Path, step: int | None) -> int:
    steps = checkpoint_steps(run)
    if not steps or (step is not None and step not in steps):
        there = f"those after {', '.join(map(str, steps))} steps" if steps else "none"
        wanted = "a whole checkpoint" if step is None else f"a checkpoint after {step} steps"
        raise CheckpointError(f"{run}: expected {wanted}, found {there}; train on, or name another")
    chosen = steps[-1] if step is None else step
    check_checkpoint(checkpoint_folder(run, chosen), "name the one before it with --step")
    return chosen


def _write_source(folder: Path, config: RunConfig, weights: dict[str, Tensor]) -> None:
    """Write the plain model folder that the export completes."""
    shape = model_config(config.model, torch_dtype="float32")
    (folder / "config.json").write_text(json.dumps(render_config(shape)), encoding="utf-8")

    def tensors() -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        for spec in tensor_specs(shape):
            yield spec.name, weights.pop(spec.name).numpy()

    write_checkpoint(folder, tensors())
    corpus = Path(config.data.corpus).expanduser()
    for name in _TEXT_FILES:
        if config.data.corpus and (corpus / name).is_file():
            (folder / name).write_bytes((corpus / name).read_bytes())
