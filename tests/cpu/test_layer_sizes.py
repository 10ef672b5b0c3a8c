"""A model whose layers have heads, windows and widths of their own, in the native executor."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from random_weights import weights_of

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, ConfigError
from monolane.model import NOW, Head, LayerConfig, ModelConfig, QkNorm, Rotary, Weights
from monolane.plan import pass_cost
from monolane.reference import ReferenceModel

VOCAB, TOKENS = 62, 300  # beyond one chunk of keys
IDS = np.random.default_rng(1).integers(VOCAB, size=TOKENS)
# As Gemma 4 has them: narrow heads with a window, wide ones that see everything.
NARROW = LayerConfig(NOW, NOW, 20, "local", num_kv_heads=4, head_dim=32, intermediate_size=96)
WIDE = LayerConfig(NOW, NOW, num_heads=4)


def config_of(**changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "family": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 8,
        "num_kv_heads": 2,
        "head_dim": 64,
        "vocab_size": VOCAB,
        "max_positions": 600,  # so that windows are rings
        "num_lanes": 1,
        "layers": (NARROW, WIDE, NARROW, WIDE),
        "head": Head.VOCAB_PARALLEL,
        "rotary": Rotary(theta=100.0, part=0.5),
        "local_rotary": Rotary(theta=30.0),
        "qk_norm": QkNorm.HEAD,
        "dtype": "float32",
    }
    return ModelConfig(**sizes | changes)


def executor_of(
    weights: Weights, workers: int, dtype: str, cache_dtype: str = "auto"
) -> CpuExecutor:
    return CpuExecutor(
        weights,
        context=weights.config.max_positions,
        slots=3,
        workers=workers,
        dtype=dtype,
        cache_dtype=cache_dtype,
    )


CONFIG = config_of()
LATE = config_of(qk_norm=QkNorm.ALL, max_positions=300)


@pytest.mark.parametrize("config", [CONFIG, LATE], ids=["norms of heads", "norms over heads"])
@pytest.mark.parametrize("workers", [1, 3])
def test_logits_are_the_reference_s(config: ModelConfig, workers: int) -> None:
    weights = weights_of(config)
    model = ReferenceModel(weights)
    expected = model.forward(IDS, model.new_cache())
    executor = executor_of(weights, workers, "float32")
    # The bound for float32 sums in another order, as in tests/cpu/test_latent.py.
    assert np.abs(executor.logits(0, IDS) - expected).max() < 1e-3


def test_lanes_may_share_them() -> None:
    one = replace(NARROW, attention_reduce=NOW)
    config = config_of(num_lanes=2, layers=(one, WIDE))
    weights = weights_of(config)
    model = ReferenceModel(weights)
    expected = model.forward(IDS[:50], model.new_cache())
    executor = executor_of(weights, 2, "float32")
    assert np.abs(executor.logits(0, IDS[:50]) - expected).max() < 1e-3


@pytest.mark.parametrize("cache_dtype", ["auto", "int8", "int4"])
def test_a_sequence_is_kept_and_goes_on(cache_dtype: str) -> None:
    """Wide keys are several rows of what is kept; windows that are rings are in the tail."""
    weights = weights_of(CONFIG, ml_dtypes.bfloat16)
    executor = executor_of(weights, 2, "bfloat16", cache_dtype)
    expected = executor.logits(0, IDS)
    executor.logits(1, IDS[:200])
    kept = executor.save(1, 0, 200)
    executor.restore(2, kept, 200)
    np.testing.assert_array_equal(executor.logits(2, IDS[200:]), expected[200:])
    # In parts, of which the last alone has a tail.
    executor.truncate(2, 0)
    executor.restore(2, kept.part(0, 130), 130)
    executor.restore(2, kept.part(130, 200, kept), 70)
    np.testing.assert_array_equal(executor.logits(2, IDS[200:]), expected[200:])
    executor.truncate(2, 0)
    executor.copy(1, 2)
    np.testing.assert_array_equal(executor.logits(2, IDS[200:]), expected[200:])


def test_the_reference_keeps_them_too() -> None:
    model = ReferenceModel(weights_of(CONFIG))
    cache, other = model.new_cache(), model.new_cache()
    expected = model.forward(IDS, cache)[200:]
    rows = cache.save(0, 200)
    other.restore(rows[:, :90])
    other.restore(rows[:, 90:])
    np.testing.assert_allclose(model.forward(IDS[200:], other), expected, atol=1e-5)


def test_parameters_and_costs_count_each_layer() -> None:
    weights = weights_of(CONFIG)
    tensors = [*weights.outer.values(), *(x for layer in weights.layers for x in layer.values())]
    assert CONFIG.num_parameters == sum(array.size for array in tensors)
    executor = executor_of(weights, 2, "float32")
    assert executor.plan.position_bytes == 2 * 4 * (2 * 4 * 32 + 2 * 2 * 64)
    matrices = [x for x in tensors if x.ndim == 3]
    moved = sum(x.nbytes for x in matrices)
    keys = 2 * 4 * (2 * 20 * 4 * 32 + 2 * 100 * 2 * 64)  # 100 tokens: windows of 20, and all
    assert pass_cost(executor.plan, length=100).bytes == moved + keys


@pytest.mark.parametrize(
    ("layer", "wrong"),
    [
        (replace(NARROW, num_kv_heads=3), r"layer 1: num_heads: .* num_kv_heads \(3\), got 8"),
        (replace(NARROW, head_dim=31), "layer 1: head_dim: .* multiple of 2 .* got 31"),
        (replace(NARROW, intermediate_size=0), "layer 1: intermediate_size: .* got 0"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(layer: LayerConfig, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        config_of(layers=(NARROW, layer))


def test_an_executor_that_has_one_set_of_sizes_refuses_them() -> None:
    with pytest.raises(BackendError, match=r"layers\.sizes: .* other backend .*head_dim 32"):
        CONFIG.check_features("other", "qk_norm", "local_rotary", "layers.rotary", "rotary.part")


def test_layers_of_one_rotary_turn_as_much() -> None:
    with pytest.raises(ConfigError, match="heads of one width in all layers of the main rotary"):
        config_of(layers=(NARROW, WIDE, replace(NARROW, rotary="main")))
