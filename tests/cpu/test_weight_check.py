"""The binding looks at the length of every vector and at the embedding's shape itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolane.cpu._weights as handed
from monolane import Engine
from monolane.errors import MonolaneError
from monolane.model import Kind, Role, parse_config, tensor_specs, write_checkpoint

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "torch_dtype": "float32",
}
# Model -> fields, between them with vectors of every role.
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "qwen3": LLAMA | {"model_type": "qwen3"},
    "olmo2": LLAMA | {"model_type": "olmo2"},
    "gemma3_text": LLAMA
    | {"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 16}
    | {"sliding_window": 9},
    "gemma3n_text": LLAMA
    | {"model_type": "gemma3n_text", "head_dim": 16, "sliding_window": 9, "laurel_rank": 6}
    | {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8}
    | {"vocab_size_per_layer_input": 90, "activation_sparsity_pattern": [0.9, 0.0]},
    "qwen2_moe": LLAMA
    | {"model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
}
VECTORS = {
    "qwen2": {Role.Q_BIAS, Role.K_BIAS, Role.V_BIAS, Role.ATTENTION_NORM, Role.FINAL_NORM},
    "qwen3": {Role.Q_NORM, Role.K_NORM, Role.MLP_NORM},
    "olmo2": {Role.Q_NORM, Role.K_NORM, Role.POST_ATTENTION_NORM, Role.POST_MLP_NORM},
    "gemma3_text": {Role.POST_ATTENTION_NORM, Role.POST_MLP_NORM},
    "gemma3n_text": {
        *(Role.ALTUP_NORM, Role.ALTUP_ROUTER, Role.ALTUP_PREDICT, Role.ALTUP_CORRECT),
        *(Role.ALTUP_SCALE, Role.LAUREL_NORM, Role.PER_LAYER_NORM),
    },
    "qwen2_moe": {Role.SHARED_EXPERT_GATE},
}
CASES = [(name, role) for name, roles in VECTORS.items() for role in sorted(roles)]


def write_folder(folder: Path, raw: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(raw))
    rng = np.random.default_rng(0)
    specs = tensor_specs(parse_config(raw))
    write_checkpoint(
        folder,
        [(s.name, rng.normal(scale=0.3, size=s.shape).astype(np.float32)) for s in specs],
    )
    return folder


@pytest.mark.parametrize(("name", "role"), CASES, ids=lambda x: str(x))
@pytest.mark.parametrize("length", ["one number", "one more", "none"])
def test_a_vector_of_another_length_is_refused(
    tmp_path: Path, name: str, role: Role, length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path, MODELS[name])
    hand_over = handed._set_vector

    def other(table: Any, given: Role, layer: int, array: np.ndarray, offset: np.float32) -> None:
        if given is not role or layer > 0:
            hand_over(table, given, layer, array, offset)
        elif length == "one number":
            hand_over(table, given, layer, array.reshape(-1)[:1].copy(), offset)
        elif length == "one more":
            hand_over(
                table, given, layer, np.append(array.reshape(-1), array.dtype.type(0)), offset
            )

    monkeypatch.setattr(handed, "_set_vector", other)
    if length == "none" and (role.kind is Kind.VECTOR):
        Engine.load(tmp_path, "cpu", context=16).close()  # a model may have none
        return
    with pytest.raises(MonolaneError, match="vector of role .* expected .* numbers, got"):
        Engine.load(tmp_path, "cpu", context=16)


def test_frequencies_of_another_length_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path, LLAMA)
    frequencies = handed.ModelConfig.rotary_dim
    monkeypatch.setattr(handed.ModelConfig, "rotary_dim", lambda self, which: 2)
    with pytest.raises(MonolaneError, match="expected 8 numbers, got 1"):
        _load_with_plan_of(tmp_path, monkeypatch, frequencies)


def _load_with_plan_of(folder: Path, monkeypatch: pytest.MonkeyPatch, right: Any) -> None:
    """Load with a plan that is right, and a table that is not."""
    import monolane.cpu._native as native

    build = native.build

    def build_right(*args: Any, **named: Any) -> Any:
        with pytest.MonkeyPatch.context() as mended:
            mended.setattr(handed.ModelConfig, "rotary_dim", right)
            return build(*args, **named)

    to_arrays = native.to_arrays

    def arrays_right(plan: Any) -> Any:
        with pytest.MonkeyPatch.context() as mended:
            mended.setattr(handed.ModelConfig, "rotary_dim", right)
            return to_arrays(plan)

    monkeypatch.setattr(native, "build", build_right)
    monkeypatch.setattr(native, "to_arrays", arrays_right)
    Engine.load(folder, "cpu", context=16).close()


@pytest.mark.parametrize("shape", [(96, 64), (97, 32), (98, 64)])
def test_an_embedding_of_another_shape_is_refused(
    tmp_path: Path, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path, LLAMA)
    hand_over = handed._set

    def other(found: Any, role: Role, layer: int, matrix: np.ndarray, *rest: Any) -> None:
        given = np.zeros(shape, np.float32) if role is Role.EMBEDDING else matrix
        hand_over(found, role, layer, given, *rest)

    monkeypatch.setattr(handed, "_set", other)
    with pytest.raises(MonolaneError, match=r"embedding: expected \[97, 64\], got"):
        Engine.load(tmp_path, "cpu", context=16)
