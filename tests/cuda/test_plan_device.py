"""How many blocks a GPU gives a model, and what they hold."""

from dataclasses import replace

import pytest
from models import random_weights

from monolane.cuda._device import GpuInfo
from monolane.cuda._formats import find_dtype
from monolane.cuda._plan_device import lay_out_widths
from monolane.errors import BackendError
from monolane.model import Quantization
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
    with pytest.raises(BackendError, match="or float32, got one in int8; use backend='cpu'"):
        find_dtype("auto", quantised)
