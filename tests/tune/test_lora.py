"""LoRA on lane-stacked weights: low rank per lane, PEFT's files, and a merge defined in bits."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from monolane import Engine
from monolane.errors import CheckpointError
from monolane.hf import LaneformerForCausalLM
from monolane.model import Checkpoint, read_config
from monolane.tune import LoraRecipe, SftRecipe, add_lora, merge_adapter, tune_folder

from .conftest import CHATS, write_chats

pytest.importorskip("accelerate", reason="needs the extra 'sft'")
peft = pytest.importorskip("peft", reason="needs the extra 'sft'")

RANK = 2
RECIPE = SftRecipe(
    steps=8, rows_per_step=2, context=96, peak_lr=2e-2, lora=LoraRecipe(rank=RANK, alpha=4.0)
)


def load(folder: Path) -> LaneformerForCausalLM:
    return LaneformerForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_only_the_adapters_train(chat_model: Path) -> None:
    model = load(chat_model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adapted = add_lora(model, LoraRecipe(rank=RANK, matrices=("wq", "w2")))
    trainable = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert len(trainable) == 4 * 2 * 2  # layers, matrices, A and B
    shapes = {
        n.split(".layers.0.")[1]: p.shape
        for n, p in adapted.named_parameters()
        if ".0." in n and "lora_" in n
    }
    # Per lane [rank, in] and [out, rank], as of any matrix [out, in]; the lanes lie side by side.
    assert shapes["attention.wq.lora_A.default.weight"] == (2 * RANK, 32)
    assert shapes["attention.wq.lora_B.default.weight"] == (16, 2 * RANK)
    assert shapes["feed_forward.w2.lora_A.default.weight"] == (2 * RANK, 32)
    assert shapes["feed_forward.w2.lora_B.default.weight"] == (32, 2 * RANK)
    assert all("lora_" in name for name in trainable)
    ids = torch.randint(0, 320, (1, 12))
    with torch.no_grad():
        started = adapted(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(started, load(chat_model)(ids).logits, atol=0, rtol=0)
    adapted(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    after = {n.replace("base_layer.", ""): v for n, v in model.state_dict().items()}
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_merge_is_base_plus_update_rounded_once(chat_model: Path, tmp_path: Path) -> None:
    data = write_chats(tmp_path / "chats.jsonl", CHATS)
    tuned = tune_folder(chat_model, data, tmp_path / "out", RECIPE)
    assert tuned.adapter is not None
    assert {p.name for p in tuned.adapter.iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    before, after = Checkpoint.open(chat_model), Checkpoint.open(tmp_path / "out")
    merged = merge_adapter(load(chat_model), tuned.adapter).state_dict()
    changed = 0
    for name in before:
        assert np.array_equal(after[name], merged[name].numpy()), name
        update = after[name].astype(np.float64) - before[name]
        if not update.any():
            continue
        changed += 1
        assert update.ndim == 3
        for lane in update:  # of rank 2, but for the rounding of the sum
            values = np.linalg.svd(lane, compute_uv=False)
            assert values[0] > 1e-4
            assert values[RANK] < 1e-3 * values[0] + 1e-6
    assert changed == 4 * 7


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # PEFT's own
def test_the_adapter_says_what_the_merged_folder_says(chat_model: Path, tmp_path: Path) -> None:
    data = write_chats(tmp_path / "chats.jsonl", CHATS)
    tuned = tune_folder(chat_model, data, tmp_path / "out", RECIPE)
    adapted = peft.PeftModel.from_pretrained(load(chat_model), tuned.adapter).eval()
    ids = torch.randint(0, 320, (1, 20))
    with torch.no_grad():
        found = adapted(input_ids=ids, use_cache=False).logits
        wanted = load(tmp_path / "out")(ids).logits
        plain = load(chat_model)(ids).logits
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)  # the same float32 weights
    assert (plain - wanted).abs().max() > 0.1


def test_a_bfloat16_folder_is_merged_in_float32(chat_model: Path, tmp_path: Path) -> None:
    from monolane.hf import export_hub_layout

    half = export_hub_layout(chat_model, tmp_path / "half", dtype="bfloat16")
    data = write_chats(tmp_path / "chats.jsonl", CHATS)
    tuned = tune_folder(half, data, tmp_path / "out", dataclasses.replace(RECIPE, steps=4))
    assert tuned.adapter is not None
    assert read_config(tmp_path / "out").dtype == "bfloat16"
    after = Checkpoint.open(tmp_path / "out")
    merged = merge_adapter(load(half), tuned.adapter).state_dict()
    for name in after:
        rounded = merged[name].bfloat16().view(torch.uint16).numpy()
        assert np.array_equal(after[name].view(np.uint16), rounded), name


def test_an_adapter_that_is_no_safetensors_file_is_not_looked_for_elsewhere(
    chat_model: Path, tmp_path: Path
) -> None:
    """PEFT would unpickle adapter_model.bin, and ask the Hub for a folder that is not there."""
    add_lora(load(chat_model), RECIPE.lora or LoraRecipe()).save_pretrained(tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    torch.save(load_file(path), path.with_suffix(".bin"))
    path.unlink()
    for folder in (tmp_path / "adapter", tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors: cannot be read"):
            merge_adapter(load(chat_model), folder)


@pytest.mark.parametrize("config", ["", "[]", '{"peft_type": "\x1b"}', '{"r": 1e400}'])
def test_an_adapters_config_that_is_none_is_told(
    chat_model: Path, tmp_path: Path, config: str
) -> None:
    add_lora(load(chat_model), RECIPE.lora or LoraRecipe()).save_pretrained(tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_config.json").write_text(config)
    with pytest.raises(CheckpointError, match="adapter"):
        merge_adapter(load(chat_model), tmp_path / "adapter")


@pytest.mark.parametrize("change", ["missing", "surplus"])
def test_an_adapter_is_merged_whole_or_not_at_all(
    change: str, chat_model: Path, tmp_path: Path
) -> None:
    add_lora(load(chat_model), RECIPE.lora or LoraRecipe()).save_pretrained(tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(iter(tensors))
    if change == "missing":
        del tensors[name]
    else:
        tensors[name.replace(".0.", ".9.")] = tensors[name].clone()
    save_file(tensors, path, metadata={"format": "pt"})
    said = {"missing": "missing: ", "surplus": "not the model's: "}[change]
    with pytest.raises(CheckpointError, match=said):
        merge_adapter(load(chat_model), tmp_path / "adapter")


def test_the_adapter_serves_without_a_merge(chat_model: Path, tmp_path: Path) -> None:
    """What ``monolane sft --lora`` leaves beside the merged folder, at run time."""
    data = write_chats(tmp_path / "chats.jsonl", CHATS)
    tuned = tune_folder(chat_model, data, tmp_path / "out", RECIPE)
    ids = torch.randint(0, 320, (20,)).tolist()
    for backend in ("cpu", "reference"):
        with Engine.load(tmp_path / "out", backend) as engine:
            wanted = engine.logits(ids)
        with Engine.load(chat_model, backend, lora=tuned.adapter) as engine:
            found = engine.logits(ids)
        with Engine.load(chat_model, backend) as engine:
            plain = engine.logits(ids)
        assert np.abs(found - wanted).max() < 1e-4
        assert np.abs(plain - wanted).max() > 0.1
