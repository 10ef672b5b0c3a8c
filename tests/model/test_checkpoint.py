import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from monolane.errors import CheckpointError
from monolane.model import Checkpoint, find_shards, write_checkpoint

TENSORS = {f"t{i}": np.full((4, 4), i, np.float32) for i in range(5)}  # 64 bytes each
INDEX = "model.safetensors.index.json"


def test_one_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TENSORS.items())
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    check_same(Checkpoint.open(tmp_path))


def test_shards_and_their_index(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TENSORS.items(), max_shard_bytes=128)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        INDEX,
    ]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == 5 * 64
    checkpoint = Checkpoint.open(tmp_path)
    check_same(checkpoint)
    assert checkpoint.file_of("t4").name == "model-00003-of-00003.safetensors"
    assert len({checkpoint.file_of(name) for name in checkpoint}) == 3


def check_same(checkpoint: Checkpoint) -> None:
    assert checkpoint.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(checkpoint[name], array, strict=True)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected model.safetensors, or shards with"):
        Checkpoint.open(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(CheckpointError, match="pytorch_model.bin is a pickle, which can run code"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (None, "weight_map: expected an object"),
        ({}, "weight_map: expected an object"),
        ({"t0": 3}, "tensor 't0': expected the name of a .safetensors file in this folder, got 3"),
        ({"t0": "../x.safetensors"}, "got '../x.safetensors'"),
        ({"t0": "/etc/x.safetensors"}, "got '/etc/x.safetensors'"),
        ({"t0": "x\0.safetensors"}, "expected the name of a .safetensors file"),
        ({"t0": "weights.bin"}, "got 'weights.bin'"),
        ({"t0": "gone.safetensors"}, "gone.safetensors: .* names this file, but it is not there"),
    ],
)
def test_bad_indexes(tmp_path: Path, weight_map: object, message: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(tmp_path)


def test_an_index_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(CheckpointError, match="expected JSON in UTF-8"):
        Checkpoint.open(tmp_path)


def test_an_index_may_be_longer_than_any_config(tmp_path: Path) -> None:
    """Qwen3-30B-A3B's has 1.7 MB: 48 layers of 128 experts of 3 matrices each."""
    names = [
        f"model.layers.{i // 128}.mlp.experts.{i % 128}.gate_proj.weight" for i in range(12_000)
    ]
    tensors = [(name, np.zeros(1, np.float32)) for name in names]
    write_checkpoint(tmp_path, tensors, max_shard_bytes=20_000)
    assert (tmp_path / INDEX).stat().st_size > 1 << 20
    assert set(Checkpoint.open(tmp_path)) == set(names)
    assert len(find_shards(tmp_path / INDEX)) == 3


def test_shards_and_index_of_two_checkpoints(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TENSORS.items(), max_shard_bytes=128)
    index = json.loads((tmp_path / INDEX).read_text())
    weight_map = index["weight_map"]
    changes = (
        ({**weight_map, "more": weight_map["t0"]}, "tensor 'more': expected in model-00001"),
        ({k: v for k, v in weight_map.items() if k != "t0"}, "'t0' is here, but .* says nowhere"),
        ({**weight_map, "t0": weight_map["t4"]}, "tensor 't0': expected in model-00003"),
    )
    for changed, message in changes:
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(CheckpointError, match=message):
            Checkpoint.open(tmp_path)


def test_weights_under_the_names_of_autogptq(tmp_path: Path) -> None:
    tensors = {"a": np.arange(3.0), "b": np.arange(2.0)}
    write_checkpoint(tmp_path, tensors.items())
    (tmp_path / "model.safetensors").rename(tmp_path / "gptq_model-4bit-128g.safetensors")
    assert Checkpoint.open(tmp_path).keys() == {"a", "b"}
    # Of two sizes in one folder, none is the folder's model.
    shutil.copy(
        tmp_path / "gptq_model-4bit-128g.safetensors", tmp_path / "gptq_model-8bit--1g.safetensors"
    )
    with pytest.raises(CheckpointError, match="expected model.safetensors, or shards with"):
        Checkpoint.open(tmp_path)


def test_shards_under_the_names_of_autogptq(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [("a", np.arange(9.0)), ("b", np.arange(9.0))], max_shard_bytes=72)
    index = tmp_path / "gptq_model-4bit-32g.safetensors.index.json"
    text = (tmp_path / "model.safetensors.index.json").read_text()
    index.write_text(text.replace("model-0", "gptq_model-4bit-32g-0"))
    (tmp_path / "model.safetensors.index.json").unlink()
    for path in sorted(tmp_path.glob("model-*")):
        path.rename(tmp_path / path.name.replace("model", "gptq_model-4bit-32g"))
    assert Checkpoint.open(tmp_path).keys() == {"a", "b"}
    assert find_shards(index) == {x.name for x in tmp_path.glob("gptq_model*.safetensors")}
    (tmp_path / "gptq_model-4bit-32g-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=f"{index.name} names this file, but it is not there"):
        Checkpoint.open(tmp_path)
