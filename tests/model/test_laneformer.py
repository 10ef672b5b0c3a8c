import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolane.errors import ConfigError, ModelNotFoundError, MonolaneError
from monolane.model import (
    NEVER,
    NOW,
    Head,
    LayerConfig,
    Llama3Scaling,
    ModelConfig,
    Reduce,
    parse_config,
    read_config,
    render_config,
    tensor_specs,
)

# kogai/laneformer-2b-it as its card describes it, in the released spelling.
RELEASED: dict[str, Any] = {
    "model_type": "laneformer",
    "architectures": ["LaneformerForCausalLM"],
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 15,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "num_lanes": 8,
    "broadcast_delay": 2,
    "use_early_comm": False,
    "use_attention_comm": True,
    "use_mlp_comm": True,
    "lm_head_type": "vocab_parallel",
    "replicated_rmsn_scale": False,
    "pre_norm_lane_agg": False,
    "sliding_window": 2048,
    "swa_layers": list(range(10)),
    "rope_theta": 10000.0,
    "norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "torch_dtype": "bfloat16",
}
EARLIER = {
    name: value
    for name, value in RELEASED.items()
    if name not in ("swa_layers", "use_attention_comm", "use_mlp_comm")
} | {"model_type": "laneformer_tp", "use_comm": True, "sliding_window_n_layers": 10}


def test_both_spellings_say_the_same() -> None:
    assert parse_config(RELEASED) == parse_config(EARLIER)


def test_the_released_size_is_that_of_the_card() -> None:
    config = parse_config(RELEASED)
    assert round(config.num_parameters / 1e9, 2) == 2.32
    assert config.num_parameters == sum(spec.size for spec in tensor_specs(config))
    assert [layer.window for layer in config.layers] == [2048] * 10 + [None] * 5
    assert config.layers[:3] == (
        LayerConfig(NEVER, NEVER, 2048),
        LayerConfig(NEVER, NEVER, 2048),
        LayerConfig(Reduce(2), Reduce(2), 2048),
    )
    assert (config.head_dim, config.head, config.eos_ids) == (96, Head.VOCAB_PARALLEL, (2,))


def test_a_token_streams_the_bytes_that_the_design_counts() -> None:
    layer = sum(spec.size for spec in tensor_specs(parse_config(RELEASED)) if spec.layer == 0)
    head = 32000 * 3072
    norms = 2 * 8 * 3072
    assert layer - norms == pytest.approx(141.56e6, rel=1e-4)
    assert (15 * (layer - norms) + head) * 2 == pytest.approx(4.443e9, rel=1e-3)


def test_configs_survive_being_written(golden: Path) -> None:
    config = read_config(golden)  # in the earlier spelling
    assert parse_config(render_config(config)) == config


def test_the_last_layers_may_be_windowed() -> None:
    config = parse_config(EARLIER | {"sliding_window_n_layers": -3})
    assert [i for i, layer in enumerate(config.layers) if layer.window] == [12, 13, 14]
    assert parse_config(render_config(config)) == config


@pytest.mark.parametrize("raw", [RELEASED, EARLIER])
def test_unclamped_layers_have_full_attention(raw: dict[str, Any]) -> None:
    """As in the released code: a layer in this list is full, whatever the other fields say."""
    config = parse_config(raw | {"unclamped_layers": [3, 7, 12]})
    assert [i for i, x in enumerate(config.layers) if x.window] == [0, 1, 2, 4, 5, 6, 8, 9]
    assert parse_config(render_config(config)) == config
    both = RELEASED | EARLIER | {"model_type": "laneformer", "unclamped_layers": [3]}
    assert parse_config(both | {"swa_layers": [0, 1, 2, 4, 5, 6, 7, 8, 9]}).layers[3].window is None


def test_switches_per_module() -> None:
    config = parse_config(RELEASED | {"use_mlp_comm": False, "use_early_comm": True})
    assert config.layers[1] == LayerConfig(NOW, NOW, 2048)
    assert config.layers[2] == LayerConfig(Reduce(2), NEVER, 2048)
    assert parse_config(render_config(config)) == config


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({"broadcast_delay": 0}, [NOW] * 3),
        ({"broadcast_delay": 0, "use_comm": False}, [NEVER] * 3),
        ({"broadcast_delay": 5, "use_early_comm": True}, [NOW] * 3),
        ({"broadcast_delay": 5}, [NEVER] * 3),
        ({"broadcast_delay": 1, "use_early_comm": True, "use_comm": False}, [NOW, NEVER, NEVER]),
        ({"broadcast_delay": 2, "use_early_comm": True}, [NOW, NOW, Reduce(2)]),
    ],
)
def test_reduce_rules(change: dict[str, Any], layers: list[Reduce]) -> None:
    raw = EARLIER | {"num_hidden_layers": 3, "sliding_window_n_layers": 2} | change
    config = parse_config(raw)
    assert [layer.attention_reduce for layer in config.layers] == layers
    assert parse_config(render_config(config)) == config


@pytest.mark.parametrize(
    ("fields", "head"),
    [
        ({"lm_head_type": "vocab_parallel"}, Head.VOCAB_PARALLEL),
        ({"lm_head_type": "replicate"}, Head.MEAN),
        ({"lm_head_type": "replicate", "pre_norm_lane_agg": True}, Head.SUM),
        ({"lm_head_type": "lane"}, Head.CONCAT),
    ],
)
def test_heads(fields: dict[str, Any], head: Head) -> None:
    config = parse_config(RELEASED | fields)
    assert config.head is head
    assert parse_config(render_config(config)) == config
    shapes = {spec.name: spec.shape for spec in tensor_specs(config)}
    name, shape = {
        Head.VOCAB_PARALLEL: ("lm_head.weight", (8, 4000, 3072)),
        Head.MEAN: ("lm_head.weight", (32000, 3072)),
        Head.SUM: ("lm_head.weight", (32000, 3072)),
        Head.CONCAT: ("lm_head.linear.weight", (32000, 8 * 3072)),
    }[head]
    assert shapes[name] == shape
    norm = "model.norm.weight" if head is Head.SUM else "model.norm.scale"
    assert shapes[norm] == ((3072,) if head is Head.SUM else (8, 3072))


def test_rotary_scaling_is_read_in_both_forms() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4096,
    }
    expected = Llama3Scaling(8.0, 1.0, 4.0, 4096)
    without_theta = {name: value for name, value in RELEASED.items() if name != "rope_theta"}
    old = parse_config(without_theta | {"rope_scaling": scaling, "rope_theta": 5e5})
    new = parse_config(without_theta | {"rope_parameters": scaling | {"rope_theta": 5e5}})
    assert old == new
    assert old.rotary.scaling == expected
    assert old.rotary.theta == 5e5
    assert parse_config(render_config(old)) == old


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size: expected an integer from 1 to 16777216, got None"),
        ({"hidden_size": "3072"}, "hidden_size: expected an integer"),
        ({"num_lanes": True}, "num_lanes: expected an integer from 1 to 16777216, got True"),
        ({"num_lanes": 3}, "expected a multiple of the number of lanes (3)"),
        ({"head_dim": 64}, "head_dim: expected 96, got 64 (hidden_size / num_attention_heads ="),
        ({"model_type": "gpt2"}, "model_type: expected one of 'laneformer', 'laneformer_tp'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: expected"),
        ({"num_hidden_layers": 5000}, "num_hidden_layers: expected at most 1024 layers, got 5000"),
        ({"swa_layers": [15]}, "swa_layers: expected a list of layer ids from 0 to 14, got [15]"),
        ({"swa_layers": None}, "swa_layers: expected the layers that sliding_window is for"),
        ({"sliding_window": None}, "sliding_window: expected a window, since layers are named"),
        ({"unclamped_layers": [15]}, "unclamped_layers: expected a list of layer ids from 0 to 14"),
        ({"sliding_window_n_layers": 9}, "swa_layers: expected [0, 1, 2, 3, 4, 5, 6, 7, 8]"),
        ({"sliding_window_n_layers": 99}, "sliding_window_n_layers: expected an integer from -15"),
        ({"use_comm": False}, "use_attention_comm: expected false, as use_comm says, got True"),
        ({"lm_head_type": "tied"}, "lm_head_type: expected one of 'vocab_parallel', 'replicate'"),
        ({"pre_norm_lane_agg": True}, "pre_norm_lane_agg: expected false, got True; only the"),
        ({"norm_eps": float("nan")}, "norm_eps: expected a number above zero, got nan"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling: rope_type: expected one of"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling: factor: expected a number"),
        ({"rope_scaling": 3}, "rope_scaling: expected an object or null, got 3"),
        ({"eos_token_id": "</s>"}, "eos_token_id: expected a token id, a list of token ids"),
        ({"torch_dtype": "float8"}, "torch_dtype: expected one of 'bfloat16', 'float16'"),
        ({"hidden_act": "gelu"}, "hidden_act: expected one of 'silu', got 'gelu'"),
        ({"attention_bias": True}, "a Laneformer has no biases"),
        ({"use_early_comm": "no"}, "use_early_comm: expected true or false, got 'no'"),
    ],
)
def test_faults_name_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as fault:
        parse_config(RELEASED | change, "here/config.json")
    assert str(fault.value).startswith("here/config.json: ")
    assert message in str(fault.value)


@pytest.mark.parametrize("name", ["hidden_size", "num_lanes", "broadcast_delay", "vocab_size"])
def test_missing_fields_are_named(name: str) -> None:
    raw = {key: value for key, value in RELEASED.items() if key != name}
    with pytest.raises(ConfigError, match=f"{name}: expected an integer .* it is missing"):
        parse_config(raw)


def test_a_config_that_is_no_laneformer_is_not_written() -> None:
    odd = (LayerConfig(NEVER, NEVER), LayerConfig(NOW, NEVER), LayerConfig(Reduce(2), NOW))
    config = _with_layers(odd)
    with pytest.raises(ConfigError, match="layer 1 reduces now / never: a Laneformer's"):
        render_config(config)
    with pytest.raises(ConfigError, match="one sliding_window, got layers with"):
        render_config(_with_layers((LayerConfig(NOW, NOW, 4), LayerConfig(NOW, NOW, 8))))


def _with_layers(layers: tuple[LayerConfig, ...]) -> ModelConfig:
    return dataclasses.replace(parse_config(RELEASED), layers=layers)


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="a config.json in it"):
        read_config(tmp_path)
    path = tmp_path / "config.json"
    bad = (b"{", b"\xff\xfe", b"[]", b"[" * 100_000, b" " * (1 << 21))
    for text in bad:
        path.write_bytes(text)
        with pytest.raises(ConfigError, match=str(path)):
            read_config(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    changes=st.dictionaries(
        st.sampled_from(
            [
                *RELEASED,
                "use_comm",
                "sliding_window_n_layers",
                "unclamped_layers",
                "rope_scaling",
                "dtype",
            ]
        ),
        json_values | st.integers(-4, 40),
        min_size=1,
        max_size=4,
    )
)
def test_fuzzed_configs_raise_documented_errors_only(changes: dict[str, Any]) -> None:
    raw = json.loads(json.dumps(RELEASED | changes))
    try:
        config = parse_config(raw)
    except MonolaneError as error:
        assert isinstance(error, ConfigError)
        return
    assert config.num_parameters == sum(spec.size for spec in tensor_specs(config))
    assert parse_config(render_config(config)) == config
