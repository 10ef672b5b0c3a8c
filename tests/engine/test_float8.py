"""Folders in FP8 with scales of blocks through the engine: what Transformers computes of the same
numbers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import CheckpointError
from monolane.model import Checkpoint, Quantization, quantize_folder

from .sizes import DEEPSEEK4, EVEN, MIXTURE, MLA, ODD
from .test_dense import TOKENS, compute, load_file, save_file, write

torch = pytest.importorskip("torch")

BLOCK = (16, 24)  # which divides nothing
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3": ("Qwen3", ODD),
    "Qwen3-MoE": ("Qwen3Moe", ODD | MIXTURE),
    "DeepSeek-V3": ("DeepseekV3", MLA),
}


def in_float8(source: Path, dtype: str) -> dict[str, Any]:
    """Rewrite a folder's matrices as codes and scales; return the floats that these mean."""
    held, meant = {}, {}
    for name, weight in load_file(source / "model.safetensors").items():
        if "_proj" not in name or not name.endswith("weight"):
            held[name] = meant[name] = weight  # as the published ones leave routers and norms
            continue
        rows, columns = weight.shape
        grid = -(-rows // BLOCK[0]), -(-columns // BLOCK[1])
        whole = torch.zeros(grid[0] * BLOCK[0], grid[1] * BLOCK[1])
        whole[:rows, :columns] = weight
        blocks = whole.reshape(grid[0], BLOCK[0], grid[1], BLOCK[1])
        scales = blocks.abs().amax(dim=(1, 3)) / 448
        each = scales.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
        each = each[:rows, :columns]
        codes = (weight / each).to(torch.float8_e4m3fn)
        held |= {name: codes, f"{name}_scale_inv": scales}
        meant[name] = (codes.float() * each).to(getattr(torch, dtype)).float()
    save_file(held, source / "model.safetensors")
    said = json.loads((source / "config.json").read_text())
    said |= {
        "dtype": dtype,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": list(BLOCK),
        },
    }
    (source / "config.json").write_text(json.dumps(said))
    return meant


def theirs(model: Any, meant: dict[str, Any], folder: Path) -> Any:
    """The model of Transformers with the numbers that are meant, by way of a folder of floats."""
    model.save_pretrained(folder)
    save_file(meant, folder / "model.safetensors", metadata={"format": "pt"})
    again = type(model).from_pretrained(folder, dtype=torch.float32).eval()
    again.config._experts_implementation = "eager"
    return again


@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "bfloat16") for case in CASES), ("Qwen3", "float32")]
)
def test_logits_and_tokens_are_those_of_transformers(case: str, dtype: str, tmp_path: Path) -> None:
    kind, changes = CASES[case]
    model = write(tmp_path / "small", kind, **changes)
    again = theirs(model, in_float8(tmp_path / "small", dtype), tmp_path / "floats")
    ids = np.random.default_rng(0).integers(model.config.vocab_size, size=TOKENS)
    wanted = compute(again, ids)
    prompt = torch.from_numpy(ids[:12])[None]
    length = {"max_new_tokens": 12, "min_new_tokens": 12}
    drawn = again.generate(prompt, **length, do_sample=False, pad_token_id=0)[0, 12:].tolist()
    for backend in ("reference", "cpu"):
        with Engine.load(tmp_path / "small", backend, "float32") as engine:
            found = engine.logits(ids.tolist())
            engine.backend.truncate(0, 0)
            one = [engine.backend.logits(0, [token]) for token in ids.tolist()]
            params = SamplingParams(max_tokens=12, logit_bias={2: -np.inf})
            answer = engine.generate(ids[:12].tolist(), params)
        # As derived in tests/engine/test_dense.py.
        assert np.abs(found - wanted).max() < 1e-4 * wanted.std()
        assert np.abs(np.concatenate(one) - wanted).max() < 1e-4 * wanted.std()
        assert list(answer.token_ids) == drawn
    assert wanted.std() > 0.5


def test_it_is_quantised_as_the_floats_that_it_means(tmp_path: Path) -> None:
    """While it loads, and to a folder: the same codes, and bfloat16 where nothing is asked for."""
    model = write(tmp_path / "small", "Qwen3Moe", **MIXTURE | EVEN, head_dim=8)
    meant = in_float8(tmp_path / "small", "bfloat16")
    quantize_folder(tmp_path / "small", tmp_path / "int8", Quantization(8))
    ids = list(range(20))
    logits = {}
    for name, dtype in (("small", "int8"), ("int8", "auto"), ("small", "auto")):
        with Engine.load(tmp_path / name, "cpu", dtype) as engine:
            logits[name, dtype] = engine.logits(ids)
            assert engine.config.stored_dtype == ("int8" if name == "int8" else "bfloat16")
    np.testing.assert_array_equal(logits["small", "int8"], logits["int8", "auto"])
    wanted = compute(theirs(model, meant, tmp_path / "floats"), np.array(ids))
    error = np.abs(logits["small", "auto"] - wanted).mean()
    assert 0 < error < 0.05 * wanted.std()  # activations in 16 bits


def test_deepseek_v4_s_folder_computes_as_the_numbers_it_means(tmp_path: Path) -> None:
    """Experts in 4 bits, attention in 8, scales that are powers of two."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "o_groups": 2}
    write(tmp_path / "small", "DeepseekV4", **DEEPSEEK4 | sizes)
    held, meant = {}, {}
    codes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    for name, weight in load_file(tmp_path / "small" / "model.safetensors").items():
        held[name] = meant[name] = weight
        scale = name.replace(".weight", ".scale")
        if ".experts." in name:
            parts = weight.reshape(len(weight), -1, 32)
            power = (parts.abs().amax(-1) / 6).log2().ceil().exp2()
            size = (parts.abs() / power[..., None])[..., None] - codes
            nearest = size.abs().argmin(-1)
            code = (nearest + 8 * (parts < 0)).reshape(weight.shape)
            meant[name] = (codes[nearest] * parts.sign() * power[..., None]).reshape(weight.shape)
            held[name] = (code[:, 0::2] + 16 * code[:, 1::2]).to(torch.uint8).view(torch.int8)
            held[scale] = power.to(torch.float8_e8m0fnu)
        elif ".attn.w" in name:
            power = (weight.abs().amax() / 448).log2().ceil().exp2()
            held[name] = (weight / power).to(torch.float8_e4m3fn)
            meant[name] = held[name].float() * power
            grid = [-(-size // 128) for size in weight.shape]
            held[scale] = power.expand(grid).contiguous().to(torch.float8_e8m0fnu)
    assert sum(x.dtype == torch.int8 for x in held.values()) == 4 * 7 * 3
    shutil.copytree(tmp_path / "small", tmp_path / "floats")
    save_file(held, tmp_path / "small" / "model.safetensors", {"format": "pt"})
    save_file(meant, tmp_path / "floats" / "model.safetensors", {"format": "pt"})
    said = json.loads((tmp_path / "small" / "config.json").read_text())
    scheme = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0"}
    said |= {"expert_dtype": "fp4"}
    said |= {"quantization_config": scheme | {"weight_block_size": [128, 128]}}
    (tmp_path / "small" / "config.json").write_text(json.dumps(said))
    logits = []
    for name in ("small", "floats"):
        with Engine.load(tmp_path / name, "reference") as engine:
            logits.append(engine.logits(range(TOKENS)))
    np.testing.assert_array_equal(*logits)


def test_a_matrix_without_its_scales_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "Llama")
    in_float8(tmp_path, "bfloat16")
    held = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    del held[f"{name}_scale_inv"]
    save_file(held, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"tensor '{name}': expected one of .*, got F8_E4M3"):
        Engine.load(tmp_path, "cpu")
    assert Checkpoint.open(tmp_path).dtype_of("model.layers.0.mlp.up_proj.weight") == "bfloat16"
