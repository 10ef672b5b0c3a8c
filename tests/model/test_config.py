import dataclasses
import re
from typing import Any

import pytest

from monolane.errors import BackendError, ConfigError
from monolane.model import NEVER, NOW, Head, LayerConfig, ModelConfig, Reduce

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


def test_a_reduce_tells_its_rule() -> None:
    assert [str(rule) for rule in (NEVER, NOW, Reduce(2))] == ["never", "now", "after 2"]
    with pytest.raises(ConfigError, match="got -1"):
        Reduce(-1)
