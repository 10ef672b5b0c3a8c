"""The table of formats, and the header that C++ reads it from."""

from pathlib import Path

import pytest

from monolane.errors import ConfigError
from monolane.model import ACTIVATIONS, FORMATS, STORED, WeightFormat, find_format, formats_header

CSRC = Path(__file__).parents[2] / "csrc"


def test_the_committed_header_is_the_emitted_one() -> None:
    assert (CSRC / "formats_abi.h").read_text() == formats_header(), "run: scripts/headers"


def test_bytes_of_a_row_count_its_scales() -> None:
    found = {name: find_format(name).row_bytes(3072) / 3072 for name in FORMATS}
    assert found == {
        "float32": 4,
        "bfloat16": 2,
        "float16": 2,
        "int8": 1 + 2 / 32,
        "int4": 0.5 + 2 / 32,
        "float8": 1 + 4 / 3072,
    }
    assert [row.code for row in FORMATS.values()] == [0, 1, 2, 3, 4, 5]
    assert {row.short for row in STORED.values()} == {"f32", "bf16", "f16"}
    assert all(row.activation in ACTIVATIONS for row in FORMATS.values())
    assert {name for name, row in FORMATS.items() if row.coded} == {"int8", "int4"}
    keys = {name: row.key_format.name for name, row in FORMATS.items()}
    assert keys["int8"] == keys["int4"] == "bfloat16"
    assert keys["float8"] == "float16"


def test_formats_with_minima_and_super_blocks_count_right() -> None:
    """Sizes of well-known blocks: GGUF's Q4_1 and Q4_K, and MXFP4."""
    q4_1 = WeightFormat(
        name="q4_1", short="q41", code=9, bits=4, group=32, scale_bits=16, minimum_bits=16
    )
    assert q4_1.row_bytes(256) == 8 * 20
    q4_k = WeightFormat(
        name="q4_k",
        short="q4k",
        code=9,
        bits=4,
        group=32,
        scale_bits=6,
        minimum_bits=6,
        super_block=256,
        super_bits=32,
    )
    assert q4_k.row_bytes(512) == 2 * 144
    mxfp4 = WeightFormat(name="mxfp4", short="mx4", code=9, bits=4, group=32, scale_bits=8)
    assert mxfp4.row_bytes(64) == 2 * 17
    with pytest.raises(ConfigError, match="multiple of 256, which share a scale, got 128"):
        q4_k.row_bytes(128)


def test_formats_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"dtype: expected one of float32, .*, got 'fp8'"):
        find_format("fp8")
    with pytest.raises(ConfigError, match="multiple of 32, which share a scale, got 40"):
        find_format("int4").row_bytes(40)
