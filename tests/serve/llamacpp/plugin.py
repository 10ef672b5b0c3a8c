"""What pytest is told beside llama.cpp's tests, none of whose files is changed.

- The tests of ``left_out.toml`` are not run, or (``MONOLANE_LEFT_OUT=run``) nothing but those.
- No model is downloaded.
- Texts that only their models write are not compared: ``match_regex`` holds for any text. What a
  grammar or a schema makes of an answer is still compared, for it is ours as much as theirs.
"""

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
LEFT_OUT = tomllib.loads((FOLDER / "left_out.toml").read_text())
GRAMMATICAL = re.compile(r"\"42\"|foooooo|a\{5,5\}")
outcomes: dict[str, str] = {}


def reason_of(name: str) -> str | None:
    """Return why a test is left out; ``name`` is "file.py::test[parameters]"."""
    for reason, patterns in LEFT_OUT.items():
        if any(re.fullmatch(pattern, name) for pattern in patterns):
            return reason
    return None


def pytest_configure(config: Any) -> None:
    import utils

    strict = utils.match_regex
    utils.match_regex = lambda regex, text: (
        strict(regex, text) if GRAMMATICAL.search(regex) else isinstance(text, str)
    )
    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    only_left_out = os.environ.get("MONOLANE_LEFT_OUT") == "run"
    kept, dropped = [], []
    for item in items:
        name = item.nodeid.removeprefix("unit/")
        left = reason_of(name) is not None
        if left and not only_left_out:
            outcomes[name] = "left out"
        (kept if left == only_left_out else dropped).append(item)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: Any) -> None:
    name = report.nodeid.removeprefix("unit/")
    if report.when == "call" or report.outcome != "passed":
        outcomes[name] = report.outcome if outcomes.get(name) != "failed" else "failed"


def pytest_sessionfinish() -> None:
    Path(os.environ["MONOLANE_OUTCOMES"]).write_text(json.dumps(outcomes, indent=1))
