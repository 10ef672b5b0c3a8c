"""GGUF files of Gemma 3n: the streams' matrices in one tensor, and what such files hold besides or
leave to their readers. That their logits are the model's is in test_gguf.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from monolane import Engine
from monolane.errors import CheckpointError, ConfigError
from monolane.model import AltUp, Blocks, GgufModel, ModelConfig, Role, Weights
from monolane.model.families import parse_gguf
from monolane.ops.laurel.spec import Laurel
from monolane.ops.per_layer.spec import PerLayer
from monolane.ops.sparse_mlp.spec import SparseMlp

from .converted import metadata, tensors
from .gguf_cases import VOCAB
from .sizes import GEMMA3N
from .test_gguf import random_model

Write = Callable[..., Path]
IDS = list(range(3, 33))
# Whole blocks of 32 in a row.
WIDE = GEMMA3N | {
    "vocab_size_per_layer_input": VOCAB,
    "head_dim": 16,
    "intermediate_size": [96, 96, 64],
    "laurel_rank": 32,
    "hidden_size_per_layer_input": 32,
}


def logits_of(path: Path, backend: str, dtype: str = "auto") -> np.ndarray[Any, Any]:
    with Engine.load(path, backend, dtype) as engine:
        return engine.logits(IDS)


def stored_as(arrays: dict[str, np.ndarray], kinds: dict[str, str], other: str) -> dict[str, Any]:
    """The matrices in a type each, by a part of the name, or in another."""
    found: dict[str, Any] = dict(arrays)
    for name, array in arrays.items():
        small = any(part in name for part in ("_norm", "coef", "scale"))
        if array.ndim == 1 or small:
            continue
        kind = next((kind for part, kind in kinds.items() if part in name), other)
        if kind == "F16":
            found[name] = array.astype(np.float16)
            continue
        found[name] = kind, gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
    return found


# As llama-quantize leaves streams, residuals and the projection in halves; and as others may not.
KINDS = {"altup": "F16", "laurel": "F16", "per_layer_model_proj": "F16", "token_embd": "Q8_0"}


@pytest.mark.parametrize("kinds", [KINDS, {"token_embd": "Q5_1"}], ids=["halves", "blocks"])
def test_the_cpu_multiplies_by_what_is_there(
    kinds: dict[str, str], write_gguf: Write, tmp_path: Path
) -> None:
    model = random_model("Gemma3nText", **WIDE, tie_word_embeddings=False)
    arrays = tensors(model, "gemma3n")
    stored = stored_as(arrays, kinds, "Q4_1")
    path = write_gguf(tmp_path / "x.gguf", metadata(model.config, "gemma3n"), stored)
    weights = Weights.open(path)
    streams = [Role.ALTUP_IN_1, Role.ALTUP_IN_2, Role.ALTUP_OUT_1, Role.ALTUP_OUT_2]
    if kinds is KINDS:
        assert all(weights.outer[role].dtype == np.float16 for role in streams)
        second = weights.outer[Role.ALTUP_IN_2]
    else:
        coded = [weights.quantized[role, None] for role in streams]
        assert all(isinstance(x, Blocks) and x.format == "q4_1" for x in coded)
        second = weights.dequantized().outer[Role.ALTUP_IN_2]
    assert np.abs(second[0] - arrays["altup_proj.weight"][1]).max() < 0.1
    assert isinstance(weights.layers[0][Role.ALTUP_ROUTER], np.ndarray)  # widened, if in blocks
    expected, found = logits_of(path, "reference"), logits_of(path, "cpu")
    # As in test_gguf.py: activations are rounded, and a tensor in a wrong place gives all of it.
    assert 0 < np.abs(found - expected).mean() < 0.05 * expected.std()
    assert expected.std() > 0.5


def test_keys_that_no_layer_reads_may_be_there(write_gguf: Write, tmp_path: Path) -> None:
    """Published files have them in all layers, and llama.cpp asks for them."""
    model = random_model("Gemma3nText", **WIDE)
    said, arrays = metadata(model.config, "gemma3n"), tensors(model, "gemma3n")
    unread = [f"blk.2.attn_{x}.weight" for x in ("k", "v", "k_norm")]
    for name in unread:
        arrays[name] = np.ones_like(arrays[name.replace("2", "0", 1)])
    whole = logits_of(write_gguf(tmp_path / "x.gguf", said, arrays), "cpu", "float32")
    less = {name: array for name, array in arrays.items() if name not in unread}
    bare = logits_of(write_gguf(tmp_path / "y.gguf", said, less), "cpu", "float32")
    np.testing.assert_array_equal(whole, bare)


def test_streams_that_are_missing_or_of_another_number_are_told(
    write_gguf: Write, tmp_path: Path
) -> None:
    model = random_model("Gemma3nText", **WIDE)
    said, arrays = metadata(model.config, "gemma3n"), tensors(model, "gemma3n")
    third = arrays | {"altup_proj.weight": np.ones((3, 64, 64), np.float32)}
    path = write_gguf(tmp_path / "x.gguf", said, third)
    with pytest.raises(CheckpointError, match=r"altup_proj.*expected shape \[2, 64, 64\]"):
        Weights.open(path)
    less = {name: array for name, array in arrays.items() if name != "altup_unembd_proj.weight"}
    path = write_gguf(tmp_path / "y.gguf", said, less)
    with pytest.raises(CheckpointError, match=r"1 are missing: 'altup_unembd_proj.weight'"):
        Weights.open(path)


def test_tokens_beyond_the_models_own_table_read_zeros(write_gguf: Write, tmp_path: Path) -> None:
    """The converter adds rows of zeros to the table, and llama.cpp reads these."""
    model = random_model("Gemma3nText", **WIDE | {"vocab_size_per_layer_input": 90})
    said, arrays = metadata(model.config, "gemma3n"), tensors(model, "gemma3n")
    table = arrays["per_layer_token_embd.weight"]
    assert len(table) == VOCAB
    assert not table[90:].any()
    config = GgufModel(write_gguf(tmp_path / "x.gguf", said, arrays)).config
    assert config.operation(0, PerLayer).rows == VOCAB


BASE: dict[str, Any] = {
    "block_count": 30,
    "context_length": 32768,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.sliding_window": 512,
    "rope.freq_base": 1e6,
    "embedding_length_per_layer_input": 8,
    "altup.active_idx": 0,
    "altup.num_inputs": 4,
}


def parse(**changes: Any) -> ModelConfig:
    said = BASE | {name.replace("__", "."): x for name, x in changes.items()}
    raw = {f"gemma3n.{key}": x for key, x in said.items()} | {"general.architecture": "gemma3n"}
    given = {"vocab_size": 50, "tie_word_embeddings": True, "laurel_rank": 7}
    return parse_gguf(raw, given, None, "x.gguf")


def test_what_is_not_said_is_as_llama_cpp_has_it() -> None:
    config = parse()
    assert [layer.window is None for layer in config.layers] == [i % 5 == 4 for i in range(30)]
    assert [layer.keys_of for layer in config.layers] == [None] * 20 + ([18] * 4 + [19]) * 2
    sparse = [config.find(i, SparseMlp) for i in range(30)]
    assert [None if x is None else x.sparsity for x in sparse] == [0.95] * 10 + [None] * 20
    assert (config.altup, config.operation(0, Laurel).rank) == (AltUp(4), 7)
    assert (config.logit_cap, config.rotary.theta) == (30.0, 1e6)
    assert config.local_rotary is not None
    assert (config.local_rotary.theta, config.local_rotary.style) == (1e4, "half")


def test_what_is_said_counts() -> None:
    config = parse(
        block_count=4,
        attention__sliding_window_pattern=np.array([True, False, True, False]),
        attention__shared_kv_layers=2,
        activation_sparsity_scale=np.array([1.6448535, -np.inf, -0.5244005, 0.0], np.float32),
        feed_forward_length=np.array([96, 96, 64, 32]),
        final_logit_softcapping=12.0,
        rope__freq_base_swa=77.0,
    )
    assert [layer.window for layer in config.layers] == [512, None, 512, None]
    assert [layer.keys_of for layer in config.layers] == [None, None, 0, 1]
    sparse = [config.find(i, SparseMlp) for i in range(4)]
    assert [None if x is None else x.sparsity for x in sparse] == [0.95, None, 0.3, 0.5]
    assert [None if x is None else x.inner for x in sparse] == [96, None, 64, 32]
    assert config.local_rotary is not None
    assert (config.logit_cap, config.local_rotary.theta) == (12.0, 77.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"altup__active_idx": 1}, "altup.active_idx: expected 0"),
        ({"altup__num_inputs": 5}, "altup: expected 2 to 4 streams, got 5"),
        (
            {"attention__sliding_window_pattern": np.array([1, 0])},
            "sliding_window_pattern: expected a list of 30 of true or false",
        ),
        ({"attention__sliding_window_pattern": 5}, "expected a list of 30 of true or false"),
        (
            {"activation_sparsity_scale": np.zeros(3, np.float32)},
            "activation_sparsity_scale: expected a list of 30 numbers, one a layer",
        ),
        (
            {"activation_sparsity_scale": np.full(30, np.nan, np.float32)},
            "activation_sparsity_scale: expected a list of 30 numbers",
        ),
        ({"activation_sparsity_scale": 1.5}, "activation_sparsity_scale: expected a list of 30"),
        ({"altup__more": 2}, "altup.more: this field of the metadata is not known here"),
    ],
)
def test_metadata_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(**changes)
