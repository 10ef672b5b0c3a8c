"""Every family: what it reads it writes, and its names are those of a checkpoint, each once."""

from dataclasses import replace
from typing import Any

import pytest

from monolane.errors import ConfigError
from monolane.model import NOW, Head, Role, parse_config, render_config, tensor_specs
from monolane.model.families import FAMILIES

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
LANES = {"num_lanes": 2, "broadcast_delay": 1}  # which dense families do not look at
DENSE = [family.name for family in FAMILIES if family.name != "laneformer"]


@pytest.mark.parametrize("kind", [kind for family in FAMILIES for kind in family.model_types])
@pytest.mark.parametrize("tied", [False, True])
def test_what_a_family_reads_it_writes(kind: str, tied: bool) -> None:
    config = parse_config(SIZES | LANES | {"model_type": kind, "tie_word_embeddings": tied})
    assert parse_config(render_config(config)) == config
    specs = tensor_specs(config)
    assert len({spec.name for spec in specs}) == len(specs)
    assert config.num_parameters == sum(spec.size for spec in specs)
    assert (Role.HEAD in {spec.role for spec in specs}) is not tied


@pytest.mark.parametrize("kind", DENSE)
def test_dense_families_are_one_lane_that_reduces_at_once(kind: str) -> None:
    config = parse_config(SIZES | {"model_type": kind, "head_dim": 12})
    assert (config.num_lanes, config.head, config.head_dim) == (1, Head.VOCAB_PARALLEL, 12)
    assert {x.attention_reduce for x in config.layers} == {NOW}
    assert (config.rotary.style, config.norm_eps) == ("half", 1e-6)
    assert config.qkv_bias is (kind == "qwen2")


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"model_type": "llama", "sliding_window": 9}, [None, None, None]),
        ({"model_type": "mistral"}, [4096, 4096, 4096]),
        ({"model_type": "mistral", "sliding_window": None}, [None, None, None]),
        ({"model_type": "mistral", "sliding_window": 9}, [9, 9, 9]),
        ({"model_type": "qwen2", "sliding_window": 9}, [None, None, None]),
        ({"model_type": "qwen2", "use_sliding_window": True}, [None, None, None]),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 9,
                "max_window_layers": 2,
            },
            [None, None, 9],
        ),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 9,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            [9, None, 9],
        ),
    ],
)
def test_windows(fields: dict[str, Any], windows: list[int | None]) -> None:
    config = parse_config(SIZES | fields)
    assert [layer.window for layer in config.layers] == windows
    assert parse_config(render_config(config)) == config


@pytest.mark.parametrize("kind", DENSE)
def test_layer_types_that_are_none(kind: str) -> None:
    for wrong in ("full_attention", ["full_attention"] * 2):
        with pytest.raises(ConfigError, match="layer_types: expected a list of 3 kinds"):
            parse_config(SIZES | {"model_type": kind, "layer_types": wrong})


def test_a_dense_config_is_not_written_as_a_laneformer() -> None:
    dense = parse_config(SIZES | {"model_type": "qwen2"})
    with pytest.raises(ConfigError, match="qkv_bias: expected a model without"):
        render_config(replace(dense, family="laneformer"))
    with pytest.raises(ConfigError, match="rotary pairs: expected interleaved"):
        render_config(replace(dense, family="laneformer", qkv_bias=False))
