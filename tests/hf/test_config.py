"""Reading both spellings of config.json, and what is said of one that does not fit together."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monolane.hf import LaneformerConfig
from monolane.model import NEVER, NOW, Reduce, parse_config, render_config

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*/config.json"))


def test_released_sizes_are_the_defaults() -> None:
    config = LaneformerConfig()
    assert (config.hidden_size, config.num_hidden_layers, config.num_lanes) == (3072, 15, 8)
    assert config.head_dim == 96
    assert config.layer_types == ["full_attention"] * 15


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ({"swa_layers": [2, 0]}, [0, 2]),
        ({"swa_layers": []}, []),
        ({"sliding_window_n_layers": 3}, [0, 1, 2]),
        ({"sliding_window_n_layers": -3}, [1, 2, 3]),
        ({"sliding_window_n_layers": 0}, []),
        ({"sliding_window_n_layers": 4}, [0, 1, 2, 3]),
        ({"sliding_window_n_layers": 2, "swa_layers": [0, 1]}, [0, 1]),
        ({"sliding_window": None}, []),
        ({"swa_layers": [0, 1, 2], "unclamped_layers": [1, 3]}, [0, 2]),
        ({"sliding_window_n_layers": 3, "unclamped_layers": [1]}, [0, 2]),
        (
            {"sliding_window_n_layers": 3, "swa_layers": [0, 2], "unclamped_layers": [1]},
            [0, 2],
        ),
        ({"swa_layers": [1], "unclamped_layers": [1], "sliding_window": None}, []),
    ],
)
def test_windowed_layers(
    given: dict[str, Any], layers: list[int], tiny: Callable[..., Any]
) -> None:
    config = tiny(**{"swa_layers": None} | given)
    assert config.swa_layers == layers
    assert [i for i, kind in enumerate(config.layer_types) if "sliding" in kind] == layers


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({}, (True, True)),
        ({"use_comm": False}, (False, False)),
        ({"use_comm": True}, (True, True)),
        ({"use_mlp_comm": False}, (True, False)),
        ({"use_comm": False, "use_attention_comm": False}, (False, False)),
    ],
)
def test_exchange(given: dict[str, Any], stored: tuple[bool, bool], tiny: Any) -> None:
    config = tiny(**given)
    assert (config.use_attention_comm, config.use_mlp_comm) == stored
    assert "use_comm" not in config.to_dict()


def test_other_spellings(tiny: Callable[..., Any]) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    for spelling in (
        {"rope_theta": 500.0, "rope_scaling": scaling},
        {"rope_parameters": {"rope_theta": 500.0, **scaling}},
        {"rope_theta": 500.0, "rope_scaling": {"type": "llama3", **scaling}},
    ):
        config = tiny(**spelling)
        assert (config.rope_theta, config.rope_scaling) == (500.0, scaling)
    plain = tiny(rope_parameters={"rope_type": "default", "rope_theta": 7.0})
    assert (plain.rope_theta, plain.rope_scaling) == (7.0, None)
    assert tiny(rms_norm_eps=1e-6).norm_eps == 1e-6
    assert tiny(norm_eps=1e-6, rms_norm_eps=1e-6).norm_eps == 1e-6
    assert tiny(head_dim=4, hidden_act="silu", attention_bias=False).head_dim == 4


def test_saved_and_read_again_it_is_the_same(tiny: Callable[..., Any], tmp_path: Path) -> None:
    config = tiny(use_mlp_comm=False, lm_head_type="replicate", tie_word_embeddings=True)
    config.save_pretrained(tmp_path)
    again = LaneformerConfig.from_pretrained(tmp_path)
    written, read = config.to_dict(), again.to_dict()
    assert {key: read[key] for key in written} == written | {
        "transformers_version": read["transformers_version"]
    }


def _rules(config: LaneformerConfig) -> list[tuple[Reduce, Reduce]]:
    meaning = {"now": NOW, "never": NEVER, "after": Reduce(config.broadcast_delay)}
    return [
        (meaning[config.reduce_rule("attention", i)], meaning[config.reduce_rule("mlp", i)])
        for i in range(config.num_hidden_layers)
    ]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_agrees_with_the_engine(path: Path) -> None:
    fields = json.loads(path.read_text())
    engine = parse_config(fields)
    config = LaneformerConfig.from_dict(fields)
    assert _rules(config) == [(x.attention_reduce, x.mlp_reduce) for x in engine.layers]
    assert [kind == "sliding_attention" for kind in config.layer_types] == [
        layer.window is not None for layer in engine.layers
    ]
    # What the engine writes is read to the same effect; a delay that nothing uses is not kept.
    rendered = LaneformerConfig.from_dict(render_config(engine))
    assert _rules(rendered) == _rules(config)
    assert rendered.to_dict() | {"broadcast_delay": 0} == config.to_dict() | {"broadcast_delay": 0}
    # And the other way round.
    written = {key: value for key, value in config.to_dict().items() if key != "dtype"}
    assert parse_config(written | {"torch_dtype": fields["torch_dtype"]}) == engine


# Per case: what is changed, and the field, the expectation and the value that the message names.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_lanes": 0}, "num_lanes: expected an integer of at least 1 but got 0"),
    ({"hidden_size": "16"}, "hidden_size: expected an integer of at least 1 but got '16'"),
    ({"num_hidden_layers": True}, "num_hidden_layers: expected an integer .* got True"),
    ({"broadcast_delay": -1}, "broadcast_delay: expected an integer of at least 0 but got -1"),
    ({"hidden_size": 18}, "hidden_size: expected a multiple of num_attention_heads = 4 but got 18"),
    ({"hidden_size": 12}, "hidden_size / num_attention_heads: expected an even .* got 3"),
    ({"num_key_value_heads": 3}, "num_attention_heads: .* multiple of num_key_value_heads = 3"),
    ({"num_lanes": 4}, "num_key_value_heads: expected a multiple of num_lanes = 4 but got 2"),
    ({"num_lanes": 8}, "num_attention_heads: expected a multiple of num_lanes = 8 but got 4"),
    ({"intermediate_size": 13}, "intermediate_size: .* multiple of num_lanes = 2 but got 13"),
    ({"vocab_size": 23}, "vocab_size: expected a multiple of num_lanes = 2 but got 23"),
    ({"lm_head_type": "tied"}, "lm_head_type: expected one of vocab_parallel, .* got 'tied'"),
    ({"pre_norm_lane_agg": True}, "lm_head_type: expected 'replicate', as pre_norm_lane_agg"),
    (
        {"tie_word_embeddings": True, "lm_head_type": "lane"},
        "lm_head_type: expected 'vocab_parallel' or 'replicate', as tie_word_embeddings",
    ),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false but got 1"),
    ({"use_early_comm": "no"}, "use_early_comm: expected true or false but got 'no'"),
    ({"use_comm": "yes"}, "use_attention_comm: expected true or false but got 'yes'"),
    (
        {"use_comm": True, "use_mlp_comm": False},
        "use_mlp_comm: expected True, as use_comm says but got False",
    ),
    ({"swa_layers": [4]}, r"swa_layers: expected a list of layer ids from 0 to 3 but got \[4\]"),
    ({"swa_layers": [-1]}, "swa_layers: expected a list of layer ids from 0 to 3"),
    ({"swa_layers": 2}, "swa_layers: expected a list of layer ids from 0 to 3 but got 2"),
    ({"swa_layers": None}, "swa_layers: expected layer ids for sliding_window = 5 but got None"),
    ({"sliding_window": None}, "sliding_window: expected an integer of at least 2.* got None"),
    ({"sliding_window": 1}, "sliding_window: expected an integer of at least 2.* got 1"),
    (
        {"swa_layers": None, "sliding_window_n_layers": -5},
        "sliding_window_n_layers: expected an integer from -4 to 4 but got -5",
    ),
    (
        {"sliding_window_n_layers": 1},
        r"swa_layers: expected \[0\], as sliding_window_n_layers says but got \[0, 2\]",
    ),
    ({"norm_eps": 0}, "norm_eps: expected a number above 0 but got 0"),
    (
        {"norm_eps": 1e-5, "rms_norm_eps": 1e-6},
        "norm_eps: expected 1e-06, as rms_norm_eps says but got 1e-05",
    ),
    ({"rope_theta": -1.0}, "rope_theta: expected a number above 0 but got -1.0"),
    ({"rope_scaling": "llama3"}, "rope_scaling: expected an object or null but got 'llama3'"),
    ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.rope_type: expected .* got 'yarn'"),
    ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling.factor: expected a number above 0"),
    (
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8,
                "low_freq_factor": 4,
                "high_freq_factor": 4,
                "original_max_position_embeddings": 32,
            }
        },
        "high_freq_factor: expected more than low_freq_factor = 4 but got 4",
    ),
    ({"head_dim": 8}, "head_dim: expected 4 but got 8"),
    ({"layer_types": ["full_attention"] * 4}, "layer_types: expected .* but got"),
    ({"hidden_act": "gelu"}, "hidden_act: expected 'silu' but got 'gelu'"),
    ({"attention_bias": True}, "attention_bias: expected False but got True"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[str(case[0])[:50] for case in WRONG])
def test_wrong_configs(changes: dict[str, Any], message: str, tiny: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        tiny(**changes)
    assert "mend this field" in str(raised.value)


@pytest.mark.parametrize("change", [{"num_lanes": 4}, {"lm_head_type": "tied"}])
def test_wrong_files(change: dict[str, Any], tiny: Callable[..., Any], tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"Laneformer config: .*expected .* but got"):
        LaneformerConfig.from_pretrained(tmp_path)


def test_quantised_folders_are_refused() -> None:
    """Transformers would load the integer codes as if they were weights."""
    scheme = {"quant_method": "monolane", "bits": 8, "group_size": 32, "symmetric": True}
    with pytest.raises(ValueError, match="quantization_config: expected none: only monolane's"):
        LaneformerConfig(quantization_config=scheme)
