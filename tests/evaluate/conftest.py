"""The copied problems, and a guard that skips where none is permitted."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from monolane.evaluate import Guard, Limits
from monolane.evaluate._evalplus.problems import HUMANEVAL, MBPP, find_problems

sys.path.insert(0, str(Path(__file__).parent))  # what tests share lies in modules beside them

PROBLEMS = Path(__file__).parent / "problems"


@pytest.fixture(scope="session")
def problems() -> dict[str, dict[str, Any]]:
    """The copied problems by their ids."""
    found = [find_problems(each, [PROBLEMS]).rows for each in (HUMANEVAL, MBPP)]
    return {row["task_id"]: row for rows in found for row in rows}


@pytest.fixture(scope="session")
def scorer() -> None:
    """Skips where there is no scorer."""
    if find_spec("evalplus") is None:
        pytest.skip("needs evalplus: pip install 'monolane[eval]'")


@pytest.fixture(scope="session")
def guard(scorer: None) -> Guard:
    """A guard with short limits; skips where it is not permitted."""
    # An endless loop costs these 2 s; a machine that stands still must not fail sound code.
    return permitted(Guard(Limits(seconds=240, least_seconds=2.0)))


@pytest.fixture(scope="session", params=["bubblewrap", "namespaces"])
def full_guard(scorer: None, request: pytest.FixtureRequest) -> Guard:
    """A guard of each maker."""
    return permitted(Guard(Limits(seconds=240, least_seconds=2.0), maker=request.param))


@pytest.fixture(scope="session", params=["bubblewrap", "namespaces", "weak"])
def any_guard(scorer: None, request: pytest.FixtureRequest) -> Guard:
    """A guard of each maker, and a weak one."""
    limits = Limits(seconds=240, least_seconds=2.0)
    if request.param == "weak":
        return permitted(Guard(limits, "weak"))
    return permitted(Guard(limits, maker=request.param))


def permitted(guard: Guard) -> Guard:
    """Return the guard if it can be used here, else skip."""
    if guard.maker == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap: apt-get install bubblewrap")
    if reason := guard.refusal():
        pytest.skip(f"this machine refuses the guard: {reason}")
    return guard
