import math
from typing import Any

import numpy as np
import pytest

from monolane.errors import ConfigError
from monolane.model import LinearScaling, Llama3Scaling, Rotary, YarnScaling, parse_config


def test_frequencies_are_powers_of_theta() -> None:
    expected = [1.0, 10000 ** (-2 / 6), 10000 ** (-4 / 6)]
    np.testing.assert_allclose(Rotary().frequencies(6), expected, rtol=2**-24)


def test_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 4096)
    plain = Rotary(5e5).frequencies(128)
    scaled = Rotary(5e5, scaling=scaling).frequencies(128)
    wavelength = 2 * math.pi / plain
    short, long = wavelength < 4096 / 4, wavelength > 4096 / 1
    between = ~short & ~long
    assert short.any()
    assert long.any()
    assert between.any()
    np.testing.assert_array_equal(scaled[short], plain[short])
    np.testing.assert_allclose(scaled[long], plain[long] / 8, rtol=2**-23)
    assert ((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 8)).all()


def test_scaling_needs_factors_in_order() -> None:
    with pytest.raises(ConfigError, match="expected high_freq_factor to be at least low_freq_fac"):
        Llama3Scaling(8.0, 4.0, 3.0, 4096)


def test_a_band_of_no_width_is_a_step() -> None:
    """As Llama 4 has it."""
    plain = Rotary(5e5).frequencies(64)
    scaled = Rotary(5e5, scaling=Llama3Scaling(8.0, 1.0, 1.0, 4096)).frequencies(64)
    long = 4096 * plain / (2 * math.pi) < 1
    assert 0 < long.sum() < len(plain)
    np.testing.assert_array_equal(scaled[~long], plain[~long])
    np.testing.assert_array_equal(scaled[long], plain[long] / 8)


def test_linear_scaling_stretches_all_waves() -> None:
    plain, scaled = Rotary(5e5), Rotary(5e5, scaling=LinearScaling(8.0))
    np.testing.assert_array_equal(scaled.frequencies(64), plain.frequencies(64) / 8)
    assert scaled.amplitude == 1


def test_yarn_keeps_short_waves_stretches_long_ones_and_blends_by_number() -> None:
    # Within 128 positions pair i turns 128 / (2 pi) 100^(-i/16) times: 32 times pair -1.6, once
    # pair 10.5. So the blend goes from pair 0, which is kept, to pair 11.
    plain = Rotary(100.0).frequencies(32)
    scaled = Rotary(100.0, scaling=YarnScaling(4.0, 128, 1.1)).frequencies(32)
    share = np.clip(np.arange(16) / 11, 0, 1)
    np.testing.assert_allclose(scaled, plain * (1 - share) + plain / 4 * share, rtol=2**-22)
    whole = YarnScaling(4.0, 128, 1.1, beta_fast=8.0, beta_slow=2.0, truncate=False)
    first, last = (16 * math.log(128 / (x * 2 * math.pi)) / math.log(100) for x in (8, 2))
    share = np.clip((np.arange(16) - first) / (last - first), 0, 1)
    scaled = Rotary(100.0, scaling=whole).frequencies(32)
    np.testing.assert_allclose(scaled, plain * (1 - share) + plain / 4 * share, rtol=2**-22)


def test_yarn_needs_its_turns_in_order_and_a_base() -> None:
    with pytest.raises(ConfigError, match="beta_fast to be at least beta_slow, got 1 and 2"):
        YarnScaling(4.0, 32, 1.0, 1, 2)
    with pytest.raises(ConfigError, match="rope_theta above 1 with YaRN, got 1"):
        Rotary(1, scaling=YarnScaling(4.0, 32, 1.0))


@pytest.mark.parametrize("head_dim", [8, 14, 128])
@pytest.mark.parametrize("context", [4, 32, 4096])
@pytest.mark.parametrize(
    "options",
    [
        {"rope_type": "linear"},
        {"rope_type": "yarn"},
        {"rope_type": "yarn", "truncate": False},
        {"rope_type": "yarn", "beta_fast": 2, "beta_slow": 2},
        {"rope_type": "yarn", "beta_fast": 4.0, "beta_slow": 0.25},
        {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 1.2},
        {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 0},
        {"rope_type": "yarn", "attention_factor": 0.9},
        {"rope_type": "yarn", "factor": None},
    ],
)
def test_stretches_are_those_of_transformers(
    options: dict[str, Any], context: int, head_dim: int
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stretch = {"rope_theta": 1e4, "factor": 8.0} | options
    if stretch["rope_type"] == "yarn":
        stretch["original_max_position_embeddings"] = context
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 8}
    sizes |= {"num_attention_heads": 2, "head_dim": head_dim, "max_position_embeddings": 8192}
    theirs = LlamaConfig(**sizes, rope_parameters=dict(stretch))
    frequencies, amplitude = ROPE_INIT_FUNCTIONS[stretch["rope_type"]](theirs, "cpu")
    ours = parse_config({"model_type": "llama", **sizes, "rope_parameters": stretch}).rotary
    # Theirs are powers in float32, whose exponents' rounding counts (ln theta) / 2 units.
    # Then three products.
    rtol = (math.log(1e4) / 2 + 3) * 2**-23
    np.testing.assert_allclose(ours.frequencies(head_dim), frequencies.numpy(), rtol=rtol)
    assert ours.amplitude == pytest.approx(amplitude, rel=1e-12)


def test_frequencies_that_are_no_numbers_are_refused() -> None:
    """A base so small that its powers overflow: every angle would be NaN, and every logit."""
    with pytest.raises(ConfigError, match="finite frequency, got rope_theta 1e-300"):
        Rotary(theta=1e-300).frequencies(64)
