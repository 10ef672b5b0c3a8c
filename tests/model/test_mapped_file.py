"""Weights are of the file that was checked, and its numbers lie where C++ may read them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import CheckpointError
from monolane.executor_api import Guide
from monolane.model import (
    Heads,
    SafetensorsFile,
    Weights,
    parse_config,
    tensor_specs,
    write_checkpoint,
)
from monolane.model._mapped_file import MappedFile

RAW = {
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
GREEDY = SamplingParams(max_tokens=4, ignore_eos=True, temperature=0)


def write_folder(folder: Path) -> dict[str, np.ndarray]:
    """Write a random model; return its tensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(RAW))
    rng = np.random.default_rng(0)
    tensors = {
        spec.name: rng.normal(scale=0.3, size=spec.shape).astype(np.float32)
        for spec in tensor_specs(parse_config(RAW))
    }
    write_checkpoint(folder, list(tensors.items()))
    return tensors


def shift(path: Path, by: int) -> None:
    """Move the data of a safetensors file so many bytes, by spaces behind its header."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip() + b" " * 64
    header += b" " * ((by - 8 - len(header)) % 64)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


def touch(path: Path) -> None:
    """Have a file be of another time, however coarse the clock is."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


class Touching:
    """Allows every token, and touches a file once the second one is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def step(self, token_id: int | None) -> Guide:
        if token_id is not None:
            touch(self.path)
        return Guide(np.array([0xFFFFFFFF] * 3 + [1], np.uint32))


def test_a_file_that_is_another_by_name_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first one")
    mapped = MappedFile(path, 1)
    (tmp_path / "new").write_bytes(b"second")
    (tmp_path / "new").replace(path)
    mapped.check_unchanged()
    assert mapped.mapping[:] == b"first one"


@pytest.mark.parametrize("change", ["written", "cut"])
def test_a_file_that_was_written_to_is_told(tmp_path: Path, change: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first one")
    mapped = MappedFile(path, 1)
    if change == "cut":
        os.truncate(path, 3)
    else:
        with path.open("r+b") as file:
            file.write(b"F")
        touch(path)
    with pytest.raises(CheckpointError, match="expected the file that was opened"):
        mapped.check_unchanged()


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        MappedFile(path, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("when", ["before", "amid"])
def test_an_engine_says_that_its_weights_changed(tmp_path: Path, backend: str, when: str) -> None:
    write_folder(tmp_path)
    path = tmp_path / "model.safetensors"
    with Engine.load(tmp_path, backend, context=64) as engine:
        engine.generate([1, 2, 3], GREEDY)
        stream = engine.stream([1, 2, 3], GREEDY, Touching(path) if when == "amid" else None)
        if when == "before":
            touch(path)
        with pytest.raises(CheckpointError, match="written to since then"):
            stream.result()


def test_a_draft_models_files_are_watched_too(tmp_path: Path) -> None:
    for name in ("model", "draft"):
        write_folder(tmp_path / name)
    with Engine.load(tmp_path / "model", "cpu", context=64, draft=tmp_path / "draft") as engine:
        engine.generate([1, 2, 3], GREEDY)
        os.truncate(tmp_path / "draft" / "model.safetensors", 99)
        with pytest.raises(CheckpointError, match=r"draft.*written to since then"):
            engine.generate([1, 2, 3], GREEDY)


def test_heads_are_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their numbers are copied: what is written to amid that is no set of heads."""
    block = np.ones((32, 64), np.float32)
    square = np.ones((32, 32), np.float32)
    heads = Heads(block, block, square, square, np.arange(32, dtype=np.int32), 97)
    heads.write(tmp_path)
    Heads.open(tmp_path)
    read = SafetensorsFile.__getitem__

    def read_and_touch(self: SafetensorsFile, name: str) -> np.ndarray:
        touch(self.path)
        return read(self, name)

    monkeypatch.setattr(SafetensorsFile, "__getitem__", read_and_touch)
    with pytest.raises(CheckpointError, match="written to since then"):
        Heads.open(tmp_path)


@pytest.mark.parametrize("by", [0, 1, 2, 4])
def test_numbers_are_aligned_wherever_a_header_ends(tmp_path: Path, by: int) -> None:
    tensors = write_folder(tmp_path)
    shift(tmp_path / "model.safetensors", by)
    file = SafetensorsFile(tmp_path / "model.safetensors")
    for name, expected in tensors.items():
        assert file[name].flags.aligned
        assert np.array_equal(file[name], expected)
    copied = by % 4 != 0  # of float32; the others are views of the mapping
    assert all(array.flags.owndata == copied for array in file.values())
    weights = Weights.open(tmp_path)
    assert all(array.flags.aligned for array in weights.outer.values())


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_a_shifted_file_is_the_same_model(tmp_path: Path, dtype: str) -> None:
    write_folder(tmp_path)
    found = []
    for by in (0, 1):
        shift(tmp_path / "model.safetensors", by)
        with Engine.load(tmp_path, "cpu", dtype=dtype, context=64) as engine:
            found.append(engine.generate([1, 2, 3], GREEDY).token_ids)
    assert found[0] == found[1]
