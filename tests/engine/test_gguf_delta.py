"""GGUF files of Qwen3-Next and Qwen3.5: where rows of gated delta rules lie, in which blocks, and
what such files may hold besides. That their logits are the model's is in test_gguf.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from monolane import Engine
from monolane.errors import CheckpointError
from monolane.model import Blocks, GgufModel, Role, Weights
from monolane.model._gguf_types import GGML_TYPES

from .converted import metadata, tensors
from .gguf_cases import VOCAB
from .sizes import DELTA, HYBRID
from .test_gguf import TOKENS, blocks, quantized, random_model

Write = Callable[..., Path]
SMALL = DELTA | {"vocab_size": VOCAB, "hidden_size": 64}  # whole blocks of 32 in a row
# Rows of whole super-blocks, of 256 numbers.
WIDE = SMALL | {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "partial_rotary_factor": 0.25,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 64,
}
KINDS = [row.name for row in GGML_TYPES.values() if row.dtype is None]


def logits_of(path: Path, backend: str = "cpu", count: int = 20) -> np.ndarray[Any, Any]:
    with Engine.load(path, backend) as engine:
        return engine.logits(list(range(3, 3 + count)))


def in_blocks(kind: str, array: np.ndarray) -> np.ndarray:
    """Random blocks in an array's place."""
    packed = blocks(kind, (array.size // array.shape[-1], array.shape[-1]))
    return packed.reshape(*array.shape[:-1], -1)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_the_numbers_that_they_mean(
    kind: str, write_gguf: Write, tmp_path: Path
) -> None:
    """All matrices in one type, but for z, the gates and what is behind, which are in the next."""
    other = KINDS[(KINDS.index(kind) + 1) % len(KINDS)]
    model = random_model("Qwen3Next", **WIDE)
    stored: dict[str, Any] = tensors(model, "qwen3next")
    plain = dict(stored)
    for name, array in stored.items():
        if array.ndim < 2 or "ffn_gate_inp" in name or "conv1d" in name:
            continue
        apart = any(part in name for part in ("attn_gate", "ssm_ba", "ssm_out"))
        own = other if apart else kind
        stored[name] = (own, in_blocks(own, array))
        plain[name] = gguf.quants.dequantize(stored[name][1], gguf.GGMLQuantizationType[own])
    said = metadata(model.config, "qwen3next")
    path = write_gguf(tmp_path / "blocks.gguf", said, stored)
    weights = Weights.open(path)
    found = {role: weights.quantized[role, 0] for role in (Role.DELTA_QKV, Role.DELTA_Z)}
    assert [x.format for x in found.values() if isinstance(x, Blocks)] == [
        kind.lower(),
        other.lower(),
    ]
    gates = weights.layers[0][Role.DELTA_GATES]  # stay floats
    np.testing.assert_array_equal(gates[0], plain["blk.0.ssm_ba.weight"])
    logits = {
        "oracle": logits_of(path, "reference", TOKENS),
        "plain": logits_of(write_gguf(tmp_path / "x.gguf", said, plain), "reference", TOKENS),
        "cpu": logits_of(path, "cpu", TOKENS),
    }
    np.testing.assert_array_equal(logits["oracle"], logits["plain"])
    error = np.abs(logits["cpu"] - logits["oracle"])
    # As in test_gguf.py: activations are rounded, and some tokens go to other experts.
    assert 0 < np.median(error) < 0.05 * logits["oracle"].std()


@pytest.mark.parametrize("kind", [None, "Q8_0"])
def test_rows_by_key_heads_and_by_kinds_are_the_same(
    kind: str | None, write_gguf: Write, tmp_path: Path
) -> None:
    """The first files have one matrix for q, k, v and z, and say nothing of layers."""
    model = random_model("Qwen3Next", **SMALL)
    logits = {}
    for earlier in (True, False):
        stored: dict[str, Any] = tensors(model, "qwen3next", earlier)
        for name, array in stored.items():
            if any(part in name for part in ("attn_qkv", "attn_gate", "ssm_in")):
                stored[name] = quantized(array, kind)
        said = metadata(model.config, "qwen3next", earlier)
        path = write_gguf(tmp_path / f"{earlier}.gguf", said, stored)
        assert ("blk.0.ssm_in.weight" in stored) == earlier
        logits[earlier] = logits_of(path)
    np.testing.assert_array_equal(logits[True], logits[False])
    assert logits[True].std() > 0.5
    file = GgufModel(tmp_path / "False.gguf")
    weights = Weights.of_gguf(file)
    for role, name in ((Role.DELTA_QKV, "attn_qkv"), (Role.DELTA_Z, "attn_gate")):
        held = weights.quantized[role, 1] if kind else weights.layers[1][role]
        both = [
            x.data if isinstance(x, Blocks) else x for x in (held, file[f"blk.1.{name}.weight"])
        ]
        assert np.shares_memory(*both)  # used where it lies


def test_tiled_value_heads_are_used_where_they_lie(write_gguf: Write, tmp_path: Path) -> None:
    """Two value heads share each block of ssm_out's columns, so that these could not be moved."""
    sizes = {"hidden_size": 64, "linear_num_value_heads": 6, "linear_value_head_dim": 16}
    model = random_model("Qwen3_5Text", **HYBRID | {"vocab_size": VOCAB} | sizes)
    stored: dict[str, Any] = tensors(model, "qwen35")
    plain = dict(stored)
    names = {Role.DELTA_QKV: "attn_qkv", Role.DELTA_Z: "attn_gate", Role.DELTA_OUT: "ssm_out"}
    for name, array in stored.items():
        if any(part in name for part in (*names.values(), "ssm_alpha", "ssm_beta")):
            stored[name] = quantized(array, "Q8_0")
            kind = gguf.GGMLQuantizationType.Q8_0
            plain[name] = gguf.quants.dequantize(stored[name][1], kind)
    said = metadata(model.config, "qwen35")
    path = write_gguf(tmp_path / "blocks.gguf", said, stored)
    file = GgufModel(path)
    assert file.config.delta is not None
    assert file.config.delta.tiled
    weights = Weights.of_gguf(file)
    for role, name in names.items():
        held, there = weights.quantized[role, 0], file[f"blk.0.{name}.weight"]
        assert isinstance(held, Blocks)
        assert isinstance(there, Blocks)
        assert np.shares_memory(held.data, there.data)
    wanted = logits_of(write_gguf(tmp_path / "plain.gguf", said, plain), "reference")
    np.testing.assert_array_equal(logits_of(path, "reference"), wanted)
    error = np.abs(logits_of(path) - wanted)
    assert 0 < np.median(error) < 0.05 * wanted.std()  # activations are rounded


def test_blocks_that_predict_further_ahead_are_left_alone(
    write_gguf: Write, tmp_path: Path
) -> None:
    model = random_model("Qwen3Next", **SMALL)
    said, stored = metadata(model.config, "qwen3next"), tensors(model, "qwen3next")
    plain = logits_of(write_gguf(tmp_path / "plain.gguf", said, stored))
    last = {f"blk.4.{name[6:]}": x for name, x in stored.items() if name.startswith("blk.3.")}
    more = {"blk.4.nextn.eh_proj.weight": np.zeros((64, 128), np.float32)}
    counted = said | {
        "qwen3next.block_count": 5,
        "qwen3next.attention.recurrent_layers": [True, True, True, False, False],
    }
    ahead = counted | {"qwen3next.nextn_predict_layers": 1}
    path = write_gguf(tmp_path / "ahead.gguf", ahead, stored | last | more)
    np.testing.assert_array_equal(logits_of(path), plain)
    for name, fields in (("counted", counted), ("not counted", said)):
        path = write_gguf(tmp_path / f"{name}.gguf", fields, stored | last | more)
        with pytest.raises(CheckpointError, match=r"more: 'blk.4.*what these are for"):
            Weights.open(path)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("ssm_a", np.log(np.full(9, 3.0, np.float32)), r"below zero, -exp\(A_log\) .*, got 1.0986"),
        (
            "ssm_a",
            np.full(9, np.nan, np.float32),
            "'blk.1.ssm_a': expected numbers .*, got nan",
        ),
        ("ssm_a", np.full(9, -np.inf, np.float32), "expected numbers below zero, .*, got -inf"),
        ("ssm_conv1d.weight", np.zeros((177, 1, 4), np.float32), r"shape \[177, 4\] from the met"),
        ("attn_qkv.weight", np.zeros((294, 64), np.float32), r"expected shape \[177, 64\]"),
        ("attn_gate.weight", None, "1 are missing: 'blk.1.attn_gate.weight'"),
        ("ssm_in.weight", np.zeros((294, 64), np.float32), "got 1 more: 'blk.1.ssm_in.weight'"),
    ],
)
def test_tensors_that_are_otherwise_are_named(
    name: str, array: np.ndarray | None, message: str, write_gguf: Write, tmp_path: Path
) -> None:
    model = random_model("Qwen3Next", **SMALL)
    stored = {**tensors(model, "qwen3next"), f"blk.1.{name}": array}
    held = {key: x for key, x in stored.items() if x is not None}
    path = write_gguf(tmp_path / "x.gguf", metadata(model.config, "qwen3next"), held)
    with pytest.raises(CheckpointError, match=message):
        Weights.open(path)
