"""A file of weights that is cut short while it is read ends the process with a word about it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monolane.sources import find_model

CUT = """
import os, shutil, sys
from pathlib import Path
import numpy as np
from monolane.model import Weights
from monolane.cpu import CpuExecutor
folder = Path(sys.argv[1])
weights = Weights.open(folder)
if "alone" not in sys.argv:
    executor = CpuExecutor(weights, context=16, slots=1)
if "own" in sys.argv:
    import faulthandler
    faulthandler.enable()
os.truncate(folder / "model.safetensors", 0)
for array in weights.outer.values():
    print(float(array.astype(np.float32).sum()))
"""


def cut(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CUT, str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import shutil

    target = tmp_path / "mo\tdel"
    shutil.copytree(find_model("demo"), target)
    return target


@pytest.mark.parametrize("reader", ["executor", "alone"])
def test_the_file_is_named(folder: Path, reader: str) -> None:
    """Whoever reads: an executor is there, or only NumPy, as in conversions."""
    done = cut(folder, reader)
    assert done.returncode == 1, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("monolane: ")
    assert "model.safetensors: expected the file that" in line
    assert "\t" not in line


def test_a_handler_that_is_there_stays(folder: Path) -> None:
    done = cut(folder, "own")
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr
