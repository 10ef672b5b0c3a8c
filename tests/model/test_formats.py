"""The table of formats, and the header that C++ reads it from."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from monolane.errors import CheckpointError, ConfigError, RequestError
from monolane.model import (
    ACTIVATIONS,
    FORMATS,
    STORED,
    Blocks,
    WeightFormat,
    find_format,
    formats_header,
)

CSRC = Path(__file__).parents[2] / "csrc"


def test_the_committed_header_is_the_emitted_one() -> None:
    assert (CSRC / "abi/formats_abi.h").read_text() == formats_header(), "run: scripts/headers"


def test_bytes_of_a_row_count_its_scales() -> None:
    found = {name: find_format(name).row_bytes(3072) / 3072 for name in FORMATS}
    assert found == {
        "float32": 4,
        "bfloat16": 2,
        "float16": 2,
        "int8": 1 + 2 / 32,
        "int4": 0.5 + 2 / 32,
        "float8": 1 + 4 / 3072,
        "q8_0": 34 / 32,
        "q4_0": 18 / 32,
        "q4_1": 20 / 32,
        "q5_0": 22 / 32,
        "q5_1": 24 / 32,
        "q4_k": 144 / 256,
        "q5_k": 176 / 256,
        "q6_k": 210 / 256,
        "q4_1_panels": 20 / 32,
        "q5_0_panels": 22 / 32,
        "q5_1_panels": 24 / 32,
        "q4_k_panels": 148 / 256,
        "q5_k_panels": 180 / 256,
        "q6_k_panels": 210 / 256,
        "q8_0_panels": 34 / 32,
        "q4_0_panels": 18 / 32,
        "mxfp4": 17 / 32,
        "mxfp4_panels": 17 / 32,
        "iq4_nl": 18 / 32,
        "iq4_xs": 136 / 256,
        "iq3_s": 110 / 256,
        "iq3_xxs": 98 / 256,
        "q3_k": 110 / 256,
        "iq2_s": 82 / 256,
        "iq2_xs": 74 / 256,
        "iq2_xxs": 66 / 256,
        "iq1_m": 56 / 256,
        "iq1_s": 50 / 256,
        "tq1_0": 54 / 256,
        "tq2_0": 66 / 256,
        "q2_k": 84 / 256,
        "nvfp4": 36 / 64,
        "iq4_nl_panels": 18 / 32,
        "iq4_xs_panels": 138 / 256,
        "iq3_s_panels": 138 / 256,
        "iq3_xxs_panels": 138 / 256,
        "q3_k_panels": 114 / 256,
        "iq2_panels": 114 / 256,
        "iq1_panels": 114 / 256,
        "q2_k_panels": 84 / 256,
        "nvfp4_panels": 36 / 64,
    }
    assert [row.code for row in FORMATS.values()] == list(range(len(FORMATS)))
    assert {row.short for row in STORED.values()} == {"f32", "bf16", "f16"}
    assert all(row.activation in ACTIVATIONS for row in FORMATS.values())
    coded = {name for name, row in FORMATS.items() if row.coded and row.named}
    assert coded == {"int8", "int4"}
    keys = {name: row.key_format.name for name, row in FORMATS.items()}
    assert keys["int8"] == keys["int4"] == "bfloat16"
    assert keys["float8"] == "float16"


def test_formats_with_minima_and_super_blocks_count_right() -> None:
    """Sizes of well-known blocks: GGUF's Q4_1 and Q4_K."""
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
    with pytest.raises(ConfigError, match="multiple of 256, which share a scale, got 128"):
        q4_k.row_bytes(128)


def test_formats_that_cannot_be() -> None:
    with pytest.raises(RequestError, match=r"dtype: expected one of float32, .*, got 'fp8'"):
        find_format("fp8")
    with pytest.raises(ConfigError, match="multiple of 32, which share a scale, got 40"):
        find_format("int4").row_bytes(40)


@pytest.mark.parametrize("name", [name for name, row in FORMATS.items() if row.in_blocks])
def test_blocks_have_the_sizes_that_gguf_says(name: str) -> None:
    columns, size = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    row = FORMATS[name]
    assert (row.super_block or row.group, row.row_bytes(columns)) == (columns, size)
    # A byte for a scale of 6 bits; of what names several numbers at once panels have each.
    if not row.block_bytes:
        assert row.multiplied.row_bytes(256) <= 1.04 * row.row_bytes(256)
    assert not row.named
    assert row.multiplied.multiplied is row.multiplied


def test_blocks_of_another_size_or_type_are_refused() -> None:
    good = np.zeros((2, 3, 2 * 144), np.uint8)
    assert Blocks("q4_k", good, 512).shape == (2, 3, 512)
    with pytest.raises(CheckpointError, match="expected rows of 288 bytes .* got 287"):
        Blocks("q4_k", good[..., 1:], 512)
    with pytest.raises(CheckpointError, match=r"got 288 \(int8\)"):
        Blocks("q4_k", good.view(np.int8), 512)
    with pytest.raises(ConfigError, match="multiple of 256"):
        Blocks("q4_k", good, 500)
    for name in ("int4", "q4_k_panels"):
        with pytest.raises(CheckpointError, match=f"expected one of q8_0, .*, nvfp4, got '{name}'"):
            Blocks(name, good, 512)


def test_blocks_widen_as_llama_cpp_does() -> None:
    """Q4_1 by hand: code * scale + minimum, codes c and c + 16 in one byte."""
    block = np.zeros(20, np.uint8)
    block[:4] = np.array([0.5, -3.0], np.float16).view(np.uint8)
    block[4:] = np.arange(16) | (15 - np.arange(16)) << 4
    codes = np.concatenate([np.arange(16), 15 - np.arange(16)])
    found = Blocks("q4_1", block[None], 32).widened()
    np.testing.assert_array_equal(found, [0.5 * codes - 3.0])
    assert found.dtype == np.float32
