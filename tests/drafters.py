"""What tests of drafters have in common: their folders, and how their products round."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def save_drafter(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, Any],
    leave_out: tuple[str, ...],
    changed: dict[str, Any],
) -> Path:
    """Write a drafter; what is changed is a field of its config, or a tensor."""
    folder.mkdir(exist_ok=True)
    fields = {name: x for name, x in changed.items() if name not in tensors}
    tensors = tensors | {name: x for name, x in changed.items() if name in tensors}
    save_file = pytest.importorskip("safetensors.numpy").save_file
    kept = {k: np.ascontiguousarray(x) for k, x in tensors.items() if k not in leave_out}
    save_file(kept, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder


def _codes(x: Any, scale_dtype: Any) -> Any:
    """Numbers as int8 codes mean them: groups of 32 columns with a scale each."""
    groups = x.reshape(*x.shape[:-1], -1, 32)
    most = np.abs(groups).max(axis=-1, keepdims=True)
    scale = (most / np.float32(127)).astype(scale_dtype).astype(np.float32)
    safe = np.where(scale == 0, np.float32(1), scale)
    return (np.rint(groups / safe) * scale).astype(np.float32).reshape(x.shape)


# What int8 products make of matrices and of rows.
ROUNDED: tuple[Callable[[Any], Any], Callable[[Any], Any]] = (
    lambda x: _codes(x, np.float16),
    lambda x: _codes(x, np.float32),
)
