"""The memory of the cache is taken as it is needed, not when a slot is first used."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_conversion import huge_kb
from test_ranked_kv import LAYERS, small_weights

from monolane.cpu import CpuExecutor
from monolane.executor_api import KeptBytes
from monolane.model import Weights

CONTEXT = 1 << 16
SLOTS = 8
# Keys and values of the one layer without a window: 2 heads of 8 floats, so a huge page a head.
SLOT_BYTES = 2 * 2 * 8 * 4 * CONTEXT


def anonymous_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.fixture
def executor() -> CpuExecutor:
    weights = small_weights(LAYERS)
    config = replace(weights.config, max_positions=CONTEXT)
    weights = Weights(config, weights.outer, weights.layers)
    return CpuExecutor(weights, context=CONTEXT, slots=SLOTS, workers=2)


def test_a_short_text_takes_the_memory_of_a_short_text(executor: CpuExecutor) -> None:
    ids = np.arange(70)
    executor.logits(0, ids)  # what workers keep for themselves is theirs from now on
    before = anonymous_bytes()
    for slot in range(1, SLOTS):
        executor.logits(slot, ids)
    # In huge pages this takes 7 * SLOT_BYTES, 58 MB; in small ones four each, and the rings'.
    assert anonymous_bytes() - before < SLOT_BYTES


def test_a_head_that_needs_half_a_huge_page_gets_huge_pages() -> None:
    """Long before a quarter of its room is needed; and the other slots get none."""
    if not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists():
        pytest.skip("this kernel has no transparent huge pages")
    context, heads = 1 << 19, 2
    weights = small_weights(LAYERS[1:2])
    config = replace(weights.config, max_positions=context)
    executor = CpuExecutor(
        Weights(config, weights.outer, weights.layers), context=context, slots=2, workers=1
    )
    row = executor.plan.key_bytes(0)
    half = (1 << 20) // row
    assert 4 * half < context
    for count, layers in (half - 1, 0), (half, 1):
        kept = KeptBytes(np.zeros((2 * heads, count, row), np.uint8))
        executor.truncate(1, 0)
        before = huge_kb()
        executor.restore(1, kept, count)
        assert huge_kb() - before == layers * 2 * heads * context * row >> 10
