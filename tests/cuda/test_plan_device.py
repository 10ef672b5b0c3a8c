"""How many blocks a GPU gives a model, and what they hold."""

from dataclasses import replace

import numpy as np
import pytest
from models import random_weights

from monolane.cuda._device import GpuInfo
from monolane.cuda._formats import find_dtype
from monolane.cuda._layout import PRODUCTS
from monolane.cuda._plan_device import lay_out_widths
from monolane.model import Quantization, parse_config
from monolane.plan import Choice, named_config

H200 = GpuInfo("NVIDIA H200", (9, 0), 132, 227 << 10, 139 << 30, 140 << 30)
A100 = GpuInfo("NVIDIA A100", (8, 0), 108, 163 << 10, 79 << 30, 80 << 30)
RTX4090 = GpuInfo("NVIDIA RTX 4090", (8, 9), 128, 99 << 10, 23 << 30, 24 << 30)


@pytest.mark.parametrize(
    ("gpu", "blocks", "slot_bytes"),
    [(H200, 128, 24 << 10), (A100, 104, 12 << 10), (RTX4090, 128, 12 << 10)],
)
def test_lanes_share_the_sms_evenly(gpu: GpuInfo, blocks: int, slot_bytes: int) -> None:
    config = named_config("laneformer-2b")
    narrow, wide = lay_out_widths(config, gpu, "bfloat16", 4096, (1, 8))
    assert narrow.plan.groups.workers == wide.plan.groups.workers == blocks
    assert narrow.plan.device.choice is Choice.EVERYONE
    assert (narrow.tilings, narrow.layers) == (wide.tilings, wide.layers)
    assert narrow.slot_bytes == slot_bytes
    for layout in (narrow, wide):
        assert layout.shared.total <= gpu.shared_bytes
        assert layout.ring_slots >= 2


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_sums_are_folded_before_a_ring_is_short(devices: int) -> None:
    config = named_config("laneformer-2b")
    layouts = lay_out_widths(config, H200, "bfloat16", 4096, (1, 8, 64), devices)
    assert [x.width for x in layouts] == [1, 8, 64]
    for layout in layouts:
        assert layout.ring_slots >= 4
        assert layout.ring_slots * layout.slot_bytes >= 96 << 10


def test_a_width_that_does_not_fit_is_left_out() -> None:
    config = named_config("laneformer-2b")
    widths = (1, 8, 64)
    assert [x.width for x in lay_out_widths(config, H200, "bfloat16", 4096, widths)] == [1, 8, 64]
    assert [x.width for x in lay_out_widths(config, RTX4090, "bfloat16", 4096, widths)] == [1, 8]


def test_a_dense_model_takes_the_whole_gpu() -> None:
    config = replace(named_config("laneformer-2b"), num_lanes=1)
    (layout,) = lay_out_widths(config, H200, "bfloat16", 4096, (1,))
    assert layout.plan.groups.workers == 132


def test_no_block_is_left_without_rows() -> None:
    config = random_weights(hidden_size=104).config
    (layout,) = lay_out_widths(config, H200, "bfloat16", 64, (1,))
    assert 1 < layout.blocks < 66


def test_dtypes() -> None:
    config = random_weights().config
    assert config.stored_dtype == "float32"
    assert find_dtype("auto", config) == "bfloat16"
    assert find_dtype("auto", replace(config, dtype="float16")) == "float16"
    assert find_dtype("float16", config) == "float16"
    even = random_weights(num_attention_heads=8, num_key_value_heads=4, hidden_size=64).config
    quantised = replace(even, quantization=Quantization(8))
    assert find_dtype("auto", quantised) == "bfloat16"


# Sizes as published: hidden, intermediate, layers, heads, KV heads, their width, vocabulary, tied.
DENSE = {
    "Llama-3.2-1B": ("llama", 2048, 8192, 16, 32, 8, 64, 128256, True),
    "Llama-3.2-3B": ("llama", 3072, 8192, 28, 24, 8, 128, 128256, True),
    "Llama-3.1-8B": ("llama", 4096, 14336, 32, 32, 8, 128, 128256, False),
    "Qwen3-1.7B": ("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, True),
    "Qwen3-8B": ("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, False),
    "SmolLM2-1.7B": ("llama", 2048, 8192, 24, 32, 32, 64, 49152, True),
}
NAMES = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings",
)  # fmt: skip


@pytest.mark.parametrize("name", DENSE)
def test_dense_models_stream_what_they_have(name: str) -> None:
    """Blocks times the largest block's bytes: at most 1.02 times the real ones. All widths fit."""
    sizes = dict(zip(NAMES, DENSE[name], strict=True))
    config = parse_config({**sizes, "max_position_embeddings": 8192})
    layouts = lay_out_widths(config, H200, "bfloat16", 4096, (1, 8, 64))
    assert [x.width for x in layouts] == [1, 8, 64]
    layout = layouts[0]
    assert layout.blocks >= 0.9 * H200.sms
    rounds = layout.rounds.astype(np.int64)  # [W, products of each way, then the head's]
    bytes_of = [
        x.steps * x.slot_bytes(layout.tile_bytes) for x in map(layout.tilings.get, PRODUCTS) if x
    ]
    streamed = rounds[:, -1] * bytes_of[-1]
    for layer in range(config.num_layers):
        first = layer % layout.share_layers * 4
        streamed = streamed + rounds[:, first : first + 4] @ np.array(bytes_of[:4])
    real = sum(
        matrix.rows * matrix.row_bytes for phase in layout.plan.phases for matrix in phase.matrices
    )
    assert layout.blocks * int(streamed.max()) <= 1.02 * real
    assert layout.blocks * int(streamed.max()) >= real
