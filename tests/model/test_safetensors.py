"""The file reader: against the safetensors library, against damaged files, against hostile ones."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from monolane.errors import CheckpointError
from monolane.model import SafetensorsFile, write_safetensors

SLOW_FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def write_raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(begin: int = 0, end: int = 8, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "a": rng.normal(size=(3, 5)).astype(np.float32),
        "b.half": rng.normal(size=(7,)).astype(np.float16),
        "c": np.arange(6, dtype=np.int64).reshape(1, 2, 3),
        "scalar": np.array(3.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"who": "library"})
    read = SafetensorsFile(tmp_path / "x.safetensors")
    assert read.metadata == {"who": "library"}
    assert read.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array, strict=True)


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tensors = {
        "bytes": rng.integers(0, 255, 3).astype(np.uint8),
        "half": rng.normal(size=(5, 3)).astype(ml_dtypes.bfloat16),
        "transposed": rng.normal(size=(4, 6)).astype(np.float32).T,
        "scalar": np.array(2, np.float32),
    }
    path = tmp_path / "x.safetensors"
    write_safetensors(path, tensors.items())
    theirs, ours = load_file(path), SafetensorsFile(path)
    for name, array in tensors.items():
        np.testing.assert_array_equal(ours[name], array, strict=True)
        np.testing.assert_array_equal(theirs[name].view(array.dtype), array)
        begin = ours.entries[name].begin
        assert begin % array.dtype.itemsize == 0
    assert min(item.begin for item in ours.entries.values()) % 64 == 0


def test_views_are_of_the_mapping_and_read_only(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, [("a", np.arange(4, dtype=np.float32))])
    view = SafetensorsFile(path)["a"]
    assert not view.flags.owndata
    assert not view.flags.writeable
    np.testing.assert_array_equal(view, [0, 1, 2, 3])  # the file object is gone, its mapping is not


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{not json", b"", "the header is not valid JSON"),
        (b"\xff\xff", b"", "the header is not valid JSON"),
        (b"[]", b"", "expected a JSON object as header"),
        (b"[" * 50_000 + b"]" * 50_000, b"", "the header is not valid JSON"),
        (b'{"a":NaN}', b"", "NaN is not JSON"),
        (b'{"a":' + b"1" * 5000 + b"}", b"", "the header is not valid JSON"),
        (b'{"a":{},"a":{}}', b"", "a name occurs twice"),
        ({"__metadata__": {"a": 1}}, b"", "expected __metadata__ to map names to strings"),
        ({"__metadata__": None}, b"", "expected __metadata__"),
        ({"w": 3}, b"", "tensor 'w': expected the fields dtype, shape and data_offsets"),
        ({"w": {"dtype": "F32"}}, b"", "tensor 'w': expected the fields"),
        ({"w": entry(dtype="F31")}, b"x" * 8, "tensor 'w': expected a dtype among BF16"),
        ({"w": entry(dtype=["F32"])}, b"x" * 8, "tensor 'w': expected a dtype among"),
        ({"w": entry(shape=[-2])}, b"x" * 8, "tensor 'w': expected a shape"),
        ({"w": entry(shape=[True, 2])}, b"x" * 8, "tensor 'w': expected a shape"),
        ({"w": entry(shape=[2.0])}, b"x" * 8, "tensor 'w': expected a shape"),
        ({"w": entry(shape=[1] * 9)}, b"x" * 8, "tensor 'w': expected a shape of at most 8 sizes"),
        ({"w": entry(0, 0, shape=[0, 1 << 63])}, b"", "tensor 'w': expected a shape"),
        ({"w": entry(shape=[1 << 40, 1 << 40])}, b"x" * 8, "tensor 'w': expected a shape"),
        (
            {"w": entry(8, 0)},
            b"x" * 8,
            "tensor 'w': expected data_offsets [begin, end], got [8, 0]",
        ),
        ({"w": entry(-8, 0)}, b"x" * 8, "tensor 'w': expected data_offsets"),
        ({"w": entry(0, 16, shape=[4])}, b"x" * 8, "the file is truncated"),
        ({"w": entry(0, 1 << 70)}, b"x" * 8, "the file is truncated"),
        ({"w": entry(0, 4)}, b"x" * 4, "tensor 'w': expected 8 bytes for shape [2] of F32, got 4"),
        ({"a": entry(0, 8), "b": entry(4, 12)}, b"x" * 12, "tensor 'b' overlaps tensor 'a'"),
        ({"a": entry(0, 8), "b": entry(0, 8)}, b"x" * 8, "tensor 'b' overlaps tensor 'a'"),
        (
            {"a": entry(0, 8), "b": entry(12, 20)},
            b"x" * 20,
            "before tensor 'b', belong to no tensor",
        ),
        ({"a": entry(0, 8)}, b"x" * 9, "expected the file to end at byte"),
    ],
)
def test_damage_is_named(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    path = write_raw(tmp_path / "x.safetensors", header, data)
    with pytest.raises(CheckpointError) as fault:
        SafetensorsFile(path)
    assert str(fault.value).startswith(f"{path}: ")
    assert message in str(fault.value)


@pytest.mark.parametrize("length", [3, 100_000_001, 1 << 63, (1 << 64) - 1])
def test_lying_header_lengths(tmp_path: Path, length: int) -> None:
    path = write_raw(tmp_path / "x.safetensors", b"{}", length=length)
    with pytest.raises(CheckpointError, match="expected a header of at most 2 bytes"):
        SafetensorsFile(path)


@pytest.mark.parametrize("content", [b"", b"1234567"])
def test_files_too_short_for_a_header(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="expected at least 8 bytes"):
        SafetensorsFile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="gone.safetensors: cannot be read: No such file"):
        SafetensorsFile(tmp_path / "gone.safetensors")


@given(cut=st.integers(0, 2000))
@SLOW_FILES
def test_truncation_anywhere_is_an_error(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, [(f"t{i}", np.full((i + 1, 4), i, np.float32)) for i in range(6)])
    whole = path.read_bytes()
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    with pytest.raises(CheckpointError, match="x.safetensors"):
        SafetensorsFile(path)


small = st.integers(-1, 40)
odd_entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "U8", "XX", 3, None]),
        "shape": st.lists(small | st.just(1 << 62), max_size=3) | st.integers(),
        "data_offsets": st.lists(small, min_size=2, max_size=3) | st.none(),
        "more": st.none(),
    },
)


@given(
    header=st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), odd_entries | st.none())
    | st.binary(max_size=40),
    data=st.binary(max_size=64),
    length=st.none() | st.integers(0, 1 << 64).map(lambda n: n % (1 << 64)),
)
@SLOW_FILES
def test_fuzzed_files_are_refused_or_read_as_the_library_reads_them(
    tmp_path: Path, header: Any, data: bytes, length: int | None
) -> None:
    path = write_raw(tmp_path / "x.safetensors", header, data, length)
    try:
        ours = SafetensorsFile(path)
    except CheckpointError:
        return
    with safetensors.safe_open(path, framework="numpy") as theirs:
        assert set(theirs.keys()) == ours.keys()
        for name, array in ours.items():
            if array.dtype != ml_dtypes.bfloat16:
                np.testing.assert_array_equal(theirs.get_tensor(name), array)


@given(data=st.binary(max_size=300), at=st.integers(0, 300), bits=st.integers(1, 255))
@SLOW_FILES
def test_flipped_bits_never_crash(tmp_path: Path, data: bytes, at: int, bits: int) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, [("a", np.frombuffer(data, np.uint8)), ("b", np.ones(3, np.float32))])
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= bits
    path.write_bytes(content)
    try:
        for array in SafetensorsFile(path).values():
            array.sum()
    except CheckpointError as error:
        assert str(path) in str(error)
