"""Rotary positions as the families spell them."""

import math
from typing import Any

import pytest

from monolane.model import (
    LinearScaling,
    Llama3Scaling,
    Rotary,
    YarnScaling,
    parse_config,
)

from .spelled_families import (
    DENSE,
    LATENT,
    LLAMA3,
    PAIRED,
    SIZES,
    YARN,
    round_trip,
    spelled,
)

# Each kind of layers has a rotary of its own.
BY_KIND = (
    "gemma3",
    "gemma3_text",
    "gemma3n",
    "gemma3n_text",
    "gemma4",
    "gemma4_text",
    "gemma4_unified",
    "gemma4_unified_text",
    "deepseek_v4",
    "mellum",
)


@pytest.mark.parametrize("kind", [x for x in DENSE if x not in (*LATENT, *BY_KIND, "olmo3")])
@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize(
    ("stretch", "expected"),
    [
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 8}, LinearScaling(8.0)),
        (LLAMA3, Llama3Scaling(4.0, 1.0, 4.0, 32)),
        (YARN, YarnScaling(4.0, 32, 0.1 * math.log(4) + 1)),
        (
            {"type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "truncate": False},
            YarnScaling(4.0, 128, 0.1 * math.log(4) + 1, 16.0, 2.0, False),
        ),
        (YARN | {"attention_factor": 0.75}, YarnScaling(4.0, 32, 0.75)),
        (YARN | {"factor": 0.5}, YarnScaling(0.5, 32, 1.0)),
        (YARN | {"factor": None}, YarnScaling(4.0, 32, 0.1 * math.log(4) + 1)),
        (YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, YarnScaling(4.0, 32, 1.0)),
        (
            YARN | {"mscale": 2.0, "mscale_all_dim": 1.0},
            YarnScaling(4.0, 32, (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
        ),
        (
            YARN | {"mscale": 2.0, "mscale_all_dim": 0},
            YarnScaling(4.0, 32, 0.1 * math.log(4) + 1),
        ),
    ],
)
def test_rotary_in_both_spellings(
    kind: str, newer: bool, stretch: dict[str, Any], expected: Any
) -> None:
    if newer:
        fields: dict[str, Any] = {"rope_parameters": stretch | {"rope_theta": 5e5}}
    else:
        fields = {"rope_theta": 5e5, "rope_scaling": stretch}
    config = parse_config(spelled(kind, **fields))
    part = 0.5 if kind == "bamba" else 1.0
    assert config.rotary == Rotary(5e5, "interleaved" if kind in PAIRED else "half", expected, part)
    assert round_trip(config) == config


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, 0.25),
        ({"partial_rotary_factor": 0.5}, 0.5),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, 0.5),
        ({"rope_scaling": YARN, "partial_rotary_factor": 0.5}, 0.5),
        (
            {"partial_rotary_factor": 1, "rope_parameters": YARN | {"partial_rotary_factor": 0.5}},
            0.5,
        ),
    ],
)
def test_the_part_of_a_head_that_turns(fields: dict[str, Any], part: float) -> None:
    config = parse_config(SIZES | {"model_type": "qwen3_next", "head_dim": 16} | fields)
    assert (config.rotary.part, config.rotary_dim("main")) == (part, 16 * part)
    assert "rotary.part" in config.features
    assert round_trip(config) == config


def test_two_spellings_that_say_the_same() -> None:
    both = {"rope_scaling": YARN, "rope_parameters": YARN | {"rope_theta": 5e5}}
    config = parse_config(spelled("llama", **both))
    assert config.rotary == Rotary(5e5, "half", YarnScaling(4.0, 32, 0.1 * math.log(4) + 1))


@pytest.mark.parametrize("kind", ["gemma3_text", "gemma3"])
def test_rotary_of_each_kind_of_layer(kind: str) -> None:
    linear, yarn = {"rope_type": "linear", "factor": 8.0}, YARN | {"rope_theta": 100.0}
    stretched = Rotary(1e6, "half", LinearScaling(8.0))
    local = Rotary(100.0, "half", YarnScaling(4.0, 32, 0.1 * math.log(4) + 1))
    for fields, both in (
        ({}, (Rotary(1e6, "half"), Rotary(1e4, "half"))),
        ({"rope_scaling": linear}, (stretched, Rotary(1e4, "half"))),
        (
            {"rope_theta": 7.0, "rope_local_base_freq": 5.0},
            (Rotary(7.0, "half"), Rotary(5.0, "half")),
        ),
        ({"rope_parameters": {"full_attention": linear}}, (stretched, Rotary(1e4, "half"))),
        ({"rope_parameters": {"sliding_attention": yarn}}, (Rotary(1e6, "half"), local)),
        (
            {"rope_parameters": {"full_attention": linear, "sliding_attention": yarn}},
            (stretched, local),
        ),
    ):
        config = parse_config(spelled(kind, **fields))
        assert (config.rotary, config.local_rotary) == both
        assert round_trip(config) == config
        assert ("rotary.amplitude" in config.features) is (local in both)
