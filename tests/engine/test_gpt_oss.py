"""GPT-OSS as it is published, experts in MXFP4: a folder and a .gguf file, against Transformers."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from monolane import Engine, SamplingParams
from monolane.errors import CheckpointError, ConfigError
from monolane.model import (
    EXPERT_ROLES,
    Checkpoint,
    Quantization,
    Role,
    matrix_formats,
    quantize_folder,
    read_config,
    repack_folder,
)

from .converted import metadata, tensors
from .gguf_cases import VOCAB
from .test_gguf import TOKENS, random_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EXPERTS = ("gate_up_proj", "down_proj")
CHANGES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "head_dim": 16,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_local_experts": 5,
    "num_experts_per_tok": 3,
    "sliding_window": 9,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "truncate": False,
    },
}


@dataclass(frozen=True)
class Published:
    """A model in MXFP4, and what Transformers computes of the numbers that are meant."""

    folder: Path
    file: Path
    ids: list[int]
    logits: np.ndarray[Any, Any]
    tokens: list[int]


def packed(parameter: Any) -> tuple[Any, Any]:
    """Quantise experts [E, K, R] to a folder's tensors: blocks [E, R, K/32, 16], scales."""
    rows = parameter.float().numpy().swapaxes(1, 2)
    blocks = gguf.quants.quantize(np.ascontiguousarray(rows), gguf.GGMLQuantizationType.MXFP4)
    blocks = blocks.reshape(*rows.shape[:2], -1, 17)
    codes = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)  # by column
    pairs = codes[..., ::2] | codes[..., 1::2] << 4
    return torch.from_numpy(pairs), torch.from_numpy(blocks[..., 0].copy())


@pytest.fixture(scope="module")
def published(
    tmp_path_factory: pytest.TempPathFactory, write_gguf: Callable[..., Path]
) -> Published:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    place = tmp_path_factory.mktemp("oss")
    model = random_model("GptOss", **CHANGES)
    state, stored = model.state_dict(), {}
    for name, parameter in state.items():
        if not name.endswith(EXPERTS):
            stored[name] = parameter.clone()
            continue
        scaled = parameter * 3  # gates and ups beyond the limit
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = packed(scaled)
        meant = convert_moe_packed_tensors(
            stored[f"{name}_blocks"], stored[f"{name}_scales"], dtype=torch.float32
        )
        parameter.copy_(meant)
    model.config.save_pretrained(place / "folder")
    save_file(stored, place / "folder" / "model.safetensors")
    written = json.loads((place / "folder" / "config.json").read_text())
    written["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    }
    (place / "folder" / "config.json").write_text(json.dumps(written))
    held: dict[str, Any] = tensors(model, "gpt-oss")
    for name, array in held.items():
        if name.endswith("exps.weight"):
            held[name] = ("MXFP4", gguf.quants.quantize(array, gguf.GGMLQuantizationType.MXFP4))
    file = write_gguf(place / "x.gguf", metadata(model.config, "gpt-oss"), held)
    ids = np.random.default_rng(0).integers(VOCAB, size=TOKENS)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)[None]).logits[0].numpy()
        tokens = model.generate(
            torch.from_numpy(ids[:9])[None], max_new_tokens=12, min_new_tokens=12, do_sample=False
        )[0, 9:].tolist()
    return Published(place / "folder", file, ids.tolist(), logits, tokens)


@pytest.mark.parametrize("form", ["folder", "file"])
def test_the_oracle_computes_what_transformers_does(form: str, published: Published) -> None:
    with Engine.load(getattr(published, form), "reference") as engine:
        found = engine.logits(published.ids)
        answer = engine.generate(
            published.ids[:9], SamplingParams(max_tokens=12, logit_bias={2: -np.inf})
        )
    assert published.logits.std() > 0.5
    assert np.abs(found - published.logits).max() < 1e-4 * published.logits.std()
    assert list(answer.token_ids) == published.tokens


def test_the_cpu_multiplies_by_mxfp4_as_it_is(published: Published) -> None:
    logits = {}
    for form in ("folder", "file"):
        with Engine.load(getattr(published, form), "cpu") as engine:
            logits[form] = engine.logits(published.ids)
            engine.backend.truncate(0, 0)
            by_token = [engine.backend.logits(0, [token]) for token in published.ids]
            np.testing.assert_array_equal(np.concatenate(by_token), logits[form])
    np.testing.assert_array_equal(logits["folder"], logits["file"])
    # Activations of 8 bits, as in tests/engine/test_gguf.py; a tensor in a wrong place gives all.
    error = np.abs(logits["folder"] - published.logits)
    assert 0 < error.mean() < 0.05 * published.logits.std()


def test_what_is_said_of_it(published: Published, tmp_path: Path) -> None:
    config = read_config(published.folder)
    assert config.stored_dtype == "mxfp4"
    formats = matrix_formats(config, Checkpoint.open(published.folder))
    for role in EXPERT_ROLES:
        assert formats[role, 1] == "mxfp4_panels"
    assert formats[Role.Q, 1] == "float32"
    with pytest.raises(ConfigError, match="quantise the original"):
        quantize_folder(published.folder, tmp_path / "int8", Quantization(8))
    with pytest.raises(ConfigError, match="dtype auto: expected integer codes, .* got MXFP4"):
        repack_folder(published.folder, tmp_path / "int8")


def test_tensors_of_another_shape_are_named(published: Published, tmp_path: Path) -> None:
    stored = load_file(published.folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    for wrong, got in (
        (stored[name][:, :-1].contiguous(), "U8 of shape .* got U8 of"),
        (stored[name].to(torch.float32), "U8 of shape .* got F32 of"),
    ):
        save_file(stored | {name: wrong}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_bytes((published.folder / "config.json").read_bytes())
        with pytest.raises(CheckpointError, match=f"down_proj_scales': expected {got}"):
            Engine.load(tmp_path, "reference")
    del stored[name]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="1 are missing: .*down_proj_scales"):
        Engine.load(tmp_path, "reference")


def test_floats_whose_experts_are_merged_are_not_quantised(tmp_path: Path) -> None:
    random_model("GptOss", **CHANGES).save_pretrained(tmp_path / "floats")
    with pytest.raises(ConfigError, match="quantization: expected a family whose experts have"):
        quantize_folder(tmp_path / "floats", tmp_path / "int8", Quantization(8))
