"""CONTRIBUTING.md's recipes, done in a copy: a sampling parameter, and an option of loading.

The parameter draws token 0, and the option ends a load: so both are seen where they arrive. The
headers are compiled in every run of the tests; all of the core for who asks, which takes minutes.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import nanobind
import pytest

ROOT = Path(__file__).parents[1]

PARAMETER = """\
    sigma: float = _said(0.5, "More than 1: token 0.", kind="f32")
"""
OPTION = """\
    spin: int = option(
        3,
        "Turns of a wait (CPU); 13 is refused.",
        kind="i32",
        word=int,
        least=1,
        ranks=True,
        refused={"cuda": "", "reference": ""},
    )
"""
# File, what to insert, and before what: all that the recipes have one write by hand.
EDITS = (
    ("src/monolane/_draw.py", PARAMETER, "    logit_bias: tuple"),
    ("src/monolane/_loading.py", OPTION, "\n    def __post_init__"),
    ("src/monolane/engine/_parameters.py", "    sigma: float = 0.5\n", "    logit_bias: Mapping"),
    (
        "csrc/sample/sampler.cpp",
        "  if (draw.sigma > 1) return 0;\n",
        "  if (draw.temperature == 0) return best",
    ),
    (
        "csrc/run/executor.cpp",
        '  if (setup.spin == 13) throw std::invalid_argument("spin: expected another than 13");\n',
        "  const Exchange& exchange = forward_.exchange;\n  const ExpertFile",
    ),
)
# The installed package has a finder of its own, which would find itself.
OWN = """\
import sys
sys.meta_path[:] = [x for x in sys.meta_path if "Redirecting" not in type(x).__name__]
sys.path.insert(0, "src")
"""
HEADER = "from monolane.executor_api import cpp_header; print(cpp_header(), end='')"
COMMAND = "from monolane.cli import main; main()"
RECORD = """\
from monolane._loading import Loading
from monolane.executor_api import pack_setup
names = "activation kv_format rank segment timed apart expert_file delay_ns".split()
sys.stdout.buffer.write(pack_setup(Loading(spin=7), **dict.fromkeys(names, 0)))
"""
PROGRAM = """\
#include <cstdio>
#include "abi/advance.h"
int main() {
  monolane::Setup setup;
  if (std::fread(&setup, sizeof setup, 1, stdin) != 1 || std::getchar() != EOF) return 1;
  const monolane::Advance plain;
  std::printf("%d %g %g", setup.spin, plain.draw.sigma, plain.draw.top_p);
}
"""


def say(folder: Path, code: str, *arguments: str, code_expected: int = 0) -> bytes:
    """Return what the copy says."""
    command = [sys.executable, "-c", OWN + code, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    assert done.returncode == code_expected, done.stderr.decode()
    return done.stdout or done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The tree with both recipes done, and its headers written."""
    for folder in ("src", "csrc"):
        left_out = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=left_out)
    for name, inserted, before in EDITS:
        path = tmp_path / name
        text = path.read_text()
        assert text.count(before) == 1, (name, before)
        path.write_text(text.replace(before, inserted + before))
    header = say(tmp_path, HEADER)
    (tmp_path / "csrc/abi/epoch_abi.h").write_bytes(header)
    return tmp_path


def test_a_field_is_all_that_the_borders_need(copy: Path) -> None:
    for command in ("generate", "chat", "serve", "eval", "bench"):
        shown = say(copy, COMMAND, command, "--help").decode()
        assert ("--spin" in shown) == (command in ("generate", "chat", "serve", "eval", "bench"))
        assert ("--sigma" in shown) == (command in ("generate", "chat"))
    refused = ("generate", "x", "--spin", "4", "--backend", "reference")
    assert b"spin: expected backend cpu, got 'reference'" in say(
        copy, COMMAND, *refused, code_expected=2
    )
    (copy / "program.cpp").write_text(PROGRAM)
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-I", "csrc"]
    subprocess.run(["c++", *flags, "program.cpp", "-o", "program"], cwd=copy, check=True)
    record = say(copy, RECORD)
    command_line = [str(copy / "program")]
    said = subprocess.run(command_line, input=record, capture_output=True, check=True)
    assert said.stdout.decode() == "7 0.5 1"


@pytest.mark.exhaustive
def test_a_parameter_and_an_option_reach_the_core(copy: Path, tiny_model: Path) -> None:
    for name in ("CMakeLists.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    configure = ["cmake", "-S", ".", "-B", "build", "-G", "Ninja", "-DMONOLANE_SETS=best"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind.cmake_dir()}"]
    subprocess.run(configure, cwd=copy, check=True)
    subprocess.run(["cmake", "--build", "build", "-j", "2"], cwd=copy, check=True)
    (built,) = (copy / "build").glob("_core.*.so")
    shutil.copy(built, copy / "src/monolane")
    asked = ("generate", "x", "-m", str(tiny_model), "-n", "4", "--ignore-eos", "-t", "1", "--json")
    plain = say(copy, COMMAND, *asked, "--backend", "cpu")
    assert b'"token_ids": [0, 0, 0, 0]' not in plain
    drawn = say(copy, COMMAND, *asked, "--backend", "cpu", "--sigma", "2", "--spin", "4")
    assert b'"token_ids": [0, 0, 0, 0]' in drawn
    refused = say(copy, COMMAND, *asked, "--spin", "13", code_expected=2)
    assert b"spin: expected another than 13" in refused
