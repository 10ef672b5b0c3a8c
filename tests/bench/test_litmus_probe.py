"""The protocols as code for a device: what is forbidden never shows, and shows without a part."""

import dataclasses

import pytest
from emulated import EmulatedDevice, Kernels
from probing import context

from bench.gpu._stage import CheckError
from bench.gpu.litmus._source import shapes
from bench.gpu.probes._scale import TINY
from bench.gpu.probes.litmus import measure

SHAPES = shapes()
# Parts whose lack the emulator shows: its stores are late, and barriers and waits do what they say.
SEEN = (
    ("lane sync", "stores collected"),
    ("lane sync", "release"),
    ("lane sync", "handed on"),
    ("lane sync of three blocks", "release"),
    ("a word read again", "met"),
    ("a word written again", "awaited"),
    ("a word written again", "reader's barrier"),
    ("keys that a block keeps", "met"),
    ("stamps behind a barrier", "met"),
)


def seen(kernels: Kernels, name: str, part: str | None, rounds: int = 200) -> int:
    """In how many rounds what is forbidden showed."""
    number = next(i for i, (test, of) in enumerate(SHAPES) if (test.name, of) == (name, part))
    scale = dataclasses.replace(TINY, litmus_rounds=rounds)
    record = measure(context(EmulatedDevice(kernels), scale), number, *SHAPES[number])
    return int(record["seen"])


@pytest.mark.parametrize(("name", "part"), SEEN)
def test_a_part_that_lacks_shows(kernels: Kernels, name: str, part: str) -> None:
    assert seen(kernels, name, part)
    assert not seen(kernels, name, None)


def test_what_is_forbidden_is_an_error(kernels: Kernels) -> None:
    test, part = SHAPES[0]
    condition = dataclasses.replace(test.condition, products=((),))  # holds always
    wrong = dataclasses.replace(test, condition=condition)
    with pytest.raises(CheckError, match="lane sync: what is forbidden was seen in 40 of 40"):
        measure(context(EmulatedDevice(kernels), TINY), 0, wrong, part)
