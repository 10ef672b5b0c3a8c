"""The native module's face: its stubs are generated, and this is where drift shows."""

import subprocess
import sys
from pathlib import Path

import pytest

import monolane

STUBS = Path(monolane.__file__).with_name("_core")


def test_the_stubs_are_the_module(tmp_path: Path) -> None:
    pytest.importorskip("nanobind")
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-r", "-m", "monolane._core"]
    subprocess.run([*command, "-O", str(tmp_path)], check=True)
    written = {path.name: path.read_text() for path in (tmp_path / "_core").iterdir()}
    committed = {path.name: path.read_text() for path in STUBS.iterdir()}
    assert written == committed, (
        "write them again: python -m nanobind.stubgen -r -m monolane._core -O src/monolane"
    )
