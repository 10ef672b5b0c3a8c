"""What scripts/check takes and runs, which tests are of its unit tier, what it says of costs."""

import os
import re
import shutil
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
    assert "usage: scripts/check [--fast | --unit | --release]" in done.stderr
    assert f"expected --fast, --unit, --release or nothing, got '{' '.join(given)}'" in done.stderr


@pytest.fixture
def stub_gate(tmp_path: Path) -> Path:
    """scripts/check in a folder whose tools only say how nice they are."""
    tools = tmp_path / ".venv/bin"
    for folder in (tools, tmp_path / "tests", tmp_path / "scripts"):
        folder.mkdir(parents=True)
    shutil.copy(TESTS.parent / "scripts/check", tmp_path / "scripts/check")
    (tmp_path / "tests/test_clock.py").write_text("mark.alone")
    for name in ("ruff", "clang-format", "mypy", "pytest", "git"):
        said = "echo 1 passed in 0.1s\n" if name == "pytest" else ""
        (tools / name).write_text(f"#!/bin/sh\necho {name}: nice $(nice)\n{said}")
        (tools / name).chmod(0o755)
    return tmp_path


def run_gate(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / "scripts/check", "--fast"], capture_output=True, text=True, check=False
    )


def test_all_steps_run_at_one_priority(stub_gate: Path) -> None:
    done = run_gate(stub_gate)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^(\S+): nice (\d+)$", done.stdout, re.MULTILINE)
    assert {name for name, _ in found} == {"ruff", "clang-format", "mypy", "pytest"}
    assert len({level for _, level in found}) == 1, done.stdout


def test_a_step_that_fails_is_named(stub_gate: Path) -> None:
    (stub_gate / ".venv/bin/mypy").write_text("#!/bin/sh\nexit 3\n")
    done = run_gate(stub_gate)
    assert done.returncode == 1
    assert re.findall("FAILED: (.*)", done.stdout) == ["types"]


def run_pytest(folder: Path, *options: str, **files: str) -> str:
    """What pytest says of the files' tests with the hooks of tests/conftest.py."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *options, "-rA", "--rootdir", folder, folder],
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_unit_tier_is_what_costs_little(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest, subprocess\n@pytest.fixture\ndef server(): return subprocess\n"
    )
    said = run_pytest(
        tmp_path,
        "--unit",
        plain="def test_plain(): pass\n",
        forks="import subprocess\ndef test_forks(): pass\n",
        marked="import pytest\n@pytest.mark.slow\ndef test_marked(): pass\n",
        served="def test_served(server): pass\n",
    )
    assert "test_plain.py::test_plain" in said
    assert "1 passed, 2 deselected" in said


def test_a_unit_test_that_starts_a_process_fails(tmp_path: Path) -> None:
    hidden = "import os\ndef test_hidden(): os.fork()\n"
    said = run_pytest(tmp_path, "--unit", hidden=hidden)
    assert "expected a unit test to start no process" in said
    assert "1 failed" in said


BUSY = """
import time
def test_busy():
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass
"""
STARTS = """
import subprocess, sys
def test_starts():
    spin = "import time\\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-S", "-c", spin], check=True)
"""


def test_costs_are_told_by_file(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, "--costs", "-n", "2", busy=BUSY, starts=STARTS)
    found = re.findall(r"^ +([\d.]+) s, +([\d.]+) of children: test_(\w+).py$", said, re.MULTILINE)
    costs = {name: (float(whole), float(children)) for whole, children, name in found}
    assert costs["busy"][0] >= 0.4 > 0.1 > costs["busy"][1], said
    assert costs["starts"][0] >= costs["starts"][1] >= 0.4, said
    assert re.search(r"^ +[\d.]+ s: test_busy.py::test_busy$", said, re.MULTILINE), said
    assert said.count("was out of tests after") == 2, said
