"""The GGUF reader: values against the gguf package's writer, and files that lie."""

import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

from monolane.errors import CheckpointError, MonolaneError
from monolane.model import Blocks, GgufFile, Weights
from monolane.model._gguf_types import GGML_TYPES, IK_TYPES, UNREAD_TYPES

Write = Callable[..., Path]
U32, U64, I32, F32, TEXT, LIST = 4, 10, 5, 6, 8, 9


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def build(
    fields: list[bytes] = [],  # noqa: B006
    infos: list[bytes] = [],  # noqa: B006
    data: bytes = b"",
    *,
    version: int = 3,
    tensors: int | None = None,
    count: int | None = None,
) -> bytes:
    """A file, byte by byte, so that any of it can be wrong."""
    head = b"GGUF" + struct.pack("<I", version)
    head += struct.pack("<QQ", len(infos) if tensors is None else tensors, count or len(fields))
    head += b"".join(fields) + b"".join(infos)
    return head + b"\0" * (-len(head) % 32) + data


def number(name: str, value: int, kind: int = U32) -> bytes:
    return text(name) + struct.pack("<I", kind) + struct.pack("<I" if kind == U32 else "<Q", value)


def info(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


def test_types_are_those_of_the_package() -> None:
    for place, kind in GGML_TYPES.items():
        theirs = gguf.GGMLQuantizationType(place)
        assert kind.name == theirs.name
        assert (kind.block, kind.bytes) == gguf.GGML_QUANT_SIZES[theirs]
    named = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    assert named == {place: kind.name for place, kind in GGML_TYPES.items()} | UNREAD_TYPES


def test_what_the_package_writes_is_read(tmp_path: Path, write_gguf: Write) -> None:
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((4, 64)).astype(np.float32)
    packed = gguf.quants.quantize(floats, gguf.GGMLQuantizationType.Q5_1)
    fields = {
        "general.architecture": "llama",
        "a.flag": True,
        "a.whole": 7,
        "a.less": -7,
        "a.real": 1e-5,
        "a.words": ["one", "zwei", "", "四"],
        "a.numbers": [1.5, -2.25],
        "a.ids": [3, 1, 2],
    }
    path = write_gguf(
        tmp_path / "x.gguf",
        fields,
        {"f32": floats, "f16": floats.astype(np.float16), "q": ("Q5_1", packed), "one": floats[0]},
        bfloat16={"bf": floats.astype(ml_dtypes.bfloat16)},
    )
    file = GgufFile(path)
    assert {
        key: list(value) if isinstance(value, np.ndarray) or key == "a.words" else value
        for key, value in file.metadata.items()
    } == fields
    assert file.metadata["a.words"][1] == "zwei"
    assert len(file.metadata["a.words"]) == 4
    f32, f16, q, one, bf = (file[name] for name in ("f32", "f16", "q", "one", "bf"))
    assert isinstance(f32, np.ndarray)
    assert isinstance(q, Blocks)
    np.testing.assert_array_equal(f32, floats)
    np.testing.assert_array_equal(f16, floats.astype(np.float16))
    np.testing.assert_array_equal(bf, floats.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(one, floats[0])
    assert (q.format, q.shape) == ("q5_1", (4, 64))
    theirs = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q5_1)
    np.testing.assert_array_equal(q.widened(), theirs)
    # Views of the mapping, not copies.
    assert not f32.flags.owndata
    assert not q.data.flags.writeable


def test_an_alignment_of_the_files_own_is_kept(tmp_path: Path) -> None:
    head = build([number("general.alignment", 64)], [info("x", (4,), 0, 0)])
    data = b"\0" * (-len(head) % 64) + np.arange(4, dtype=np.float32).tobytes()
    (tmp_path / "x.gguf").write_bytes(head + data)
    np.testing.assert_array_equal(GgufFile(tmp_path / "x.gguf")["x"], np.arange(4.0))


BIG = 1 << 62
WORDS = text("a.words") + struct.pack("<II", LIST, TEXT)
# What is wrong -> the file, and what the message says.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "expected at least 1 bytes, got 0; the file is truncated"),
    "another format": (b"PK\3\4" + b"\0" * 60, r"expected a GGUF file, .*got b'PK"),
    "cut in the header": (b"GGUF\3\0", "the header: it is truncated"),
    "cut before the counts": (b"GGUF\3\0\0\0\1", "the header: expected 8 bytes from byte 8 on"),
    "version 1": (build(version=1), "version: expected 2 or 3, got 1; convert the model again"),
    "a newer version": (build(version=4), "version: expected 2 or 3, got 4, of a newer format"),
    "big-endian": (build(version=3 << 24), "expected 2 or 3, little-endian, got 3, big-endian"),
    "many tensors": (build(tensors=BIG), "number of tensors: expected at most 0, .* got 46116"),
    "many fields": (build(count=BIG), "number of metadata fields: expected at most 0"),
    "a long name": (build([struct.pack("<Q", BIG) + b"x" * 9]), "field 0 of 1: expected a text of"),
    "a name cut": (build([struct.pack("<Q", 900) + b"x" * 9]), "expected 900 bytes from byte 32"),
    "a name that is no text": (
        build([struct.pack("<Q", 2) + b"\xff\xff" + struct.pack("<II", U32, 1)]),
        "field 0 of 1: expected a text in UTF-8",
    ),
    "an unknown value type": (
        build([text("a.b") + struct.pack("<II", 13, 0)]),
        "metadata 'a.b': expected a value type from 0 to 12, got 13",
    ),
    "a field twice": (
        build([number("a.b", 1), number("a.b", 2)]),
        "'a.b': this field occurs twice",
    ),
    "a long list": (
        build([text("a.b") + struct.pack("<IIQ", LIST, U32, BIG)]),
        "metadata 'a.b': number of items: expected at most",
    ),
    "many texts": (build([WORDS + struct.pack("<Q", BIG)]), "'a.words': number of items: expected"),
    "texts cut": (
        build([WORDS + struct.pack("<QQQQ", 2, 900, 0, 0)]),
        "'a.words': item 1 of 2: the file ends",
    ),
    "a last text cut": (
        build([WORDS + struct.pack("<QQ", 1, 900)]),
        "'a.words': its last items lie behind the end",
    ),
    "a list of lists": (
        build([text("a.b") + struct.pack("<IIQ", LIST, LIST, 1)]),
        "'a.b': expected a list of numbers or texts, got a list of lists",
    ),
    "an odd alignment": (build([number("general.alignment", 48)]), "alignment': expected a power"),
    "no alignment": (build([number("general.alignment", 0)]), "alignment': expected a power"),
    "no sizes": (build([], [info("x", (), 0, 0) + b"\0" * 8]), "'x': expected 1 to 4 sizes, got 0"),
    "many sizes": (build([], [info("x", (1,) * 5, 0, 0)]), "'x': expected 1 to 4 sizes, got 5"),
    "a size of nought": (build([], [info("x", (0,), 0, 0)]), "'x': expected sizes of 1 and more"),
    "huge sizes": (build([], [info("x", (BIG, BIG), 0, 0)]), "'x': its data ends at byte"),
    "data cut": (
        build([], [info("x", (8,), 0, 0)], b"\0" * 31),
        "'x': its data ends at byte 96, the file at 95",
    ),
    "half a block": (build([], [info("x", (33,), 8, 0)], b"\0" * 99), "columns in multiples of 32"),
    "a crooked offset": (
        build([], [info("x", (1,), 0, 4)], b"\0" * 99),
        "'x': expected an offset in multiples of 32, got 4",
    ),
    "a tensor twice": (
        build([], [info("x", (8,), 0, 0)] * 2, b"\0" * 99),
        "'x': a tensor of this name occurs twice",
    ),
    "tensors over each other": (
        build([], [info("x", (16,), 0, 0), info("y", (8,), 0, 32)], b"\0" * 99),
        "'y': it begins at byte 128, within tensor 'x', which ends at 160",
    ),
    "a type that is not read": (
        build([], [info("x", (256,), 41, 0)], b"\0" * 199),
        "'x': expected a type among F32, .* got Q1_0; take another file of this model",
    ),
    "a type that nobody knows": (build([], [info("x", (256,), 500, 0)]), "got number 500"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_with_its_field(case: str, tmp_path: Path) -> None:
    raw, message = HOSTILE[case]
    (tmp_path / "x.gguf").write_bytes(raw)
    with pytest.raises(CheckpointError, match=message) as error:
        GgufFile(tmp_path / "x.gguf")
    assert str(tmp_path / "x.gguf") in str(error.value)


@pytest.mark.parametrize("kind", UNREAD_TYPES.values())
def test_every_type_that_is_not_read_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    place = next(place for place, name in UNREAD_TYPES.items() if name == kind)
    (tmp_path / "x.gguf").write_bytes(build([], [info("x", (256,), place, 0)], b"\0" * 4096))
    with pytest.raises(CheckpointError, match=f"got {kind}; take another file of this model"):
        GgufFile(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("place", "kind"), [(139, "IQ4_K"), (144, "IQ4_KS"), (212, "Q4_K_R4"), (399, "Q8_K_R8")]
)
def test_types_of_ik_llama_cpp_are_refused_by_name(place: int, kind: str, tmp_path: Path) -> None:
    assert IK_TYPES[place] == kind
    (tmp_path / "x.gguf").write_bytes(build([], [info("x", (256,), place, 0)], b"\0" * 4096))
    with pytest.raises(CheckpointError, match=f"got {kind}, which ik_llama.cpp alone reads; take"):
        GgufFile(tmp_path / "x.gguf")
    assert not IK_TYPES.keys() & {kind.value for kind in gguf.GGMLQuantizationType}


def test_a_text_that_is_no_utf8_is_named_when_it_is_read(tmp_path: Path) -> None:
    raw = build([WORDS + struct.pack("<Q", 1) + struct.pack("<Q", 1) + b"\xff"])
    (tmp_path / "x.gguf").write_bytes(raw)
    words = GgufFile(tmp_path / "x.gguf").metadata["a.words"]
    with pytest.raises(CheckpointError, match=r"'a.words': item 0: expected a text in UTF-8"):
        list(words)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none.gguf: cannot be read: No such file"):
        GgufFile(tmp_path / "none.gguf")


def use(path: Path) -> None:
    """Read everything that a file claims to hold."""
    file = GgufFile(path)
    for value in file.metadata.values():
        if not isinstance(value, int | float | str):
            for _ in value:
                pass
    for name in file:
        found = file[name]
        (found.data if isinstance(found, Blocks) else found).view(np.uint8).max()
    Weights.open(path)


@pytest.mark.parametrize("seed", range(4))
def test_no_damage_crashes_the_reader(seed: int, tmp_path: Path, llama_gguf: Path) -> None:
    """Bits flipped, bytes of counts set high, cuts, pieces doubled: an error of ours, or a reading.

    The address space is bounded while it reads: nothing is made that the file has no bytes for.
    """
    whole = llama_gguf.read_bytes()
    header = whole.index(b"blk.0.attn_q.weight") + 2000  # most damage should hit what is parsed
    rng = np.random.default_rng(seed)
    path = tmp_path / "damaged.gguf"
    ours, read = 0, 0
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), hard))
    try:
        for _ in range(250):
            raw = bytearray(whole)
            for _ in range(rng.integers(1, 4)):
                at = int(rng.integers(8, header))
                match rng.integers(5):
                    case 0:
                        raw[at] ^= 1 << int(rng.integers(8))
                    case 1:
                        raw[at] = int(rng.integers(256))
                    case 2:
                        raw[at : at + 8] = struct.pack("<Q", int(rng.integers(1 << 62)))
                    case 3:
                        raw[at:at] = raw[at : at + int(rng.integers(1, 64))]
                    case 4:
                        del raw[at + int(rng.integers(len(raw) - at)) :]
            path.write_bytes(raw)
            try:
                use(path)
                read += 1
            except MonolaneError as error:
                assert "damaged.gguf" in str(error)
                ours += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert ours > 100
    assert read > 5


def test_the_reader_allocates_no_more_than_the_file_has(tmp_path: Path, llama_gguf: Path) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        Weights.open(llama_gguf)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # What is made: names and places of tensors, some hundred bytes each; never a weight.
    tensors: Any = GgufFile(llama_gguf)
    assert peak < 8192 * len(tensors)
