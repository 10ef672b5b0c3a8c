"""Passes that only read a prompt may be wider than those that decode: with the same bits.

They are where bfloat16 is multiplied by tiles, here by emulated ones; and those of mixtures.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from random_weights import weights_of

from monolane._core import kernels
from monolane.cpu import CpuExecutor
from monolane.model import NOW, LayerConfig, Reduce
from monolane.plan import MAX_WIDTH, MIXTURE_WIDTH, PROMPT_WIDTH, _plan

from . import test_experts, test_latent
from .test_executor import epoch, random_weights, sampled
from .test_goldens import load

ISA = kernels.emulated()[-1]  # the fastest of them
GOLDENS = sorted(
    path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/config.json")
)


def make(**options: object) -> CpuExecutor:
    # Rings are whole chunks of 256 keys: one would do for this window and 64 tokens, not for 96.
    layers = (LayerConfig(NOW, NOW, 186), LayerConfig(NOW, Reduce(1)), LayerConfig(NOW, NOW, 186))
    weights = random_weights(ml_dtypes.bfloat16, head_dim=16, layers=layers)
    return CpuExecutor(weights, "bfloat16", context=600, slots=3, workers=2, isa=ISA, **options)


def passes(executor: CpuExecutor) -> int:
    spans = executor.take_spans()
    first = (spans["worker"] == 0) & (spans["phase"] == 0)
    return int(first.sum())


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_where_passes_are_wide(dtype: str) -> None:
    weights = random_weights(ml_dtypes.bfloat16, head_dim=16)
    for isa in (*kernels.emulated(), *kernels.supported()):
        executor = CpuExecutor(weights, dtype, context=64, slots=1, workers=1, isa=isa)
        tiles = dtype == "bfloat16" and (isa in kernels.emulated() or isa == "amx")
        assert executor.plan.max_width == (PROMPT_WIDTH if tiles else MAX_WIDTH)


MIXTURES = test_experts.CASES | test_latent.CASES


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", MIXTURES)
def test_a_mixture_s_prompt_has_the_same_bits_in_wide_passes(case: str, dtype: str) -> None:
    """Products take some of the tokens at a time, experts those that they serve."""
    weights = weights_of(MIXTURES[case], ml_dtypes.bfloat16)
    executor = CpuExecutor(weights, dtype, context=400, slots=2, workers=3)
    assert executor.plan.max_width == MIXTURE_WIDTH
    ids = np.random.default_rng(7).integers(61, size=390)
    hidden = [executor.hidden(0, part) for part in np.split(ids, range(33, 390, 33))]
    executor.set_trace(True)
    np.testing.assert_array_equal(executor.hidden(1, ids), np.concatenate(hidden))
    assert passes(executor) == -(-390 // MIXTURE_WIDTH)


def test_a_prompt_has_the_same_bits_in_wide_passes() -> None:
    """Beyond what rings of windowed layers hold, and behind what narrower passes have left."""
    executor = make()
    ids = np.random.default_rng(4).integers(72, size=500)
    hidden = np.concatenate(
        [executor.hidden(1, part) for part in np.split(ids, range(33, 500, 33))]
    )
    executor.set_trace(True)
    np.testing.assert_array_equal(executor.hidden(2, ids), hidden)
    assert passes(executor) == -(-500 // PROMPT_WIDTH)
    executor.set_trace(False)
    executor.logits(0, ids)  # all of a pass are kept: 64 at a time
    logits = [executor.logits(slot, ids[:70]) for slot in (0, 1, 2)]
    np.testing.assert_array_equal(logits[1], logits[0])
    np.testing.assert_array_equal(logits[2], logits[0])


def test_nobody_waits_for_a_wide_pass_who_decodes() -> None:
    """A prompt of 300 tokens beside one of 1: 95, then three times 63 beside its draws, then 16."""
    executor = make()
    ids = np.random.default_rng(5).integers(72, size=300)
    alone = epoch(executor, sampled(1, ids, 1))[1]
    executor.truncate(1, 0)
    executor.start([sampled(0, ids[:1], 12), sampled(1, ids, 1)])
    while not executor.read(0.1):
        pass
    events = executor.take()
    order = [event.slot for event in events]
    assert order.index(1) == 5
    assert [event.token_id for event in events if event.slot == 1] == alone


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda path: path.name)
def test_every_family_has_the_same_bits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = load(folder)
    context = min(weights.config.max_positions, 160)
    ids = np.random.default_rng(6).integers(weights.config.vocab_size, size=context - 20)
    found = []
    for width in (PROMPT_WIDTH, MAX_WIDTH):
        monkeypatch.setattr(_plan, "PROMPT_WIDTH", width)
        executor = CpuExecutor(weights, "bfloat16", context=context, slots=2, workers=2, isa=ISA)
        wide = MAX_WIDTH if weights.config.layers_with_states else width
        assert executor.plan.max_width == wide
        hidden = executor.hidden(0, ids)
        found.append((hidden, epoch(executor, sampled(1, ids, 16))[1]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
