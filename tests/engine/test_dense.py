"""Dense families from their own folders: the logits and the tokens that Transformers computes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import BackendError, ConfigError
from monolane.model import Quantization, quantize_folder, read_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, TOKENS = 96, 40
Make = Callable[..., Path]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,  # eight-wide heads: pairs that are kept, blended and stretched
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 2": ("Llama", {"num_key_value_heads": 8}),
    "Llama 3, grouped queries": ("Llama", {"rope_parameters": LLAMA3}),
    "Llama 3.2, tied": ("Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "heads wider than hidden / heads": ("Llama", {"head_dim": 12}),
    "Mistral": ("Mistral", {"sliding_window": 9}),
    "Mistral without windows": ("Mistral", {"sliding_window": None}),
    "Qwen2": ("Qwen2", {"rms_norm_eps": 1e-6}),
    "Qwen2, windows from layer 1": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "Qwen3": ("Qwen3", {"head_dim": 12}),
    "Qwen2.5, tied": ("Qwen2", {"tie_word_embeddings": True}),
}


@pytest.fixture
def dense(tmp_path: Path) -> Make:
    """Writes a small random model as Transformers saves it."""

    def make(kind: str = "Llama", **changes: Any) -> Path:
        torch.manual_seed(0)
        fields: dict[str, Any] = {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": VOCAB,
            "max_position_embeddings": 64,
            "tie_word_embeddings": False,
            "initializer_range": 0.15,  # large enough for softmax and silu to bend
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        config = getattr(transformers, f"{kind}Config")(**fields | changes)
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or name.endswith("bias"):  # off one and zero, so that they show
                    parameter += 0.3 * torch.randn_like(parameter)
        model.save_pretrained(tmp_path / "dense")
        return tmp_path / "dense"

    return make


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_logits_and_tokens_are_those_of_transformers(case: str, backend: str, dense: Make) -> None:
    kind, changes = CASES[case]
    if kind == "Qwen3" and backend == "cpu":
        with pytest.raises(BackendError, match="qk_norm: the cpu backend does not compute it"):
            Engine.load(dense(kind, **changes), backend, "float32")
        return
    folder = dense(kind, **changes)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = np.random.default_rng(0).integers(VOCAB, size=TOKENS)
    prompt = torch.from_numpy(ids[:4])[None]
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
        tokens = theirs.generate(
            prompt, max_new_tokens=20, min_new_tokens=20, do_sample=False, pad_token_id=0
        )[0, 4:].tolist()
    with Engine.load(folder, backend, "float32") as engine:
        found = engine.logits(ids.tolist())
        # ``min_new_tokens`` never chooses the end of the text, 2.
        params = SamplingParams(max_tokens=20, logit_bias={2: -np.inf})
        answer = engine.generate(ids[:4].tolist(), params)
    # As in tests/tune/test_retrofit.py: 13 products in a row whose sums have at most 96 terms, each
    # off by sqrt(96) 2^-24, in two evaluations, 6 times that for the largest of all logits; and
    # angles that are rounded differently, 3 units of up to 40 radians in each of 3 layers.
    sums, angles = 6 * np.sqrt(2 * 13 * 96), 6 * 3 * TOKENS * np.sqrt(3)
    assert np.abs(found - wanted).max() < (sums + angles) * 2.0**-24 * wanted.std()
    assert wanted.std() > 0.5  # logits near zero would agree whatever the model did
    assert list(answer.token_ids) == tokens


def test_quantised_dense_models_run(dense: Make, tmp_path: Path) -> None:
    source = dense("Qwen2", head_dim=8)
    report = quantize_folder(source, tmp_path / "int8", Quantization(8))
    assert read_config(tmp_path / "int8").stored_dtype == "int8"
    assert max(matrix.relative_error for matrix in report.matrices) < 0.01
    ids = list(range(TOKENS))
    with Engine.load(source, "cpu", "float32") as engine:
        plain = engine.logits(ids)
    with Engine.load(tmp_path / "int8", "cpu") as engine:
        coarse = engine.logits(ids)
    assert 0 < np.abs(coarse - plain).mean() < 0.1 * plain.std()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type: expected one of"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: expected 1"),
        ({"attention_bias": True}, "attention_bias: expected false, got True"),
        ({"mlp_bias": True}, "mlp_bias: expected false, got True"),
        ({"hidden_act": "gelu"}, "hidden_act: expected one of 'silu', got 'gelu'"),
        ({"model_type": "mixtral"}, "model_type: .* got 'mixtral': it has experts"),
    ],
)
def test_what_no_executor_computes_is_refused(
    edit: dict[str, Any], message: str, dense: Make
) -> None:
    folder = dense()
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | edit))
    with pytest.raises(ConfigError, match=message):
        Engine.load(folder, "reference")
