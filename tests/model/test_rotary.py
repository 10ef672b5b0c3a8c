import math

import numpy as np
import pytest

from monolane.errors import ConfigError
from monolane.model import Llama3Scaling, Rotary


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


def test_scaling_needs_a_band() -> None:
    with pytest.raises(ConfigError, match="expected high_freq_factor above low_freq_factor"):
        Llama3Scaling(8.0, 4.0, 4.0, 4096)
