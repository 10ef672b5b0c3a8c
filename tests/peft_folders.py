"""LoRA adapters in PEFT's layout, with random numbers, and models with these merged in.

The merge is PEFT's definition, W + scale * B A in float32, worked out here from the files alone.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from monolane.model import Checkpoint, SafetensorsFile, write_checkpoint, write_safetensors

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LANES = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")  # as a Laneformer names them


def write_adapter(
    folder: Path,
    model: Path,
    seed: int,
    targets: Iterable[str] = ALL,
    ranks: Mapping[str, int] | None = None,
    size: float = 0.3,
    **fields: Any,
) -> Path:
    """Write an adapter of a model's folder; ``ranks``: those of single targets.

    ``fields``: of adapter_config.json.
    """
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 6,
        "target_modules": sorted(targets),
        "bias": "none",
        "rank_pattern": dict(ranks or {}),
    } | fields
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    rng, tensors = np.random.default_rng(seed), []
    checkpoint = Checkpoint.open(model)
    for name in sorted(checkpoint):
        module = name.removesuffix(".weight")
        target = module.rpartition(".")[2]
        if target not in targets:
            continue
        *lanes, rows, columns = checkpoint.shape_of(name)
        rank = (ranks or {}).get(target, config["r"]) * int(np.prod(lanes))
        for which, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            numbers = rng.normal(scale=size, size=shape).astype(np.float32)
            tensors.append((f"base_model.model.{module}.lora_{which}.weight", numbers))
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder


def merge(model: Path, adapter: Path, folder: Path) -> Path:
    """Write the model with an adapter merged in."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    parts = SafetensorsFile(adapter / "adapter_model.safetensors")
    checkpoint, tensors = Checkpoint.open(model), []
    for name in checkpoint:
        whole = np.array(checkpoint[name], np.float32)
        module = name.removesuffix(".weight")
        key = f"base_model.model.{module}.lora_"
        if f"{key}A.weight" in parts:
            target = module.rpartition(".")[2]
            rank = config["rank_pattern"].get(target, config["r"])
            alpha = config.get("alpha_pattern", {}).get(target, config["lora_alpha"])
            root = config.get("use_rslora", False)
            scale = alpha / (rank**0.5 if root else rank)
            down, up = parts[f"{key}A.weight"], parts[f"{key}B.weight"]
            if whole.ndim == 3:  # a stack of lanes, of which PEFT has the last index of B
                down = down.reshape(len(whole), rank, -1)
                up = up.reshape(up.shape[0], rank, len(whole)).transpose(2, 0, 1)
            whole += np.float32(scale) * (up.astype(np.float32) @ down.astype(np.float32))
        tensors.append((name, whole))
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    write_checkpoint(folder, tensors)
    return folder
