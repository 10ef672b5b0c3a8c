"""What scripts/check takes, and which tests are of its unit tier."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize("given", [["types"], ["--fast", "types"], ["--fast", "--unit"]])
def test_what_is_not_known_is_refused(given: list[str]) -> None:
    done = subprocess.run(
        [TESTS.parent / "scripts/check", *given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "usage: scripts/check [--fast | --unit]" in done.stderr
    assert f"expected --fast, --unit or nothing, got '{' '.join(given)}'" in done.stderr


def run_units(folder: Path, **files: str) -> str:
    """What pytest says of the files' tests with --unit and the hooks of tests/conftest.py."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--unit", "-rA", "--rootdir", folder, folder],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_unit_tier_is_what_costs_little(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest, subprocess\n@pytest.fixture\ndef server(): return subprocess\n"
    )
    said = run_units(
        tmp_path,
        plain="def test_plain(): pass\n",
        forks="import subprocess\ndef test_forks(): pass\n",
        marked="import pytest\n@pytest.mark.slow\ndef test_marked(): pass\n",
        served="def test_served(server): pass\n",
    )
    assert "test_plain.py::test_plain" in said
    assert "1 passed, 2 deselected" in said


def test_a_unit_test_that_starts_a_process_fails(tmp_path: Path) -> None:
    hidden = "import os\ndef test_hidden(): os.fork()\n"
    said = run_units(tmp_path, hidden=hidden)
    assert "expected a unit test to start no process" in said
    assert "1 failed" in said
