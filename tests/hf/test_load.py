"""A model is loaded whole or not at all: no weight is random, no tensor is left out."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from monolane.errors import CheckpointError, ConfigError
from monolane.hf import LaneformerForCausalLM, export_hub_layout, load_whole
from monolane.model import open_laneformer

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
# Where the call may stand: the check itself, two texts for users, and an adapter that is checked.
HOMES = ("hf/_load.py", "hf/_card.py", "text/_tokenizer.py", "tune/_lora.py")
Edit = Callable[[dict[str, torch.Tensor]], Any]
HEAD = "lm_head.weight"  # of both families
EDITS: dict[str, tuple[Edit, str]] = {
    "missing": (lambda tensors: tensors.pop(HEAD), f"missing: '{HEAD}'"),
    "surplus": (
        lambda tensors: tensors.update({f"x.{i}": torch.ones(1) for i in range(5)}),
        "not the model's: 'x.0', 'x.1', 'x.2' and 2 more",
    ),
}


def edited(source: Path, folder: Path, edit: Edit) -> Path:
    """Copy a folder and change its tensors."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A random Llama whose sizes are a Laneformer's, too."""
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=64,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_a_whole_model_is_loaded(llama: Path) -> None:
    stored = load_file(llama / "model.safetensors")
    loaded = load_whole(AutoModelForCausalLM, llama, dtype=torch.float32)
    assert all(torch.equal(loaded.state_dict()[name], stored[name]) for name in stored)


@pytest.mark.parametrize("case", EDITS)
def test_a_missing_or_a_surplus_tensor_is_an_error(case: str, llama: Path, tmp_path: Path) -> None:
    edit, message = EDITS[case]
    folder = edited(llama, tmp_path / case, edit)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_whole(AutoModelForCausalLM, folder, dtype=torch.float32)


def test_another_shape_is_an_error(llama: Path, tmp_path: Path) -> None:
    folder = edited(
        llama, tmp_path / "other", lambda tensors: tensors.update({HEAD: torch.ones(1)})
    )
    with pytest.raises(CheckpointError, match=f"shapes that config.json says, .*'{HEAD}'; fetch"):
        load_whole(AutoModelForCausalLM, folder, dtype=torch.float32)


@pytest.mark.filterwarnings("ignore:You are using a model of type")
def test_a_llama_gives_a_laneformer_no_random_weights(llama: Path) -> None:
    with pytest.raises(CheckpointError, match=r"missing: .* more; not the model's: .* more; fetch"):
        load_whole(LaneformerForCausalLM, llama, dtype=torch.float32)


@pytest.mark.parametrize("case", EDITS)
def test_a_laneformers_folder_is_held_against_its_config(case: str, tmp_path: Path) -> None:
    source = export_hub_layout(GOLDEN / "early_comm", tmp_path / "whole")
    config, checkpoint = open_laneformer(source, "tune")
    assert (config.family, HEAD in checkpoint) == ("laneformer", True)
    folder = edited(source, tmp_path / case, EDITS[case][0])
    with pytest.raises(
        CheckpointError, match=f"{case}.*{'lm_head' if case == 'missing' else 'x.0'}"
    ):
        open_laneformer(folder, "tune")
    with pytest.raises(CheckpointError):
        load_whole(LaneformerForCausalLM, folder, dtype=torch.float32)


def test_what_is_no_laneformer_is_refused_with_what_to_do(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Laneformer to tune, got .* 'llama'; 'monolane retrof"):
        open_laneformer(llama, "tune")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"Laneformer to tune, got a .gguf file; 'monolane ret"):
        open_laneformer(tmp_path / "x.gguf", "tune")


def test_nothing_loads_a_model_past_the_check() -> None:
    folders = (ROOT / "src", ROOT / "examples", ROOT / "bench", ROOT / "studies")
    files = [path for folder in folders for path in folder.rglob("*.py")]
    calls = {path for path in files if re.search(r"\.from_pretrained\(", path.read_text("utf-8"))}
    assert {str(path.relative_to(ROOT / "src" / "monolane")) for path in calls} == set(HOMES)
