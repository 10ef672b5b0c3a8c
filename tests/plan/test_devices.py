"""Descriptions of machines, and the formats of weights."""

from dataclasses import replace

import pytest

from monolane.errors import ConfigError, RequestError
from monolane.plan import B200, H100, H200, MI300X, MI350X, Choice, cpu, find_device


def test_names() -> None:
    assert find_device("h200") is H200
    assert find_device("MI300X") is MI300X
    assert [find_device(n) for n in ("h100", "b200", "mi350x")] == [H100, B200, MI350X]
    eight = find_device("8xh200")
    assert (eight.name, eight.devices, eight.total_workers) == ("8xh200", 8, 1024)
    assert eight.total_bandwidth == 8 * H200.bandwidth
    assert eight.total_compute == 8 * H200.compute
    assert find_device("cpu:3") == cpu(3)
    assert find_device("cpu").workers >= 1
    assert cpu(2).choice is Choice.LEADER
    assert all(device.source for device in (H100, H200, B200, MI300X, MI350X, cpu(1)))


def test_bandwidths_are_those_that_were_found_effective() -> None:
    """Published ceilings of a 2 B model in 16 bits, 4 GB a token: 7,700 and 8,400 tokens/s."""
    for name, ceiling in (("8xh200", 7_700), ("8xmi300x", 8_400)):
        device = find_device(name)
        assert device.total_bandwidth / 4e9 == pytest.approx(ceiling, rel=0.005)
        assert "effective" in device.source
        assert "datasheet" in device.source


@pytest.mark.parametrize("name", ["", "gpu", "cpu:", "cpu:x", "xh200", "8x", "2xcpu", "h200:2"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(RequestError, match=f"device: expected cpu, cpu:N, .* got '{name}'"):
        find_device(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "workers: expected 1 to 4096, got 0"),
        ({"workers": 2.0}, "workers: expected 1 to 4096, got 2.0"),
        ({"devices": 9999}, "devices: expected 1 to 4096, got 9999"),
        ({"devices": 64}, "expected at most 4096 workers on all devices, got 64 x 128"),
        ({"bandwidth": 0}, "bandwidth: expected a finite number above zero, got 0"),
        ({"compute": float("nan")}, "compute: expected a finite number above zero, got nan"),
        ({"cache_bytes": -1}, "cache_bytes: expected zero or more, got -1"),
        ({"chunk": 0}, "chunk: expected 1 to 4096, got 0"),
    ],
)
def test_a_description_must_make_sense(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(H200, **changes)
