"""Which instruction sets a build compiles kernels for."""

import re
import subprocess
import sys
from pathlib import Path

import nanobind

from monolane._core import kernels

ROOT = Path(__file__).parents[1]


def configure(folder: Path, sets: str) -> subprocess.CompletedProcess[str]:
    """Configure a build, and compile nothing."""
    command = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", f"-DMONOLANE_SETS={sets}"]
    command += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind.cmake_dir()}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def compiled(folder: Path) -> set[str]:
    """Return the sets whose kernels are compiled, by what Ninja is to do."""
    said = (folder / "build.ninja").read_text()
    made = re.findall(r"kernels_(\w+)\.dir/csrc/kernels/sets/(\w+)\.cpp\.o:", said)
    return {name for name, source in made if source != "absent"}


def test_an_install_compiles_the_best_set_and_the_portable_one(tmp_path: Path) -> None:
    assert configure(tmp_path, "best").returncode == 0
    best = kernels.supported()[-1]
    # What computes the products that the set does not.
    others = {"amx": {"avx512bf16", "avx512"}, "avx512bf16": {"avx512"}}
    beside = others.get(best, set())
    assert compiled(tmp_path) == {"portable", best} | beside


def test_one_set_can_be_all_that_is_compiled(tmp_path: Path) -> None:
    assert configure(tmp_path, "portable").returncode == 0
    assert compiled(tmp_path) == {"portable"}


def test_wheels_compile_all_sets(tmp_path: Path) -> None:
    assert configure(tmp_path, "all").returncode == 0
    assert compiled(tmp_path) >= {*kernels.supported(), *kernels.emulated()}


def test_an_unknown_choice_is_refused(tmp_path: Path) -> None:
    said = configure(tmp_path, "fast")
    assert said.returncode != 0
    assert "expected best, runnable, all or portable, got fast" in " ".join(said.stderr.split())
