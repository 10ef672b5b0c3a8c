"""`bench` is no installed package: its modules are imported from the repository's root. The
emulated device compiles the kernels with the host's C++ compiler, once until they change."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "cuda"), str(Path(__file__).resolve().parent)):
    if folder not in sys.path:
        sys.path.insert(0, folder)
if str(ROOT / "bench") not in sys.path:  # which bench/table.py imports from
    sys.path.append(str(ROOT / "bench"))

from emulated import EmulatedDevice, Kernels  # noqa: E402
from emulation import NO_COMPILER, find_compiler  # noqa: E402
from probing import run_probe  # noqa: E402

from bench.gpu import _child  # noqa: E402
from bench.gpu.probes.run import PROBES  # noqa: E402
from monolane._results import Record  # noqa: E402


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    if find_compiler() is None:
        pytest.skip(NO_COMPILER)
    # Kept from run to run: their names are digests of all that they are made from.
    cache = getattr(request.config, "cache", None)  # none with -p no:cacheprovider
    # In the folder of the other kernels: the emulator, which is half of each, is compiled once.
    made = Kernels(tmp_path_factory.mktemp("emulated") if cache is None else cache.mkdir("kernels"))
    made.build_all()
    return made


@pytest.fixture
def kernel_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of work whose compiled kernels are kept from run to run."""
    if find_compiler() is None:
        pytest.skip(NO_COMPILER)
    cache = getattr(request.config, "cache", None)  # None: without its plugin
    work = tmp_path_factory.mktemp("work")
    if cache is not None:
        (work / "kernels").symlink_to(cache.mkdir("kernels"))
    return work


@pytest.fixture(scope="session")
def measured(kernels: Kernels) -> dict[str, list[Record]]:
    """The records of every probe but matvec, which takes longer."""
    names = [one.name for one in PROBES if one.name != "matvec"]
    return {name: run_probe(name, EmulatedDevice(kernels)) for name in names}


@pytest.fixture
def device(kernels: Kernels) -> EmulatedDevice:
    return EmulatedDevice(kernels)


@pytest.fixture
def limit_from_the_first_record(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """A part's time begins with its first record: how long imports take is the machine's affair."""

    def patch(records: Path) -> None:
        class Child(subprocess.Popen[bytes]):
            def wait(self, timeout: float | None = None) -> int:
                begun = timeout is None
                while not begun and self.poll() is None:
                    begun = records.exists() and records.stat().st_size > 0
                    time.sleep(0.01)
                return super().wait(timeout)

        monkeypatch.setattr(_child.subprocess, "Popen", Child)

    return patch
