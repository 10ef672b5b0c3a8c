"""A GGUF file as a model: tensors by role, parts, and what is no model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from monolane.errors import CheckpointError, ModelNotFoundError
from monolane.model import (
    Blocks,
    Checkpoint,
    GgufModel,
    Role,
    Weights,
    read_config,
)

Write = Callable[..., Path]
Tiny = tuple[dict[str, Any], dict[str, Any]]


def test_weights_are_views_by_role(tiny_llama: Tiny, write_gguf: Write, tmp_path: Path) -> None:
    fields, tensors = tiny_llama
    half = tensors["blk.1.ffn_up.weight"].astype(np.float16)
    q8 = gguf.quants.quantize(tensors["token_embd.weight"], gguf.GGMLQuantizationType.Q8_0)
    mixed = tensors | {"blk.1.ffn_up.weight": half, "token_embd.weight": ("Q8_0", q8)}
    path = write_gguf(tmp_path / "x.gguf", fields, mixed)
    weights = Weights.open(path)
    assert weights.config == read_config(path)
    assert weights.layers[1][Role.UP].dtype == np.float16
    np.testing.assert_array_equal(weights.layers[1][Role.UP][0], half)
    q_0 = weights.layers[0][Role.Q]
    np.testing.assert_array_equal(q_0[0], tensors["blk.0.attn_q.weight"])
    assert not q_0.flags.owndata
    embedding, head = (weights.quantized[role, None] for role in (Role.EMBEDDING, Role.HEAD))
    assert isinstance(embedding, Blocks)
    assert isinstance(head, Blocks)
    assert embedding.shape == (260, 64)
    assert head.shape == (1, 260, 64)
    assert np.shares_memory(embedding.data, head.data)  # the tied head is the same bytes
    assert Role.EMBEDDING not in weights.outer
    widened = weights.dequantized().outer
    np.testing.assert_array_equal(widened[Role.HEAD][0], widened[Role.EMBEDDING])
    theirs = gguf.quants.dequantize(q8, gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(widened[Role.EMBEDDING], theirs)


def test_a_head_of_its_own_is_widened_by_itself(
    tiny_llama: Tiny, write_gguf: Write, tmp_path: Path
) -> None:
    fields, tensors = tiny_llama
    head = -tensors["token_embd.weight"]
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = {
        name: ("Q8_0", gguf.quants.quantize(array, kind))
        for name, array in (("token_embd.weight", -head), ("output.weight", head))
    }
    weights = Weights.open(write_gguf(tmp_path / "x.gguf", fields, tensors | blocks))
    assert not weights.config.tie_embeddings
    outer = weights.dequantized().outer
    np.testing.assert_array_equal(outer[Role.HEAD][0], -outer[Role.EMBEDDING])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"blk.1.ffn_up.weight": None},
            "expected 20 tensors, 1 are missing: 'blk.1.ffn_up.weight'",
        ),
        ({"blk.0.attn_q.bias": np.zeros(64, np.float32)}, "got 1 more: 'blk.0.attn_q.bias'"),
        ({"blk.0.ffn_up.weight": np.zeros((9, 64), np.float32)}, r"expected shape \[96, 64\] from"),
        (
            {"blk.0.attn_norm.weight": ("Q8_0", np.zeros(68, np.uint8))},
            "'blk.0.attn_norm.weight': expected one of BF16, F16, F32, got Q8_0",
        ),
        (
            {"rope_freqs.weight": np.zeros(8, np.float16)},
            "'rope_freqs.weight': expected a list of F",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    changes: dict[str, Any], message: str, tiny_llama: Tiny, write_gguf: Write, tmp_path: Path
) -> None:
    fields, tensors = tiny_llama
    kept = {name: x for name, x in (tensors | changes).items() if x is not None}
    with pytest.raises(CheckpointError, match=message):
        Weights.open(write_gguf(tmp_path / "x.gguf", fields, kept))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"},
            "general.type: expected a model, got a LoRA adapter; merge it",
        ),
        (
            {"general.architecture": "clip", "general.type": "mmproj"},
            "got the image or sound encod",
        ),
        ({"general.architecture": "clip"}, "general.architecture: expected a model, got the image"),
    ],
)
def test_files_that_hold_no_model_say_what_they_are(
    fields: dict[str, Any], message: str, write_gguf: Write, tmp_path: Path
) -> None:
    tensors = {"v.blk.0.attn_q.weight": np.zeros((4, 4), np.float32)}
    with pytest.raises(CheckpointError, match=message):
        GgufModel(write_gguf(tmp_path / "mmproj.gguf", fields, tensors))


def parts(tiny: Tiny, write: Write, folder: Path, **changes: Any) -> list[Path]:
    """Write a model in three parts, as llama-gguf-split does."""
    fields, tensors = tiny
    names, count = list(tensors), 3
    paths = []
    for i in range(count):
        said = {"split.no": i, "split.count": count, "split.tensors.count": len(names)} | changes
        held = {name: tensors[name] for name in names[i::count]}
        path = folder / f"x-{i + 1:05}-of-{count:05}.gguf"
        paths.append(write(path, (fields if i == 0 else {}) | said, held))
    return paths


def test_parts_are_found_beside_the_first(
    tiny_llama: Tiny, write_gguf: Write, tmp_path: Path
) -> None:
    weights = Weights.open(parts(tiny_llama, write_gguf, tmp_path)[0])
    whole = Weights.open(write_gguf(tmp_path / "x.gguf", *tiny_llama))
    assert weights.config == whole.config
    for found, wanted in zip(weights.layers, whole.layers, strict=True):
        assert found.keys() == wanted.keys()
        for role, array in wanted.items():
            np.testing.assert_array_equal(found[role], array)


def test_parts_that_are_not_whole_are_refused(
    tiny_llama: Tiny, write_gguf: Write, tmp_path: Path
) -> None:
    first, second, third = parts(tiny_llama, write_gguf, tmp_path)
    with pytest.raises(CheckpointError, match=r"got part 00002; pass x-00001-of-00003.gguf"):
        GgufModel(second)
    kept = third.read_bytes()
    third.unlink()
    with pytest.raises(ModelNotFoundError, match=r"x-00003-of-00003.gguf: expected 3 parts, this"):
        GgufModel(first)
    third.write_bytes(second.read_bytes())
    with pytest.raises(CheckpointError, match=r"split.count: expected 2, 3, got 1, 3; the parts"):
        GgufModel(first)
    third.write_bytes(kept)
    renamed = first.rename(tmp_path / "y.gguf")
    with pytest.raises(CheckpointError, match=r"expected the name of a part, NAME-00001-of-00003"):
        GgufModel(renamed)
    # A count that the tensors do not have: a part of another model.
    again = parts(tiny_llama, write_gguf, tmp_path, **{"split.tensors.count": 99})[0]
    with pytest.raises(CheckpointError, match=r"split.tensors.count: expected 99 tensors in all"):
        GgufModel(again)


def test_a_folder_is_asked_for_where_a_file_does_not_do(llama_gguf: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a folder in Hub layout here, got a file"):
        Checkpoint.open(llama_gguf)
