"""The trained model as a folder in Hub layout: BF16 weights, config, tokenizer, licence.

``config.json`` is written from the recipe, not by transformers: its spelling of the fields changes
between versions, and this folder ships.
"""

import json
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from monolane.data import write_vocabulary
from monolane.train._demo.material import BOS, EOS
from monolane.train._demo.recipe import DemoRecipe

WEIGHTS, VOCABULARY = "model.safetensors", "tokenizer.json"


def write_model(
    weights: dict[str, torch.Tensor], recipe: DemoRecipe, tokenizer: Tokenizer, folder: Path
) -> None:
    """Write everything but the card."""
    folder.mkdir(parents=True, exist_ok=True)
    rounded = {name: weight.bfloat16().contiguous() for name, weight in weights.items()}
    save_file(rounded, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # written for the owner alone; it is to be shared
    config = {
        "architectures": ["LaneformerForCausalLM"],
        "model_type": "laneformer",
        **recipe.config_fields(),
        "torch_dtype": "bfloat16",
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": EOS})
    write_vocabulary(tokenizer, folder, recipe.context)
    _copy_licence(folder)


def _copy_licence(folder: Path) -> None:
    """Copy Python's licence, which its terms want kept with derivatives; some builds lack it."""
    licence = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    if licence.is_file():
        shutil.copyfile(licence, folder / "LICENSE")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
