"""The native module's face: its stub is generated, and this is where drift shows."""

import subprocess
import sys
from pathlib import Path

import pytest

import monolane


def test_the_stub_is_the_module(tmp_path: Path) -> None:
    pytest.importorskip("nanobind")
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "monolane._core"]
    subprocess.run([*command, "-o", str(tmp_path / "_core.pyi")], check=True)
    committed = Path(monolane.__file__).with_name("_core.pyi")
    assert (tmp_path / "_core.pyi").read_text() == committed.read_text(), (
        "write it again: python -m nanobind.stubgen -m monolane._core -o src/monolane/_core.pyi"
    )
