"""Folders of small random models, of which a test says the config alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.model import parse_config, tensor_specs, write_checkpoint


def write_random_model(
    folder: Path,
    config: dict[str, Any],
    *,
    scale: float = 0.3,
    dtype: npt.DTypeLike = np.float32,
    change: Callable[[str, Any], Any] = lambda name, x: x,
) -> Path:
    """Write a model of this config.json: numbers of this deviation, the same in every run.

    ``change`` gets each tensor's name and values, and returns what is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    tensors = [
        (x.name, change(x.name, rng.normal(scale=scale, size=x.shape).astype(dtype)))
        for x in tensor_specs(parse_config(config))
    ]
    write_checkpoint(folder, tensors)
    return folder
