"""Adapters are read as PEFT has them, or refused by the field or tensor that is in the way."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monolane.errors import CheckpointError, ConfigError
from monolane.model import (
    Adapter,
    Role,
    SafetensorsFile,
    parse_config,
    read_config,
    tensor_specs,
    write_checkpoint,
    write_safetensors,
)
from tests.peft_folders import write_adapter

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 20,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
MIXTURE = LLAMA | {
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "head_dim": 4,
}


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    specs = tensor_specs(parse_config(config))
    write_checkpoint(folder, [(x.name, np.zeros(x.shape, np.float32)) for x in specs])
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", LLAMA)


def open_adapter(model: Path, folder: Path) -> Adapter:
    return Adapter.open(folder, read_config(model))


def rewrite(folder: Path, **tensors: np.ndarray[Any, Any] | None) -> None:
    """Write the tensors anew: those of layer 0's q_proj by which they are, A or B."""
    path = folder / "adapter_model.safetensors"
    found = {name: np.array(array) for name, array in SafetensorsFile(path).items()}
    for which, array in tensors.items():
        name = f"base_model.model.model.layers.0.self_attn.q_proj.lora_{which}.weight"
        if array is None:
            del found[name]
        else:
            found[name] = array
    write_safetensors(path, [*found.items()])


def test_ranks_and_alphas_of_single_matrices(model: Path, tmp_path: Path) -> None:
    ranks = {"q_proj": 3, r"^model\.layers\.1\.mlp\.up_proj$": 5}
    folder = write_adapter(
        tmp_path / "a", model, 0, ("q_proj", "up_proj"), {"q_proj": 3}, alpha_pattern={"up_proj": 2}
    )
    config = json.loads((folder / "adapter_config.json").read_text())
    for root in (False, True):
        whole = config | {"use_rslora": root}
        (folder / "adapter_config.json").write_text(json.dumps(whole))
        found = open_adapter(model, folder)
        assert {part.down.shape[1] for part in found.of_layer(0).values()} == {3, 4}
        stored = SafetensorsFile(folder / "adapter_model.safetensors")
        for role, module, alpha, rank in (
            (Role.Q, "self_attn.q_proj", 6, 3),
            (Role.UP, "mlp.up_proj", 2, 4),
        ):
            name = f"base_model.model.model.layers.1.{module}.lora_"
            part = found.parts[role, 1]
            scale = np.float32(alpha / (rank**0.5 if root else rank))
            assert np.array_equal(part.down[0], stored[f"{name}A.weight"])
            assert np.array_equal(part.up[0], stored[f"{name}B.weight"] * scale)
    config["rank_pattern"] = ranks
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.lora_A.*\[5, 16\]"):
        open_adapter(model, folder)


def test_a_digest_is_of_the_content(model: Path, tmp_path: Path) -> None:
    folders = [write_adapter(tmp_path / str(i), model, i % 2) for i in range(3)]
    first, second, same = (open_adapter(model, folder).digest() for folder in folders)
    assert first == same
    assert first != second
    write_adapter(tmp_path / "0", model, 0, lora_alpha=7)
    assert open_adapter(model, folders[0]).digest() != first


def test_what_peft_writes_by_default_is_read(model: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    said = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj"]).to_dict()
    fields = {name: x for name, x in said.items() if name not in ("r", "lora_alpha")}
    plain = json.loads(json.dumps(fields, default=lambda x: getattr(x, "value", None) or list(x)))
    folder = write_adapter(tmp_path / "a", model, 0, ("q_proj",), **plain)
    assert len(open_adapter(model, folder).parts) == 2


def test_a_regular_expression_names_what_the_tensors_are_of(model: Path, tmp_path: Path) -> None:
    said = r"(.*)+\.(q_proj|v_proj)"  # of which nobody asks whether it matches
    folder = write_adapter(tmp_path / "a", model, 0, ("q_proj",), target_modules=said)
    assert set(open_adapter(model, folder).parts) == {(Role.Q, 0), (Role.Q, 1)}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_widened(dtype: Any, model: Path, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", model, 0)
    half = np.ones((4, 16), dtype) / dtype(3)
    rewrite(folder, A=half)
    down = open_adapter(model, folder).parts[Role.Q, 0].down
    assert down.dtype == np.float32
    assert np.array_equal(down[0], half.astype(np.float32))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"use_dora": True}, "use_dora: expected False, or none, got True: DoRA also scales"),
        ({"bias": "all"}, "bias: expected 'none', or none, got 'all'"),
        ({"lora_bias": True}, "lora_bias: expected False"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save: expected \[\], or none, got"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out: expected False"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: expected True or False or 'gaussian'"),
        ({"layer_replication": [[0, 2]]}, "layer_replication: expected"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices: expected"),
        ({"use_qalora": True}, "use_qalora: expected null, or a field that is known, got True"),
        ({"peft_type": "LOHA"}, "peft_type: expected one of 'LORA', got 'LOHA'"),
        ({"r": 0}, "r: expected an integer from 1"),
        ({"lora_alpha": "6"}, "lora_alpha: expected a number above zero"),
        ({"use_rslora": 1}, "use_rslora: expected true or false"),
        ({"rank_pattern": {"(a|b)*": 3}}, r"rank_pattern: expected names of modules, .* got '\(a"),
        ({"alpha_pattern": {"q_proj": -1}}, "alpha_pattern: q_proj: expected a number above zero"),
    ],
)
def test_fields_that_cannot_be_honoured(
    fields: dict[str, Any], expected: str, model: Path, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "a", model, 0)
    config = json.loads((folder / "adapter_config.json").read_text()) | fields
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=rf"adapter_config\.json: {expected}"):
        open_adapter(model, folder)


@pytest.mark.parametrize(
    ("config", "module", "shape"),
    [
        (LLAMA, "lm_head", (20, 16)),
        (LLAMA, "model.embed_tokens", (20, 16)),
        (LLAMA, "model.layers.0.self_attn.qkv_proj", (32, 16)),
        (MIXTURE, "model.layers.0.mlp.experts.1.up_proj", (8, 16)),
        (MIXTURE, "model.layers.0.mlp.gate", (4, 16)),
    ],
)
def test_matrices_that_adapters_do_not_reach(
    config: dict[str, Any], module: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", config)
    folder = write_adapter(tmp_path / "a", model, 0, ("q_proj",))
    path = folder / "adapter_model.safetensors"
    found = dict(SafetensorsFile(path))
    name = f"base_model.model.{module}.lora_A.weight"
    write_safetensors(path, [*found.items(), (name, np.zeros((4, shape[1]), np.float32))])
    expected = (
        rf"'{name}': expected A or B of q, k, v, o, gate, up and down of attention and dense MLPs, "
        r"such as 'base_model\.model\.model\.layers\.0\.self_attn\.q_proj\.lora_A\.weight', got"
    )
    with pytest.raises(CheckpointError, match=expected):
        open_adapter(model, folder)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({"A": None}, "expected A and B, got no A"),
        ({"A": np.zeros((4, 17), np.float32)}, r"expected .* \[4, 16\], .*got float32 \[4, 17\]"),
        ({"B": np.zeros((16, 5), np.float32)}, r"expected .* \[16, 4\], .*got float32 \[16, 5\]"),
        ({"A": np.zeros((4, 16), np.int32)}, r"got int32 \[4, 16\]"),
        ({"B": np.full((16, 4), np.inf, np.float32)}, "expected finite numbers, got others"),
    ],
)
def test_tensors_that_are_not_the_model_s(
    tensors: dict[str, Any], expected: str, model: Path, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "a", model, 0)
    rewrite(folder, **tensors)
    with pytest.raises(CheckpointError, match=expected):
        open_adapter(model, folder)


def test_a_listed_module_without_tensors_is_missed(model: Path, tmp_path: Path) -> None:
    folder = write_adapter(
        tmp_path / "a", model, 0, ("q_proj",), target_modules=["q_proj", "o_proj"]
    )
    with pytest.raises(CheckpointError, match=r"A and B of 'model\.layers\.0\.self_attn\.o_proj'"):
        open_adapter(model, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    for more in ({"layers_to_transform": [1]}, {"exclude_modules": "o_proj"}):
        (folder / "adapter_config.json").write_text(json.dumps(config | more))
        assert len(open_adapter(model, folder).parts) == 2


def test_folders_that_hold_none(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which holds a model; name it with --model"):
        open_adapter(model, model)
    with pytest.raises(ConfigError, match="which is no folder"):
        open_adapter(model, tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="adapters in GGUF are not read: take the PEFT folder"):
        open_adapter(model, tmp_path / "adapter.gguf")
    folder = write_adapter(tmp_path / "a", model, 0, ())
    with pytest.raises(CheckpointError, match="expected A and B of some matrices, got no tensor"):
        open_adapter(model, folder)
