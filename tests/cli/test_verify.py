import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from monolane.cli import app
from monolane.cli._verify import compare
from monolane.model import (
    ModelConfig,
    SafetensorsFile,
    read_config,
    tensor_specs,
    write_safetensors,
)

from .test_commands import run

pytest.importorskip("torch")
pytest.importorskip("transformers")


def invoke(*arguments: object) -> Result:
    """The command within this process: torch takes seconds to import in one of its own."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_engine_agrees_with_our_transformers_model(tiny_model: Path) -> None:
    result = invoke("verify", "-m", tiny_model, "--tokens", 90)
    assert result.exit_code == 0, result.output
    assert "top-1 agreement 100.00%: the implementations agree" in result.stdout
    report = json.loads(invoke("verify", "-m", tiny_model, "--tokens", 90, "--json").stdout)
    assert report["agree"]
    assert [row["tokens"] for row in report["prompts"]][-1] == 90
    assert len(report["prompts"]) == 5


def test_goldens_without_tokenizer_are_verified_on_token_ids(golden: Path) -> None:
    result = invoke("verify", "-m", golden, "--tokens", 60)
    assert result.exit_code == 0, result.output


def test_the_folders_own_code_is_run_only_on_demand(tiny_model: Path, tmp_path: Path) -> None:
    refused = invoke("verify", "-m", tiny_model, "--trust-remote-code")
    assert "expected an auto_map" in str(refused.exception)
    assert invoke("export", "-m", tiny_model, "-o", tmp_path / "out").exit_code == 0
    result = run(
        "verify",
        tmp_path / "out",
        "--trust-remote-code",
        HF_MODULES_CACHE=f"{tmp_path}/modules",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "the implementations agree" in result.stdout


def test_a_disagreement_is_seen(tiny_model: Path, tmp_path: Path) -> None:
    """The folder's own code with one sign turned: verify must say so and fail."""
    assert invoke("export", "-m", tiny_model, "-o", tmp_path / "out").exit_code == 0
    code = tmp_path / "out" / "modeling_laneformer.py"
    text = code.read_text()
    assert "silu(" in text
    code.write_text(text.replace("silu(", "gelu("))
    result = run(
        "verify",
        tmp_path / "out",
        "--trust-remote-code",
        HF_MODULES_CACHE=f"{tmp_path}/modules",
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "THE IMPLEMENTATIONS DIFFER" in result.stdout


def test_the_bound_is_a_rounding_bound(golden: Path) -> None:
    """It lets float32 noise through and catches a relative error of 1e-4."""
    config = read_config(golden)
    logits = SafetensorsFile(golden / "expected.safetensors")["logits"][0]
    assert compare("x", config, logits, logits).holds
    noise = np.float32(1e-6) * np.abs(logits).max()
    assert compare("x", config, logits + noise, logits).holds
    wrong = compare("x", config, logits * np.float32(1 + 1e-4), logits)
    assert not wrong.holds
    assert wrong.top1_agreement == 1


def test_json_has_null_for_what_is_no_number(golden: Path) -> None:
    logits = SafetensorsFile(golden / "expected.safetensors")["logits"][0]
    broken = logits.copy()
    broken[0, 0] = np.nan
    record = compare("x", read_config(golden), broken, logits).record()
    assert record["largest_difference"] is None
    assert not record["holds"]
    assert math.isfinite(record["bound"])
    json.dumps(record, allow_nan=False)


def test_float16_checkpoints_are_verified_too(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    (tmp_path / "m/config.json").write_text(json.dumps(config | {"torch_dtype": "float16"}))
    file = SafetensorsFile(tmp_path / "m/model.safetensors")
    specs = tensor_specs(read_config(tmp_path / "m"))
    tensors = [(spec.name, file[spec.name].astype(np.float16)) for spec in specs]
    (tmp_path / "m/model.safetensors").unlink()
    write_safetensors(tmp_path / "m/model.safetensors", tensors)
    assert invoke("verify", "-m", tmp_path / "m", "--tokens", 40).exit_code == 0


@pytest.mark.parametrize("kind", ["Llama", "SmolLM3", "Olmo2", "Gemma3"])
def test_dense_models_are_held_against_transformers_itself(kind: str, tmp_path: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 60, "intermediate_size": 74, "num_attention_heads": 6, "head_dim": 10}
    sizes |= {"num_hidden_layers": 6, "num_key_value_heads": 2, "vocab_size": 97}
    sizes |= {"max_position_embeddings": 400, "sliding_window": 50, "initializer_range": 0.1}
    text = "Text" if kind == "Gemma3" else ""
    config = getattr(transformers, f"{kind}{text}Config")(
        **sizes, pad_token_id=None, bos_token_id=1, eos_token_id=2
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "m")
    result = invoke("verify", "-m", tmp_path / "m", "--backend", "reference")
    assert result.exit_code == 0, result.output
    assert "the implementations agree" in result.stdout
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("monolane.engine._files.read_config", _another_model)
        result = invoke("verify", "-m", tmp_path / "m", "--backend", "reference")
    assert result.exit_code == 1, result.output


def _another_model(folder: Path) -> ModelConfig:
    return replace(read_config(folder), norm_eps=1e-3)
