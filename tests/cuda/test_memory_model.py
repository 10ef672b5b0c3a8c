"""The memory model that the kernel's protocols are proven in, and the protocols.

The model is held to published verdicts, and each protocol must need each of its parts.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.gpu.litmus.check import check
from bench.gpu.litmus.program import Litmus, read_litmus
from bench.gpu.litmus.protocols import PROTOCOLS

HERE = Path(__file__).parent
PUBLISHED = list(read_litmus((HERE / "published_litmus.txt").read_text()))
PARTS = [(test, part) for test in PROTOCOLS for part in test.parts]


def named(test: Litmus) -> str:
    """Return what pytest calls it."""
    return test.name.replace(" ", "-")


@pytest.mark.parametrize("test", PUBLISHED, ids=named)
def test_a_published_verdict_is_the_model_s(test: Litmus) -> None:
    verdict = check(test)
    assert verdict.holds, f"{test.condition}: {verdict.witness}"


def test_all_published_verdicts_are_there() -> None:
    assert len({test.name for test in PUBLISHED}) == len(PUBLISHED) == 264


@pytest.mark.parametrize("test", PROTOCOLS, ids=named)
def test_a_protocol_holds(test: Litmus) -> None:
    verdict = check(test)
    assert verdict.executions
    assert verdict.holds, verdict.witness


@pytest.mark.parametrize(("test", "part"), PARTS, ids=[f"{named(t)}-{p}" for t, p in PARTS])
def test_a_protocol_needs_each_part(test: Litmus, part: str) -> None:
    assert not check(test.without(part)).holds


def test_a_wrong_text_is_named() -> None:
    with pytest.raises(ValueError, match="expected an instruction, got 'move r0 r1'"):
        list(read_litmus("test t\nx=0\n0.0 | move r0 r1\nmay 0:r0=1"))
    with pytest.raises(ValueError, match="expected may, never, always or not-always"):
        list(read_litmus("test t\nx=0\n0.0 | st.weak x 1\nexists x=1"))
