"""What the tests of this folder share: emulated GPUs, whose compiled kernels a session keeps."""

import fcntl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import emulation
from emulated_gpu import EmulatedGpu
from rig import MakeRig, Rig

from monolane.cuda import CudaExecutor
from monolane.model import Weights

MakeGpu = Callable[..., EmulatedGpu]


KEPT_BYTES = 400 << 20  # of compiled kernels, some 150 KB each; the least recently used go first


@pytest.fixture(scope="session")
def kernel_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled kernels are kept, for all processes and from run to run.

    In pytest's own cache: their names are digests of all that they are made from, compiler included
    (emulation._digest), so that only what has changed since is compiled again.
    """
    if emulation.find_compiler() is None:
        pytest.skip(emulation.NO_COMPILER)
    cache = getattr(request.config, "cache", None)  # none with -p no:cacheprovider
    folder = tmp_path_factory.mktemp("kernels") if cache is None else cache.mkdir("kernels")
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _prune(folder)
    return folder


def _prune(folder: Path) -> None:
    """Forget kernels beyond KEPT_BYTES; one that is used by another process is made again there."""
    day = time.time() - 86_400
    made = [path for path in folder.rglob("*") if path.suffix in (".so", ".o", ".gch")]
    found = sorted(made, key=lambda path: path.stat().st_mtime, reverse=True)
    total = 0
    for path in found:
        total += path.stat().st_size
        if total > KEPT_BYTES and path.stat().st_mtime < day:
            path.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def make_rig(kernel_folder: Path) -> MakeRig:
    """Makes rigs: see `Rig`."""

    def make(weights: Weights, **wish: Any) -> Rig:
        return Rig(weights, kernel_folder, **wish)

    return make


@pytest.fixture(autouse=True)
def _two_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated executors have two kernels, not three, to compile; tests of a third ask for it."""
    monkeypatch.setattr(CudaExecutor, "WIDTHS", (1, 8))


@pytest.fixture
def make_gpu(kernel_folder: Path) -> Iterator[MakeGpu]:
    """Makes emulated GPUs, and closes them."""
    made: list[EmulatedGpu] = []

    def make(**wish: object) -> EmulatedGpu:
        made.append(EmulatedGpu(kernel_folder, **wish))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for gpu in made:
        gpu.close()
