"""Fields of the dense families in the native executor: the oracle's logits, and bits as always."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monolane.cpu import CpuExecutor
from monolane.executor_api import Advance
from monolane.model import (
    NEVER,
    NOW,
    Head,
    LayerConfig,
    ModelConfig,
    QkNorm,
    Reduce,
    Role,
    Rotary,
    Weights,
    YarnScaling,
    lane_shape,
    layer_roles,
)
from monolane.reference import ReferenceModel

VOCAB, TOKENS = 72, 150
DENSE = LayerConfig(NOW, NOW)
YARN = Rotary(style="half", scaling=YarnScaling(4.0, 64, 1.14, beta_fast=4.0))
MODELS: dict[str, dict[str, Any]] = {
    "heads normed": {"qk_norm": QkNorm.HEAD, "head_dim": 12},
    "all heads normed, modules normed after": {
        "qk_norm": QkNorm.ALL,
        "norm_before": False,
        "norm_after": True,
    },
    "all heads normed, interleaved, biases": {
        "qk_norm": QkNorm.ALL,
        "qkv_bias": True,
        "rotary": Rotary(theta=100.0),
    },
    "four norms, GELU, two rotaries": {
        "qk_norm": QkNorm.HEAD,
        "norm_after": True,
        "norm_offset": 1.0,
        "activation": "gelu_tanh",
        "embedding_scale": 8.0,
        "residual_scale": 0.6,
        "logit_scale": 0.7,
        "logit_cap": 4.0,
        "query_scale": 0.21,
        "local_rotary": Rotary(theta=9.0, style="half"),
        "layers": (
            LayerConfig(NOW, NOW, 24, "local"),
            LayerConfig(NOW, NOW, 24, "local"),
            DENSE,
        ),
    },
    "layers without rotary": {"layers": (DENSE, LayerConfig(NOW, NOW, rotary="none"), DENSE)},
    "YaRN": {"rotary": YARN},
    "sinks, a bias behind attention, a clamped gate": {
        "attention_sinks": True,
        "out_bias": True,
        "activation": "clamped_swiglu",
        "layers": (LayerConfig(NOW, NOW, 24), DENSE, LayerConfig(NOW, NOW, 1)),
    },
    "sinks of lanes": {"attention_sinks": True, "num_lanes": 4, "head": Head.VOCAB_PARALLEL},
    "lanes": {
        "num_lanes": 4,
        "head": Head.VOCAB_PARALLEL,
        "qk_norm": QkNorm.HEAD,
        "norm_after": True,
        "norm_offset": 1.0,
        "layers": (
            LayerConfig(NEVER, NOW),
            LayerConfig(Reduce(1), NEVER, 24),
            LayerConfig(NOW, Reduce(2)),
        ),
    },
    "lanes that share their scales": {
        "num_lanes": 2,
        "norm_scale_per_lane": False,
        "norm_before": False,
        "norm_after": True,
    },
}


@pytest.fixture(params=MODELS)
def weights(request: pytest.FixtureRequest) -> Weights:
    """A small random model, stored as bfloat16, so that an offset rounded to that shows."""
    sizes: dict[str, Any] = {
        "family": "laneformer",
        "hidden_size": 40,
        "intermediate_size": 52,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "max_positions": 400,
        "num_lanes": 1,
        "layers": (DENSE,) * 3,
        "head": Head.MEAN,
        "rotary": Rotary(theta=100.0, style="half"),
    }
    config = ModelConfig(**sizes | MODELS[request.param])
    rng = np.random.default_rng(0)

    def make(role: Role) -> np.ndarray:
        scale = 0.5 if "norm" in role else 0.15
        return rng.normal(scale=scale, size=lane_shape(config, role)).astype(ml_dtypes.bfloat16)

    outer = {role: make(role) for role in (Role.EMBEDDING, Role.FINAL_NORM, Role.HEAD)}
    layers = tuple({role: make(role) for role in layer_roles(config)} for _ in config.layers)
    return Weights(config, outer, layers)


def load(weights: Weights, workers: int, dtype: str = "float32", slots: int = 1) -> CpuExecutor:
    return CpuExecutor(weights, dtype, context=400, slots=slots, workers=workers)


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(1).integers(VOCAB, size=TOKENS)


def test_logits_are_the_oracle_s(weights: Weights, ids: np.ndarray) -> None:
    model = ReferenceModel(weights)
    wanted = model.forward(ids, model.new_cache())
    assert wanted.std() > 0.3  # logits near zero would agree whatever the model did
    for workers in (1, 2, 3, 8, 13):
        ours = load(weights, workers).logits(0, ids)
        assert np.abs(ours - wanted).max() < 1e-4 * np.abs(wanted).max(), workers


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_on_nothing_but_the_tokens(
    weights: Weights, ids: np.ndarray, dtype: str
) -> None:
    """One by one, in a prompt of several passes, rolled back, copied, and by other workers."""
    executor = load(weights, 2, dtype, slots=2)
    logits = np.concatenate([executor.logits(0, [token]) for token in ids])
    executor.truncate(0, 0)
    np.testing.assert_array_equal(executor.logits(0, ids), logits)
    executor.truncate(0, 140)
    executor.logits(0, ids[:9])  # drafts that are rejected
    executor.truncate(0, 140)
    executor.copy(0, 1)
    for slot in (0, 1):
        np.testing.assert_array_equal(executor.logits(slot, ids[140:]), logits[140:])
    np.testing.assert_array_equal(load(weights, 3, dtype).logits(0, ids), logits)


def test_a_greedy_answer_is_the_oracle_s(weights: Weights, ids: np.ndarray) -> None:
    executor = load(weights, 2)
    executor.start([Advance(slot=0, token_ids=tuple(ids[:20].tolist()), budget=30)])
    while not executor.read(0.1):
        pass
    drawn = [event.token_id for event in executor.take()]
    model = ReferenceModel(weights)
    logits = model.forward([*ids[:20], *drawn], model.new_cache())
    assert logits[19:-1].argmax(-1).tolist() == drawn
