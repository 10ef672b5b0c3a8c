"""`bench` is no installed package: its modules are imported from the repository's root. The
emulated device compiles the kernels with the host's C++ compiler once per session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for folder in (str(ROOT), str(ROOT / "tests" / "cuda"), str(Path(__file__).resolve().parent)):
    if folder not in sys.path:
        sys.path.insert(0, folder)

from emulated import EmulatedDevice, Kernels, build  # noqa: E402
from emulation import NO_COMPILER, find_compiler  # noqa: E402

from bench._results import Record  # noqa: E402
from bench.gpu.probes._child import run_probe  # noqa: E402
from bench.gpu.probes._registry import PROBES  # noqa: E402
from bench.gpu.probes._scale import TINY  # noqa: E402


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    if find_compiler() is None:
        pytest.skip(NO_COMPILER)
    return build(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(scope="session")
def measured(kernels: Kernels) -> dict[str, list[Record]]:
    """The records of every probe but matvec, which takes longer."""
    records: dict[str, list[Record]] = {}
    for one in PROBES:
        if one.name != "matvec":
            records[one.name] = []
            run_probe(one, EmulatedDevice(kernels), 500, records[one.name].append, TINY)
    return records


@pytest.fixture
def device(kernels: Kernels) -> EmulatedDevice:
    return EmulatedDevice(kernels)
