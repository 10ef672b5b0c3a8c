"""What a machine lacks is found out, and told with its mend."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import emulation
import pytest

from monolane.cuda import _probe
from monolane.cuda._probe import examine

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def stub(kernel_folder: Path) -> Iterator[str]:
    compiler = emulation.find_compiler()
    assert compiler is not None
    library = kernel_folder / f"libstub-{os.getpid()}.so"
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(HERE / "stub_driver.cpp"), "-ldl"], check=True)
    yield str(library)
    library.unlink()


@pytest.fixture(autouse=True)
def _packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_probe, "PACKAGES", ("numpy",))


def test_a_machine_that_lacks_nothing(stub: str) -> None:
    machine = examine(stub)
    assert machine.lacks == ()
    assert machine.driver == (13, 0)
    assert machine.gpu is not None
    assert (machine.gpu.name, machine.gpu.compute, machine.gpu.sms) == ("Stub H200", (9, 0), 4)
    assert (machine.gpu.shared_bytes, machine.gpu.total_bytes) == (227 << 10, 1 << 33)


@pytest.mark.parametrize(
    ("settings", "what", "mend"),
    [
        (
            {"STUB_MAJOR": "7"},
            "Stub H200 has compute capability 7.0; expected 8.0 or later",
            "use a GPU of the Ampere generation or later",
        ),
        (
            {"STUB_DRIVER": "12040"},
            "a driver for CUDA 12.4; expected 13.0",
            "update the driver to 580 or later",
        ),
        (
            {"STUB_INIT": "100"},
            "the driver does not answer: cuInit: error 100 (some error)",
            "nvidia-smi",
        ),
    ],
)
def test_what_is_missing_is_named(
    stub: str, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], what: str, mend: str
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    (lack,) = examine(stub).lacks
    assert (lack.what, lack.mend) == (what, mend)


def test_packages_that_are_missing_are_named(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_probe, "PACKAGES", ("numpy", "no_such_package.part", "numpy.no_part"))
    (lack,) = examine(stub).lacks
    assert lack.what == "packages: no_such_package.part, numpy.no_part"
    assert lack.mend == "pip install 'monolane[cuda]'"


def test_no_driver() -> None:
    machine = examine("libcuda-that-is-not-there.so")
    assert (machine.driver, machine.gpu) == (None, None)
    (lack,) = machine.lacks
    assert lack.what == "no NVIDIA driver (libcuda-that-is-not-there.so is not there)"


def test_looking_imports_no_cuda_package() -> None:
    code = (
        "import sys; from monolane.engine import find_backend; find_backend('auto')\n"
        "import monolane.cuda\nmonolane.cuda.examine('none.so')\n"
        "print([m for m in sys.modules if m.split('.')[0] == 'cuda'])"
    )
    out: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "[]", out.stderr
