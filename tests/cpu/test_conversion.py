"""Weights that are not stored as they are used: converted by the workers that will read them."""

import gc
import re
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monolane._core import kernels
from monolane.cpu import CpuExecutor
from monolane.cpu import _native as native_module
from monolane.cpu._pages import release_pages
from monolane.errors import CheckpointError
from monolane.model import (
    NOW,
    Checkpoint,
    Head,
    LayerConfig,
    ModelConfig,
    Reduce,
    Role,
    SafetensorsFile,
    Weights,
    lane_shape,
    layer_roles,
    write_safetensors,
)

DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
}
IDS = np.random.default_rng(3).integers(90, size=70)


def make_weights(stored: str, **changes: Any) -> Weights:
    """Two lanes that meet, and a vocabulary that no number of workers divides."""
    sizes: dict[str, Any] = {
        "family": "laneformer",
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 16,
        "vocab_size": 90,
        "max_positions": 100,
        "num_lanes": 2,
        "layers": (LayerConfig(NOW, NOW), LayerConfig(NOW, Reduce(1))),
        "head": Head.MEAN,
        "dtype": stored,
    }
    config = ModelConfig(**sizes | changes)
    rng = np.random.default_rng(0)

    def make(role: Role) -> np.ndarray:
        return rng.normal(scale=0.15, size=lane_shape(config, role)).astype(DTYPES[stored])

    outer = {role: make(role) for role in (Role.EMBEDDING, Role.FINAL_NORM, Role.HEAD)}
    layers = tuple({role: make(role) for role in layer_roles(config)} for _ in config.layers)
    return Weights(config, outer, layers)


def recast(weights: Weights, dtype: Any) -> Weights:
    """What numpy makes of the matrices that are multiplied."""

    def cast(role: Role, array: np.ndarray) -> np.ndarray:
        kept = role is Role.EMBEDDING or "norm" in role.value
        return array if kept else array.astype(dtype)

    outer = {role: cast(role, array) for role, array in weights.outer.items()}
    layers = [{role: cast(role, a) for role, a in layer.items()} for layer in weights.layers]
    return Weights(weights.config, outer, tuple(layers))


def run(weights: Weights, dtype: str, **options: Any) -> np.ndarray:
    return CpuExecutor(weights, dtype, context=100, slots=1, **options).logits(0, IDS)


@pytest.mark.parametrize("isa", kernels.supported())
@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        ("float32", "bfloat16"),
        ("float32", "float16"),
        ("float16", "bfloat16"),
        ("bfloat16", "float16"),
    ],
)
def test_converted_as_numpy_does(stored: str, dtype: str, isa: str) -> None:
    weights = make_weights(stored)
    converted = run(weights, dtype, isa=isa, workers=3)
    np.testing.assert_array_equal(
        converted, run(recast(weights, DTYPES[dtype]), dtype, isa=isa, workers=3)
    )


@pytest.mark.parametrize("head", [Head.MEAN, Head.CONCAT, Head.VOCAB_PARALLEL])
@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_every_row_is_converted_by_whoever_owns_it(dtype: str, head: Head) -> None:
    weights = make_weights("float32", head=head)
    alone = run(weights, dtype, workers=1)
    for workers in (2, 3, 4, 8):
        np.testing.assert_array_equal(run(weights, dtype, workers=workers), alone)


def test_what_is_stored_as_it_is_used_is_not_copied() -> None:
    weights = make_weights("bfloat16")
    for dtype in ("auto", "bfloat16", "float32"):
        assert CpuExecutor(weights, dtype, context=9, slots=1).converted_bytes == 0
    matrices = sum(a.size for layer in weights.layers for r, a in layer.items() if a.ndim == 3)
    matrices += weights.outer[Role.HEAD].size
    copied = CpuExecutor(weights, "float16", context=9, slots=1, workers=1).converted_bytes
    assert 2 * matrices <= copied < 2 * matrices + 64 * 2 * 7 * 2 + 64


def test_no_token_before_all_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_module, "convert", lambda *_: None)
    executor = CpuExecutor(make_weights("float32"), "int8", context=9, slots=1)
    with pytest.raises(RuntimeError, match="expected every matrix to be converted"):
        executor.logits(0, [1])


def test_what_was_converted_is_let_go() -> None:
    weights = make_weights("float32")
    kept, gone = (weakref.ref(weights.outer[role]) for role in (Role.EMBEDDING, Role.HEAD))
    executor = CpuExecutor(weights, "int8", context=9, slots=1)
    del weights
    gc.collect()
    assert gone() is None
    assert kept() is not None
    executor.logits(0, [1, 2])


def test_a_weight_that_has_no_code_is_named() -> None:
    weights = make_weights("float32")
    weights.layers[1][Role.DOWN][1, 5, 7] = np.inf
    with pytest.raises(CheckpointError, match=r"^down: expected finite weights.*got inf"):
        run(weights, "int8", workers=2)


def mapped(path: Path, megabytes: int) -> np.ndarray:
    """An array in a mapped file, all of it read."""
    values = np.arange(megabytes << 18, dtype=np.float32)
    write_safetensors(path, [("x", values[:1024]), ("y", values)])
    array = SafetensorsFile(path)["y"]
    assert array.sum(dtype=np.float64) > 0
    return array


def resident_kb(path: Path) -> int:
    """Resident size of the mappings of a file."""
    maps = Path("/proc/self/smaps").read_text()
    parts = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", maps)
    found = [re.search(r"Rss:\s+(\d+)", part) for part in parts if str(path) in part]
    assert found
    return sum(int(match[1]) for match in found if match)


def test_pages_are_given_back_and_can_be_read_again(tmp_path: Path) -> None:
    array = mapped(tmp_path / "x.safetensors", 16)
    assert resident_kb(tmp_path / "x.safetensors") >= 16 << 10
    release_pages(array.reshape(-1, 1024)[1:])
    assert resident_kb(tmp_path / "x.safetensors") <= 64  # the ends, shared with other tensors
    np.testing.assert_array_equal(array, np.arange(16 << 18, dtype=np.float32))


def test_memory_that_no_file_holds_keeps_its_pages() -> None:
    import mmap

    for owner in (bytearray(1 << 20), mmap.mmap(-1, 1 << 20)):
        array = np.frombuffer(owner, np.uint8)
        array[:] = 7
        release_pages(array)
        assert (array == 7).all()
        release_pages(array[::2])


def test_a_converted_model_leaves_its_file(tmp_path: Path) -> None:
    """The file's pages and the copies are not resident together: half of the promise on memory."""
    weights = make_weights("float32", hidden_size=512, intermediate_size=4096, head_dim=64)
    tensors = {f"{i}.{r.value}": a for i, d in enumerate(weights.layers) for r, a in d.items()}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, list(tensors.items()))
    size_kb = path.stat().st_size >> 10
    file = Checkpoint.open(tmp_path)
    layers = [{r: file[f"{i}.{r.value}"] for r in d} for i, d in enumerate(weights.layers)]
    executor = CpuExecutor(
        Weights(weights.config, weights.outer, tuple(layers)), "int8", context=9, slots=1
    )
    assert resident_kb(path) < size_kb // 8
    assert executor.converted_bytes > size_kb * 1024 // 4


def huge_kb() -> int:
    """Size of all memory of this process for which huge pages are wished: VmFlags has hg."""
    parts = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    wished = [p for p in parts if re.search(r"VmFlags:.*\bhg\b", p)]
    return sum(int(match[1]) for p in wished if (match := re.search(r"Size:\s+(\d+)", p)))


def test_copies_lie_in_huge_pages_if_the_system_has_them() -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists():
        pytest.skip("this kernel has no transparent huge pages")
    weights = make_weights("float32", intermediate_size=8192)
    before = huge_kb()
    executor = CpuExecutor(weights, "int8", context=9, slots=1)
    assert huge_kb() - before >= executor.converted_bytes >> 10 > 4096
