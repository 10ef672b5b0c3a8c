"""Dense families on the monokernel, emulated: each family's config, small and odd, against the
oracle. In float16 the kernel alone; in bfloat16 the whole engine, from a folder in Hub layout."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from rig import Ask, MakeRig, Rig, random_weights
from test_monokernel import check_logits, check_widths, random_ids, sorted_out
from tolerance import limits, oracle

from monolane import Engine, SamplingParams
from monolane.cuda import CudaExecutor, _layout
from monolane.cuda._pack import widened
from monolane.engine import _engine
from monolane.model import (
    NEVER,
    NOW,
    Kind,
    LayerConfig,
    ModelConfig,
    Reduce,
    Rotary,
    Weights,
    parse_config,
    render_config,
    tensor_specs,
    write_checkpoint,
)
from monolane.plan import PhaseKind

PROMPT, DRAWN, TOKENS = 7, 8, 30  # longer than every window, and than the trained context of YARN
BLOCKS = 3  # which no size below is a multiple of
# Nothing is a multiple of what it need not be: heads apart from hidden / heads, an odd vocabulary.
ODD: dict[str, Any] = {
    "hidden_size": 28,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 53,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,  # ten-wide heads: pairs that are kept, blended and stretched
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama 3": {"model_type": "llama", "rope_parameters": LLAMA3},
    "Mistral": {"model_type": "mistral", "sliding_window": 9, "num_key_value_heads": 1},
    "Qwen2.5, tied": {
        "model_type": "qwen2",
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    },
    "Qwen3": {"model_type": "qwen3", "rope_parameters": YARN},
}
MORE: dict[str, dict[str, Any]] = {
    "Llama 2, linear": {
        "model_type": "llama",
        "num_key_value_heads": 4,
        "rope_parameters": LINEAR,
    },
    "Llama, YaRN": {"model_type": "llama", "rope_parameters": YARN | {"attention_factor": 0.75}},
    "SmolLM2, tied": {"model_type": "llama", "tie_word_embeddings": True, "head_dim": 7 * 2},
    "Qwen2, wide heads": {"model_type": "qwen2", "num_attention_heads": 6, "head_dim": 34},
    "Qwen3, tied, wide heads": {
        "model_type": "qwen3",
        "head_dim": 66,  # more than two of a warp's rounds
        "tie_word_embeddings": True,
        "num_hidden_layers": 2,
    },
    "Llama, biases": {"model_type": "llama", "attention_bias": True},
    "Phi-3": {"model_type": "phi3"},
    "Qwen3-VL": {"model_type": "qwen3_vl", "text_config": ODD},
    "Seed-OSS": {"model_type": "seed_oss"},
    "Ernie 4.5": {"model_type": "ernie4_5"},
    "EXAONE 3.5": {"model_type": "exaone", "rope_parameters": LLAMA3},
    "Helium": {"model_type": "helium"},
    "IQuest-Coder": {"model_type": "iquestcoder"},
    "Ministral": {"model_type": "ministral", "sliding_window": 9},
    "Code World Model": {"model_type": "cwm", "sliding_window": 9, "rope_parameters": LLAMA3},
    "Gemma": {"model_type": "gemma"},
    "Granite": {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.25,
    },
    "Hunyuan": {"model_type": "hunyuan_v1_dense"},
    "Ministral 3": {
        "model_type": "ministral3",
        "rope_parameters": YARN | {"llama_4_scaling_beta": 0.5},
    },
    "VaultGemma": {"model_type": "vaultgemma", "sliding_window": 9},
    "Gemma 2": {"model_type": "gemma2", "sliding_window": 9},
    "Gemma 3": {"model_type": "gemma3_text", "sliding_window": 9, "sliding_window_pattern": 2},
    "GLM-4": {"model_type": "glm4", "head_dim": 12},
    "EXAONE 4": {"model_type": "exaone4", "sliding_window": 9, "sliding_window_pattern": "LLG"},
    "OLMo 2": {"model_type": "olmo2"},
    "OLMo 3": {"model_type": "olmo3", "sliding_window": 9},
    "HyperCLOVA X": {"model_type": "hyperclovax", "residual_multiplier": 0.5},
    "GLM": {"model_type": "glm", "head_dim": 12},
    "SmolLM3": {"model_type": "smollm3", "no_rope_layers": [1, 0, 1], "rope_parameters": YARN},
}


def config_of(case: str) -> ModelConfig:
    return parse_config(ODD | (FAMILIES | MORE)[case])


def greedy(weights: Weights, prompt: list[int]) -> list[int]:
    """The oracle's tokens behind a prompt."""
    ids = list(prompt)
    while len(ids) < len(prompt) + DRAWN:
        ids.append(int(oracle(weights, ids)[-1].argmax()))
    return ids[len(prompt) :]


def clear_prompt(weights: Weights, dtype: str) -> tuple[list[int], list[int]]:
    """A prompt and the oracle's tokens behind it, none of them nearer to another choice than two
    logits may err; about every second prompt is such a one."""
    for seed in range(20):
        prompt = random_ids(weights.config, PROMPT, seed)
        wanted = greedy(weights, prompt)
        ids = [*prompt, *wanted[:-1]]
        top = np.sort(oracle(weights, ids)[PROMPT - 1 :], axis=1)
        if (top[:, -1] - top[:, -2] > 2 * limits(weights, ids, dtype)[PROMPT - 1 :]).all():
            return prompt, wanted
    raise AssertionError("no prompt has clear answers")


def check(rig: Rig) -> None:
    """Logits of a whole prompt, in pieces and token by token, at each width; greedy tokens."""
    check_widths(rig, "float16", random_ids(rig.config, TOKENS))
    prompt, wanted = clear_prompt(rig.weights, "float16")
    for width in rig.layouts:
        rig.forget()
        outcome = rig.launch(Ask(tokens=prompt, budget=DRAWN), width=width, seed=width)
        assert outcome.healthy, (outcome.error, outcome.fault)
        assert outcome.tokens() == wanted


@pytest.mark.parametrize(
    "case", [*FAMILIES, *(pytest.param(x, marks=pytest.mark.slow) for x in MORE)]
)
def test_families(make_rig: MakeRig, case: str) -> None:
    weights = random_weights(config_of(case))
    check(make_rig(weights, workers=BLOCKS, widths=(3,), dtype="float16"))


# Scales of rows know nothing of the family: one with biases and a tied head, one with heads' norms.
@pytest.mark.slow
@pytest.mark.parametrize("case", sorted_out(FAMILIES, ("Qwen2.5, tied", "Qwen3")))
def test_families_in_float8(make_rig: MakeRig, case: str) -> None:
    weights = random_weights(config_of(case))
    rig = make_rig(weights, workers=BLOCKS, widths=(3,), dtype="float8")
    rig.weights = widened(weights)  # what the oracle gets
    check(rig)


# What lanes and families make of each other: norms of heads over lanes that meet late, pairs side
# by side, a layer without rotary, a scale of the scores.
LANES = replace(
    parse_config(ODD | FAMILIES["Qwen3"]),
    num_lanes=2,
    layers=(
        LayerConfig(NOW, NEVER, 9),
        LayerConfig(Reduce(1), NOW, rotary="none"),
        LayerConfig(NOW, Reduce(1)),
    ),
    intermediate_size=38,
    vocab_size=54,
    rotary=Rotary(theta=100.0),
    query_scale=0.5,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "wish"),
    [
        (config_of("Qwen3"), {"workers": 1, "widths": (8, 1)}),
        (config_of("Qwen3"), {"workers": 5, "widths": (20,), "warps": 1}),  # wide
        (config_of("Gemma 3"), {"workers": 5, "widths": (20, 1)}),
        (LANES, {"workers": 6, "widths": (3,)}),
        (LANES, {"workers": 2, "widths": (8, 1), "warps": 4}),
    ],
    ids=["one block", "wide", "wide, norms behind modules", "lanes", "lanes of one block"],
)
def test_norms_of_heads_on_other_blocks(
    make_rig: MakeRig, config: ModelConfig, wish: dict[str, Any]
) -> None:
    check(make_rig(random_weights(config), dtype="float16", **wish))


@pytest.mark.slow
def test_norms_of_heads_under_schedules(make_rig: MakeRig) -> None:
    weights = random_weights(config_of("Qwen3"))
    rig = make_rig(weights, workers=BLOCKS, widths=(3,), dtype="float16")
    ask = Ask(tokens=random_ids(rig.config, 4), budget=2, record_logits=True)
    expected = rig.launch(ask, mood="brisk")
    for seed in range(60):
        rig.forget()
        assert rig.launch(ask, seed=seed).same(expected), seed


# ---- what large models need ----------------------------------------------------------------------
# Three tiles of the stream for two blocks, tiles of keys and hidden units by turns, heads that fall
# apart among blocks; a vocabulary of several rounds.
LARGE: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 20,
    "vocab_size": 311,
}


@pytest.mark.parametrize("family", ["Llama 3", "Qwen3"])
@pytest.mark.parametrize("width", [3, 20])
def test_blocks_that_stream_more_or_less(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, family: str, width: int
) -> None:
    monkeypatch.setattr(_layout, "_MERGED_APART", 0)
    weights = random_weights(parse_config(ODD | FAMILIES[family] | LARGE))
    rig = make_rig(weights, workers=2, widths=(width, 1), dtype="float16", folds=True)
    layout = rig.layouts[width]
    assert layout.share_layers == 2
    assert layout.uneven
    assert PhaseKind.HEAD in layout.folded
    assert (layout.merge is None) == layout.wide
    check(rig)


# ---- through the engine ------------------------------------------------------------------------
def write_folder(folder: Path, weights: Weights) -> None:
    """Write a model in Hub layout, its numbers in bfloat16."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(render_config(weights.config)))
    tensors = []
    for spec in tensor_specs(weights.config):
        place = weights.outer if spec.layer is None else weights.layers[spec.layer]
        tensors.append((spec.name, place[spec.role].reshape(spec.shape).astype(ml_dtypes.bfloat16)))
    write_checkpoint(folder, tensors)


# Each family's folder is read by the tests of the CPU's engine too, and its kernel is tested above:
# left is that the two meet, with and without tied embeddings.
@pytest.mark.slow
@pytest.mark.parametrize("case", sorted_out(FAMILIES, ("Llama 3", "Qwen2.5, tied")))
def test_folders_run_on_the_engine(
    case: str, kernel_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = random_weights(config_of(case))
    write_folder(tmp_path / "model", weights)
    ids = random_ids(weights.config, TOKENS)
    prompt, wanted = clear_prompt(weights, "bfloat16")
    params = SamplingParams(max_tokens=DRAWN, ignore_eos=True)

    def make(weights: Weights, dtype: str, **more: Any) -> CudaExecutor:
        gpu = EmulatedGpu(kernel_folder, sms=4)
        return CudaExecutor(weights, dtype, gpu, **more)

    monkeypatch.setattr(_engine, "find_backend", lambda *_: make)
    with Engine.load(tmp_path / "model", "cuda", max_sequences=2) as engine:
        assert engine.backend.dtype == "bfloat16"
        check_logits(weights, "bfloat16", ids, engine.logits(ids))
        engine.backend.truncate(0, 0)
        pieces = [engine.backend.logits(0, [token]) for token in ids]
        check_logits(weights, "bfloat16", ids, np.concatenate(pieces))
        assert list(engine.generate(prompt, params).token_ids) == wanted


def test_files_in_blocks_run_on_the_engine(
    kernel_folder: Path,
    tiny_llama: tuple[dict[str, Any], dict[str, Any]],
    write_gguf: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Logits of the numbers that the blocks mean, rounded to 16 bits; pairs of rows that turn are
    neighbours there."""
    fields, arrays = tiny_llama
    for i, (name, array) in enumerate(arrays.items()):
        if array.ndim == 2:
            kind = ("Q8_0", "Q5_1", "Q4_0")[i % 3]
            packed = gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
            arrays[name] = (kind, packed)
    path = write_gguf(tmp_path / "x.gguf", fields, arrays)

    def make(weights: Weights, dtype: str, **more: Any) -> CudaExecutor:
        return CudaExecutor(weights, dtype, EmulatedGpu(kernel_folder, sms=4), **more)

    monkeypatch.setattr(_engine, "find_backend", lambda *_: make)
    wide = Weights.open(path).dequantized()
    outer, *layers = (
        {
            role: x if role.kind is Kind.NORM else x.astype(ml_dtypes.bfloat16).astype(np.float32)
            for role, x in held.items()
        }
        for held in (wide.outer, *wide.layers)
    )
    rounded = replace(wide, outer=outer, layers=tuple(layers))
    ids = random_ids(wide.config, 12)
    with Engine.load(path, "cuda", max_sequences=1) as engine:
        assert engine.backend.dtype == "bfloat16"
        check_logits(rounded, "bfloat16", ids, engine.logits(ids))
