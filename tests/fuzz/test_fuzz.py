"""Files with random faults are read, or refused with an error of ours; nothing else comes of them.

A fixed number of inputs of each kind, and no clock. fuzz.py reads more of them.
"""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz import fuzz
from readers import CASES

USUAL = 200
INPUTS = {"config": 150, "safetensors": 150, "gguf": 150, "index": 60, "settings": 40}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_every_input_is_read_or_refused(kind: str) -> None:
    found = fuzz(kind, INPUTS.get(kind, USUAL))
    assert found.faults == []
    assert found.read > 0, "no input is read: the seed itself is refused"
    assert sum(found.refused.values()) > 0, "no input is refused: nothing is changed"


def test_the_page_says_how_many() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| \d+ \| \d+ \|$", page, re.MULTILINE)
    assert {kind: int(count) for kind, count in rows} == {
        kind: INPUTS.get(kind, USUAL) for kind in CASES
    }
