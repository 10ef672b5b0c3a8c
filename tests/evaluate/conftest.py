"""The copied problems, and a guard that skips where none is permitted."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import BackendError
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
def guard(problems: dict[str, dict[str, Any]]) -> Guard:
    """A guard with short limits; skips where scorer or namespaces are missing."""
    if find_spec("evalplus") is None:
        pytest.skip("needs evalplus: pip install 'monolane[eval]'")
    # An endless loop costs these 2 s; a machine that stands still must not fail sound code.
    made = Guard(Limits(seconds=240, least_seconds=2.0))
    try:
        made.score("humaneval", problems["HumanEval/53"], "pass", sanitize=False)
    except BackendError as error:
        pytest.skip(f"needs namespaces: {error}")
    return made
