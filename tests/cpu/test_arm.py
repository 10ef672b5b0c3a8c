"""64-bit Arm, which no machine here is: the native core cross-compiled, and run by an emulator.

Debian's qemu-user runs a program of another processor and passes its system calls on. It computes
what the architecture's manual says, so numbers are proven; speeds are not, and threads of the
emulator meet as those of this machine do, in a stronger order of memory than Arm's.
"""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from . import arm_cases

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "aarch64"  # kept: a second run compiles what has changed
NEEDED = {
    "aarch64-linux-gnu-g++": "apt-get install g++-aarch64-linux-gnu",
    "qemu-aarch64": "apt-get install qemu-user",
    "cmake": "pip install cmake",
}
MISSING = [f"no {name}: {mend}" for name, mend in NEEDED.items() if shutil.which(name) is None]
# What a processor can run, and the best of it.
PROCESSORS = {
    "cortex-a57": "portable, neon; best: neon",
    "neoverse-n1": "portable, neon, neon_dot; best: neon_dot",
    "max": "portable, neon, neon_dot, neon_i8mm; best: neon_i8mm",
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING))]


def say(command: list[str | Path]) -> str:
    done = subprocess.run(command, text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, f"{command[-2:]}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def build() -> Path:
    """The folder of the compiled tests; other workers of pytest wait for the first."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        toolchain = ROOT / "csrc/tests/aarch64.cmake"
        ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
        say(
            [
                "cmake",
                "-S",
                "csrc/tests",
                "-B",
                BUILD,
                *ninja,
                f"-DCMAKE_TOOLCHAIN_FILE={toolchain}",
            ]
        )
        say(["cmake", "--build", BUILD, "--parallel", "2"])
    return BUILD


def run(processor: str, program: Path, cases: Path) -> str:
    return say(["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu", processor, program, cases])


@pytest.mark.parametrize("processor", PROCESSORS)
def test_kernels(build: Path, tmp_path: Path, processor: str) -> None:
    """Bit by bit: see csrc/tests/kernels_test.cpp. And each processor gets the sets that it has."""
    cases = tmp_path / "cases"
    count = arm_cases.write_cases(cases)
    said = run(processor, build / "kernels_test", cases)
    assert said == f"{count} cases hold on {PROCESSORS[processor]}\n"


def test_executor(build: Path, tmp_path: Path) -> None:
    """Every kind of phase and of product on the best set; epochs, drafts, guides and ranks."""
    cases = tmp_path / "cases"
    say([sys.executable, "csrc/tests/write_cases.py", cases, "--few"])
    assert "all holds" in run("max", build / "executor_test", cases)
