import dataclasses
import math
import re
from typing import Any

import pytest

from monolane.errors import BackendError, ConfigError
from monolane.model import (
    COMMON_FEATURES,
    NEVER,
    NOW,
    Head,
    LayerConfig,
    ModelConfig,
    QkNorm,
    Reduce,
    Rotary,
    YarnScaling,
)

DENSE: dict[str, Any] = {
    "family": "laneformer",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "vocab_size": 48,
    "max_positions": 128,
    "num_lanes": 2,
    "layers": (LayerConfig(NEVER, NEVER), LayerConfig(Reduce(1), NOW, window=16)),
    "head": Head.VOCAB_PARALLEL,
}


def test_a_config_is_a_value() -> None:
    config = ModelConfig(**DENSE)
    assert config == ModelConfig(**DENSE)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_lanes = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 3}, "num_heads: expected a multiple of num_kv_heads (3)"),
        (
            {"num_kv_heads": 1, "num_heads": 4},
            "num_kv_heads: expected a multiple of the number of lanes (2)",
        ),
        (
            {"intermediate_size": 63},
            "intermediate_size: expected a multiple of the number of lanes",
        ),
        ({"vocab_size": 47}, "vocab_size: expected a multiple of the number of lanes (2)"),
        ({"head_dim": 7}, "head_dim: expected an even size"),
        ({"hidden_size": 0}, "hidden_size: expected 1 to"),
        ({"vocab_size": 1 << 40}, "vocab_size: expected 1 to"),
        ({"norm_eps": 0.0}, "norm_eps: expected a number between 0 and 1, got 0.0"),
        ({"dtype": "int7"}, "dtype: expected one of bfloat16, float16, float32, got 'int7'"),
        ({"layers": ()}, "layers: expected 1 to 1024 layers, got 0"),
        ({"layers": (LayerConfig(Reduce(1), NOW),)}, "expected a delay of at most 0 layers"),
        ({"layers": (LayerConfig(NOW, NOW, window=0),)}, "window: expected None or 1 and more"),
        ({"bos_id": 48}, "bos_id: expected a token id below vocab_size (48), got 48"),
        ({"eos_ids": (1, 99)}, "eos_ids: expected a token id below vocab_size (48), got 99"),
        ({"norm_before": False}, "norm_after: expected true where norm_before is false"),
        ({"query_scale": 0.0}, "query_scale: expected a number above 0, got 0.0"),
        ({"query_scale": math.inf}, "query_scale: expected a number above 0, got inf"),
        ({"embedding_scale": math.nan}, "embedding_scale: expected a number above 0, got nan"),
        (
            {"layers": (LayerConfig(NOW, NOW, rotary="local"),)},
            "layer 0: rotary: expected local_rotary",
        ),
        (
            {"local_rotary": Rotary(style="half")},
            "local_rotary: expected interleaved pairs as in rotary, got half ones",
        ),
        ({"head": Head.CONCAT, "tie_embeddings": True}, "tie_embeddings: expected false"),
    ],
)
def test_faults_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ModelConfig(**DENSE | change)


def test_odd_vocabulary_is_fine_where_lanes_share_the_head() -> None:
    assert ModelConfig(**DENSE | {"vocab_size": 47, "head": Head.MEAN}).vocab_size == 47


def test_features_that_an_executor_lacks_are_refused_by_name() -> None:
    plain, biased = ModelConfig(**DENSE), ModelConfig(**DENSE, qkv_bias=True)
    assert (plain.features, biased.features) == ((), ("qkv_bias",))
    plain.check_features("slide rule")
    biased.check_features("cpu", "qkv_bias")
    with pytest.raises(BackendError, match="qkv_bias: the slide rule backend does not compute it"):
        biased.check_features("slide rule", "another")


def test_the_common_features_are_features() -> None:
    fields = {x.name for x in dataclasses.fields(ModelConfig) if x.metadata.get("feature")}
    layers = {
        f"layers.{name}" for name in ("rotary", "sizes", "modules", "keys_of", "key_is_value")
    }
    parts = layers | {"rotary.amplitude", "rotary.part"}
    assert set(COMMON_FEATURES) <= fields | parts
    assert len(set(COMMON_FEATURES)) == len(COMMON_FEATURES)


def test_an_executor_may_compute_some_values_of_a_field() -> None:
    config = ModelConfig(**DENSE, qk_norm=QkNorm.HEAD)
    config.check_features("cpu", "qk_norm")
    config.check_features("cpu", "qk_norm=head")
    with pytest.raises(BackendError, match=r"qk_norm: .* does not compute it yet \(head\)"):
        config.check_features("cpu", "qk_norm=all")


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ({"layers": (LayerConfig(NOW, NOW, rotary="none"),)}, "layers.rotary", "none"),
        ({"rotary": Rotary(scaling=YarnScaling(4.0, 32, 1.25))}, "rotary.amplitude", "1.25"),
        ({"rotary": Rotary(scaling=YarnScaling(4.0, 32, 0.75))}, "rotary.amplitude", "0.75"),
        ({"norm_after": True}, "norm_after", "True"),
        ({"norm_before": False, "norm_after": True}, "norm_before", "False"),
        ({"norm_offset": 1.0}, "norm_offset", "1.0"),
        ({"query_scale": 0.25}, "query_scale", "0.25"),
        ({"activation": "gelu_tanh"}, "activation", "gelu_tanh"),
        ({"embedding_scale": 8.0}, "embedding_scale", "8.0"),
    ],
)
def test_features_of_the_dense_families(change: dict[str, Any], name: str, value: str) -> None:
    config = ModelConfig(**DENSE | change)
    assert name in config.features
    known = [x for x in config.features if x != name]
    with pytest.raises(BackendError, match=re.escape(f"{name}: the abacus backend does not")):
        config.check_features("abacus", *known)
    config.check_features("abacus", f"{name}={value}", *known)


def test_a_local_rotary_is_a_feature_and_so_is_its_amplitude() -> None:
    local = Rotary(scaling=YarnScaling(4.0, 32, 1.25))
    config = ModelConfig(**DENSE | {"local_rotary": local})
    assert config.features == ("local_rotary", "rotary.amplitude")


def test_a_reduce_tells_its_rule() -> None:
    assert [str(rule) for rule in (NEVER, NOW, Reduce(2))] == ["never", "now", "after 2"]
    with pytest.raises(ConfigError, match="got -1"):
        Reduce(-1)
