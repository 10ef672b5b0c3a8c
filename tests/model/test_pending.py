"""Tensors that are made when their turn to be written comes."""

import weakref
from pathlib import Path

import numpy as np
import pytest

from monolane.model import Checkpoint, PendingTensor, SafetensorsFile, write_checkpoint
from monolane.model import write_safetensors as write

DTYPES = (np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.float16))


def pending(made: list[str], alive: list[int]) -> list[PendingTensor]:
    """Nine tensors of mixed widths; ``made`` and ``alive`` record what happens."""
    seen: list[weakref.ref[np.ndarray]] = []

    def make(i: int) -> np.ndarray:
        made.append(f"t{i}")
        array = np.full((5, 3), i, DTYPES[i % 3])
        seen.append(weakref.ref(array))
        alive.append(sum(each() is not None for each in seen))
        return array

    return [
        PendingTensor(f"t{i}", DTYPES[i % 3], (5, 3), lambda i=i: make(i))  # type: ignore[misc]
        for i in range(9)
    ]


def check(found: SafetensorsFile | Checkpoint) -> None:
    assert sorted(found) == [f"t{i}" for i in range(9)]
    for i in range(9):
        np.testing.assert_array_equal(
            found[f"t{i}"], np.full((5, 3), i, DTYPES[i % 3]), strict=True
        )


def test_each_is_made_once_in_order_and_let_go(tmp_path: Path) -> None:
    made: list[str] = []
    alive: list[int] = []
    write(tmp_path / "x.safetensors", pending(made, alive))
    assert made == [f"t{i}" for i in range(9)]
    assert max(alive) <= 2  # one being made, the one before not yet let go
    check(SafetensorsFile(tmp_path / "x.safetensors"))


def test_the_file_is_that_of_tensors_in_memory(tmp_path: Path) -> None:
    write(tmp_path / "lazy", pending([], []))
    write(tmp_path / "plain", [(t.name, t.make()) for t in pending([], [])])
    assert (tmp_path / "lazy").read_bytes() == (tmp_path / "plain").read_bytes()


def test_shards_of_pending_tensors(tmp_path: Path) -> None:
    made: list[str] = []
    write_checkpoint(tmp_path, pending(made, []), max_shard_bytes=100)
    assert made == [f"t{i}" for i in range(9)]
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    check(Checkpoint.open(tmp_path))


def test_a_promise_that_is_not_kept_is_a_bug(tmp_path: Path) -> None:
    wrong = PendingTensor("t", np.dtype(np.int8), (4,), lambda: np.zeros(3, np.int8))
    with pytest.raises(AssertionError, match="t"):
        write(tmp_path / "x", [wrong])
