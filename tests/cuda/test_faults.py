"""Faults in words."""

import numpy as np
import pytest
from models import random_weights

from monolane.cuda._faults import WAITS, describe_fault
from monolane.cuda._program import Exchange
from monolane.plan import DeviceDescription, Plan, build


@pytest.fixture(scope="module")
def plan() -> Plan:
    device = DeviceDescription(
        name="t",
        workers=6,
        bandwidth=1e12,
        compute=1e14,
        source="a test",
        chunk=16,
        tile_rows=16,
    )
    return build(random_weights().config, device, "bfloat16")


def fault(*words: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array([*words, *[0] * (8 - len(words))], np.uint32)


def test_every_wait_of_the_kernel_has_its_words() -> None:
    assert {*WAITS, Exchange.ACTIVATIONS} == set(Exchange), "ACTIVATIONS are never polled"
    assert 0 not in WAITS, "0 says that nothing starved"


@pytest.mark.parametrize(
    ("phase", "name"),
    [(0, "QKV 0"), (2, "OUT 0"), (6, "ATTEND 1"), (19, "DOWN 3"), (20, "HEAD"), (21, "CHOOSE")],
)
def test_phases_are_counted_as_the_kernel_counts(plan: Plan, phase: int, name: str) -> None:
    text = describe_fault(fault(Exchange.STREAM, 4, 77, phase, 9, 123), plan)
    assert text == (
        "block 4 (lane 1, SM 77) waited in vain for the residual stream of its lane, "
        f"in {name} of pass 123, detail 9"
    )


def test_unknown_numbers_are_told_as_they_are(plan: Plan) -> None:
    text = describe_fault(fault(200, 0, 0, 99), plan)
    assert "in vain for wait 200, in phase 99 of pass 0" in text
