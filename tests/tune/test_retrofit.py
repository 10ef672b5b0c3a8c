"""A random Llama of Transformers and its conversion: the same logits, in every executor."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from monolane.cpu import CpuExecutor
from monolane.engine import Engine, SamplingParams
from monolane.errors import CheckpointError, ConfigError, MonolaneError
from monolane.hf import LaneformerForCausalLM
from monolane.model import Checkpoint, Head, Weights, read_config
from monolane.reference import ReferenceModel
from monolane.tune import _lanes, retrofit_folder

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,  # eight-wide heads: pairs that are kept, blended and stretched
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
TOKENS = 40
Make = Callable[..., Path]
# Changes to the Llama, and the options of the conversion.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grouped queries": ({}, {"lanes": 4}),
    "one lane": ({}, {"lanes": 1}),
    "a lane per head": ({"num_key_value_heads": 8}, {"lanes": 8}),
    "each KV head twice": ({}, {"lanes": 8}),
    "one KV head for all": ({"num_key_value_heads": 1}, {"lanes": 4}),
    "inner units that do not divide": (
        {"num_attention_heads": 8, "intermediate_size": 100},
        {"lanes": 8},
    ),
    "wide heads": ({"num_attention_heads": 2, "num_key_value_heads": 2}, {"lanes": 2}),
    "tied": ({"tie_word_embeddings": True}, {"lanes": 4}),
    "replicated head": ({}, {"lanes": 4, "head": "replicate"}),
    "tied, replicated": ({"tie_word_embeddings": True}, {"lanes": 4, "head": "replicate"}),
    "odd vocabulary": ({"vocab_size": 321}, {"lanes": 4}),
    "stretched rotary": ({"rope_parameters": LLAMA3}, {"lanes": 4}),
    "another theta": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"lanes": 2},
    ),
    "windows": ({"kind": "Mistral", "sliding_window": 9}, {"lanes": 4}),
}


def bound(config: Any, logits: np.ndarray) -> float:
    """How far two float32 evaluations of one model may be apart.

    Each of the 4 N + 1 products adds a relative error of a sum of n terms, sqrt(n) u, with n the
    longest sum and u = 2^-24; they add up as a random walk, in each of two evaluations: sqrt(2).
    Factor 6: the largest of all logits rather than the typical one. And the rotary frequencies are
    rounded differently (theta ** -x, 1 / theta ** x): up to 3 u of an angle of up to TOKENS radians
    in each layer.
    """
    n = max(config.hidden_size, config.intermediate_size)
    sums = 6 * np.sqrt(2) * np.sqrt(4 * config.num_layers + 1) * np.sqrt(n)
    angles = 6 * 3 * TOKENS * np.sqrt(config.num_layers)
    return float((sums + angles) * 2.0**-24 * logits.std())


def dense_logits(folder: Path, ids: np.ndarray, dtype: Any = torch.float32) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad():
        logits: np.ndarray = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    return logits


def lane_logits(folder: Path, ids: np.ndarray, dtype: Any = torch.float32) -> np.ndarray:
    model = LaneformerForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad():
        logits: np.ndarray = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    return logits


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_dense_model(case: str, llama: Make, tmp_path: Path) -> None:
    changes, options = CASES[case]
    source, out = llama(**changes), tmp_path / "lanes"
    made = retrofit_folder(source, out, **options)
    assert made.exact
    ids = np.random.default_rng(0).integers(320, size=TOKENS)
    wanted = dense_logits(source, ids)
    weights = Weights.load(read_config(out), Checkpoint.open(out))
    reference = ReferenceModel(weights)
    executor = CpuExecutor(weights, "float32", context=128, slots=1, workers=2)
    found = {
        "transformers": lane_logits(out, ids),
        "reference": reference.forward(ids, reference.new_cache()),
        "cpu": executor.logits(0, ids.tolist()),
    }
    limit = bound(weights.config, wanted)
    apart = {name: float(np.abs(logits - wanted).max()) for name, logits in found.items()}
    assert all(difference < limit for difference in apart.values()), (apart, limit)
    assert wanted.std() > 0.5  # logits near zero would agree whatever the model did


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_in_float64_the_number_of_lanes_does_not_show(
    lanes: int, llama: Make, tmp_path: Path
) -> None:
    """What lanes change is the order of sums: 1e-16 each, of logits near one.

    Not held against Transformers' Llama, whose norms are in float32 whatever it is asked for.
    """
    source = llama()
    retrofit_folder(source, tmp_path / "one", lanes=1)
    retrofit_folder(source, tmp_path / "more", lanes=lanes)
    ids = np.random.default_rng(0).integers(320, size=TOKENS)
    one, more = (lane_logits(tmp_path / name, ids, torch.float64) for name in ("one", "more"))
    assert np.abs(one - more).max() < 1e-12


def test_the_comparison_sees_a_wrong_pairing(
    llama: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = llama(), tmp_path / "lanes"
    monkeypatch.setattr(_lanes, "interleaved", lambda rows, head_dim: rows)
    retrofit_folder(source, out, lanes=4)
    ids = np.random.default_rng(0).integers(320, size=TOKENS)
    wanted = dense_logits(source, ids)
    assert np.abs(lane_logits(out, ids) - wanted).max() > 100 * bound(read_config(out), wanted)


def test_bfloat16_weights_keep_their_bits(llama: Make, tmp_path: Path) -> None:
    source, out = llama(dtype="bfloat16"), tmp_path / "lanes"
    retrofit_folder(source, out, lanes=2)
    before, after = Checkpoint.open(source), Checkpoint.open(out)
    down = before["model.layers.1.mlp.down_proj.weight"]
    lanes = after["model.layers.1.feed_forward.w2.weight"]
    assert read_config(out).dtype == lanes.dtype.name == "bfloat16"
    assert np.array_equal(np.concatenate(list(lanes), axis=1), down)
    keys = after["model.layers.0.attention.wk.weight"].reshape(4, 8, 64)
    halves = before["model.layers.0.self_attn.k_proj.weight"].reshape(4, 2, 4, 64)
    assert np.array_equal(keys[:, 0::2], halves[:, 0])
    assert np.array_equal(keys[:, 1::2], halves[:, 1])


def test_engines_answer_as_the_dense_model(llama: Make, tmp_path: Path) -> None:
    source, out = llama(), tmp_path / "lanes"
    retrofit_folder(source, out, lanes=4)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    prompt = [1, 40, 50, 60]
    ids = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
    )[0, len(prompt) :].tolist()
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    for backend in ("cpu", "reference"):
        with Engine.load(out, backend, "float32") as engine:
            assert list(engine.generate(prompt, params).token_ids) == ids, backend


def test_a_delay_is_in_the_config_and_nowhere_else(llama: Make, tmp_path: Path) -> None:
    source = llama()
    exact, late = tmp_path / "exact", tmp_path / "late"
    retrofit_folder(source, exact, lanes=4)
    assert not retrofit_folder(source, late, lanes=4, delay=1, early=True).exact
    assert [str(x.mlp_reduce) for x in read_config(late).layers] == ["now", "after 1", "after 1"]
    first, second = Checkpoint.open(exact), Checkpoint.open(late)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    ids = np.random.default_rng(0).integers(320, size=TOKENS)
    wanted = dense_logits(source, ids)
    assert np.abs(lane_logits(late, ids) - wanted).max() > 100 * bound(read_config(late), wanted)


def test_the_folder_is_whole(llama: Make, tmp_path: Path) -> None:
    source, out = llama(), tmp_path / "lanes"
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Dense\nIt is best.\n")
    (source / "LICENSE").write_text("terms")
    (source / "THIRD_PARTY_LICENSES").mkdir()
    (source / "THIRD_PARTY_LICENSES" / "TOKENIZER").write_text("other terms")
    retrofit_folder(source, out, lanes=4)
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert (out / "LICENSE").read_text() == "terms"
    assert (out / "THIRD_PARTY_LICENSES" / "TOKENIZER").read_text() == "other terms"
    card = (out / "README.md").read_text()
    assert "license: apache-2.0" in card
    assert "It is best" not in card
    assert (out / "modeling_laneformer.py").is_file()
    assert read_config(out).head is Head.VOCAB_PARALLEL
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    with pytest.raises(CheckpointError, match="expected no such folder"):
        retrofit_folder(source, out, lanes=4)


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"lanes": 3}, r"one of 1, 2, 4, 8; got 3"),
    (
        {"num_attention_heads": 24, "num_key_value_heads": 3, "hidden_size": 96},
        {"lanes": 16},
        "lanes",
    ),
    ({"num_attention_heads": 8, "num_key_value_heads": 8}, {"lanes": 5}, "a number that divides"),
    (
        {"vocab_size": 321},
        {"lanes": 4, "head": "vocab_parallel"},
        "vocab_size: expected a multiple",
    ),
    ({"hidden_act": "gelu"}, {"lanes": 2}, "hidden_act: expected one of 'silu'"),
    ({"kind": "Qwen3", "head_dim": 8}, {"lanes": 2}, "qk_norm: expected a model without"),
    (
        {"kind": "Mixtral", "num_local_experts": 4},
        {"lanes": 2},
        "experts: expected a model without",
    ),
    ({"head_dim": 16}, {"lanes": 2}, "head_dim: expected 8"),
    ({"kind": "SmolLM3", "no_rope_layer_interval": 2}, {"lanes": 2}, "layers.rotary: expected a"),
    ({"kind": "Olmo2"}, {"lanes": 2}, "norm_before: expected a model without"),
    ({"kind": "Gemma3Text", "head_dim": 8}, {"lanes": 2}, "local_rotary: expected a model without"),
    ({"rope_parameters": YARN}, {"lanes": 2}, "rotary.amplitude: expected a model without"),
    (
        {"rope_parameters": YARN | {"attention_factor": 1.0}},
        {"lanes": 2},
        "rope_type: expected one of 'default', 'llama3', got 'yarn'",
    ),
    (
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        {"lanes": 2},
        "rope_type: expected one of 'default', 'llama3', got 'linear'",
    ),
]


@pytest.mark.parametrize(("changes", "options", "message"), REFUSED)
def test_what_a_laneformer_cannot_compute(
    changes: dict[str, Any], options: dict[str, Any], message: str, llama: Make, tmp_path: Path
) -> None:
    source = llama(**changes)
    with pytest.raises(ConfigError, match=message):
        retrofit_folder(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_qwen2_needs_its_biases_to_be_zero(llama: Make, tmp_path: Path) -> None:
    source = llama("Qwen2")
    retrofit_folder(source, tmp_path / "zero", lanes=4)  # as initialised
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    ids = np.arange(TOKENS)
    wanted = dense_logits(source, ids)
    config = read_config(tmp_path / "zero")
    assert np.abs(lane_logits(tmp_path / "zero", ids) - wanted).max() < bound(config, wanted)
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.bias[3] = 0.5
    model.save_pretrained(source)
    with pytest.raises(CheckpointError, match=r"v_proj.bias': a Laneformer has no biases"):
        retrofit_folder(source, tmp_path / "out", lanes=4)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "quantization_config: quant_method: expected",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1"),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": None}, "'llama3'"),
        ({"attention_bias": True}, "out_bias: expected a model without, as Laneformers are"),
        (
            {"model_type": "gpt2"},
            "model_type: expected one of .*'llama', 'mistral', .*'qwen3', .*got 'gpt2'",
        ),
        ({"intermediate_size": 104}, r"gate_proj.weight': expected shape \[104, 64\]"),
        ({"num_hidden_layers": 4}, "are missing: 'model.layers.3"),
        ({"num_hidden_layers": 2}, "9 more: 'model.layers.2"),
    ],
)
def test_damaged_and_foreign_sources(
    edit: dict[str, Any], message: str, llama: Make, tmp_path: Path
) -> None:
    source = llama()
    raw = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(raw | edit))
    with pytest.raises(MonolaneError, match=message):
        retrofit_folder(source, tmp_path / "out", lanes=4)
    assert not (tmp_path / "out").exists()
