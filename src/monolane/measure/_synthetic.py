"""Models of random weights at a published shape, to be measured where the real one is not at hand.

Speed, memory and start-up do not depend on what the weights say. Made once, in the cache folder,
and never shipped: they continue no text.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from monolane import _env
from monolane.errors import BackendError
from monolane.model import (
    NOW,
    LayerConfig,
    ModelConfig,
    Role,
    TensorSpec,
    parse_config,
    render_config,
    tensor_specs,
    write_checkpoint,
)
from monolane.plan import named_config

_VERSION = 1  # of what is written below: a new one makes new folders
_OFFSETS = 4 << 20  # places in the block where a tensor may begin
_STEP = 97  # elements between the beginnings of two rows

_TINY: dict[str, Any] = {
    "model_type": "laneformer",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "num_lanes": 8,
    "broadcast_delay": 2,
    "sliding_window": 128,
    "swa_layers": [0, 1],
    "torch_dtype": "bfloat16",
}


def _dense(config: ModelConfig) -> ModelConfig:
    """Return the ordinary model of the same sizes: one lane, no windows."""
    return replace(config, num_lanes=1, layers=(LayerConfig(NOW, NOW),) * config.num_layers)


_CONFIGS: dict[str, Callable[[], ModelConfig]] = {
    "laneformer-2b": lambda: named_config("laneformer-2b"),
    "laneformer-tiny": lambda: parse_config(_TINY),
    "dense-2b": lambda: _dense(named_config("laneformer-2b")),
}
SYNTHETIC = tuple(_CONFIGS)


def synthetic_config(name: str) -> ModelConfig:
    """Return the config of a synthetic model; its name is one of SYNTHETIC."""
    return _CONFIGS[name]()


def synthetic(name: str, tell: Callable[[str], None]) -> Path:
    """Return the folder of a synthetic model, made if it is not there.

    ``tell`` is told what will be written before it is. BackendError if the disk is too small, or
    cannot be written to.
    """
    home = _env.CACHE.get() / "synthetic"
    folder = home / f"{name}-v{_VERSION}"
    if not folder.is_dir():
        try:
            _make(folder, synthetic_config(name), tell)
        except OSError as error:
            raise BackendError(
                f"{folder}: cannot be written: {error.strerror or error}; make room or "
                "let MONOLANE_CACHE name another folder"
            ) from None
    return folder


def _make(folder: Path, config: ModelConfig, tell: Callable[[str], None]) -> None:
    home = folder.parent
    home.mkdir(parents=True, exist_ok=True)
    size = 2 * config.num_parameters
    _check_room(home, size)
    tell(
        f"writing a model of random weights, {size / 1e9:.2f} GB, to {folder}: once, and never "
        "shipped; delete the folder when you like"
    )
    aside = home / f".{folder.name}.{os.getpid()}"
    try:
        _write(aside, config)
        _move(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _check_room(home: Path, size: int) -> None:
    free = shutil.disk_usage(home).free
    if free < 2 * size:
        raise BackendError(
            f"{home}: expected {2 * size / 1e9:.1f} GB free, twice what the model takes, got "
            f"{free / 1e9:.1f} GB; make room or let MONOLANE_CACHE name another folder"
        )


def _move(aside: Path, folder: Path) -> None:
    try:
        aside.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process has made it meanwhile: the same bytes
            raise


def _write(folder: Path, config: ModelConfig) -> None:
    folder.mkdir()
    text = json.dumps(render_config(config), indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    write_checkpoint(folder, _tensors(config))


def _tensors(config: ModelConfig) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield every tensor as a view of one block: nothing of the model's size is held in memory."""
    specs = tensor_specs(config)
    longest = max(spec.size // spec.shape[-1] * _STEP + spec.shape[-1] for spec in specs)
    rng = np.random.default_rng(0)
    # As at the start of a training: sums over D inputs of size 1 have size 1, and logits too.
    block = rng.standard_normal(longest + _OFFSETS, np.float32) * config.hidden_size**-0.5
    stored = block.astype(ml_dtypes.bfloat16)
    for spec in specs:
        yield spec.name, _view(stored, spec, int(rng.integers(_OFFSETS)))


def _view(block: npt.NDArray[Any], spec: TensorSpec, offset: int) -> npt.NDArray[Any]:
    """Return a tensor whose row r is the part of the block at offset + r * _STEP; norms are 1."""
    if spec.role in (Role.ATTENTION_NORM, Role.MLP_NORM, Role.FINAL_NORM):
        return np.ones(spec.shape, block.dtype)
    columns = spec.shape[-1]
    strides = (_STEP * block.itemsize, block.itemsize)
    rows = np.lib.stride_tricks.as_strided(
        block[offset:], (spec.size // columns, columns), strides, writeable=False
    )
    return rows.reshape(spec.shape)
