"""Whole probes through the real bindings, in a process whose driver is the stub of tests/cuda: what
is asked of it wrongly (a stream, an attribute, a size) it answers with an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import emulation
import pytest
from emulated import Kernels

HERE = Path(__file__).resolve().parent
Record = dict[str, Any]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libcuda.so.1 that is ours."""
    pytest.importorskip("cuda.bindings.driver", reason="no packages of monolane[cuda]")
    compiler = emulation.find_compiler()
    assert compiler is not None
    folder = tmp_path_factory.mktemp("stub")
    command = [compiler, "-std=c++17", "-shared", "-fPIC", *emulation.WARNINGS]
    source = HERE.parent / "cuda" / "stub_driver.cpp"
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1"), str(source), "-ldl"], check=True)
    return folder


def drive(stub: Path, kernels: Kernels, *probes: str, **settings: object) -> list[Record]:
    folder = kernels["memory.cu"].library.parent
    environment = {**os.environ, **{name: str(value) for name, value in settings.items()}}
    environment |= {"LD_LIBRARY_PATH": str(stub), "STUB_PAGEABLE": "1"}
    command = [sys.executable, str(HERE / "driven.py"), str(folder), *probes]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("probe", ["topology", "read", "waits", "launch"])
def test_a_probe_runs_through_the_bindings(stub: Path, kernels: Kernels, probe: str) -> None:
    """All but mailboxes and the host's ping: the stub ends a launch before it returns."""
    records = drive(stub, kernels, probe)
    assert [r for r in records if "error" in r] == []
    assert len([r for r in records if "not_measured" in r]) == (2 if probe == "waits" else 0)
    if probe == "topology":
        assert records[0]["max_active_clusters"] == 2
        assert records[-1]["gpc_sizes"] == [4]
    if probe == "launch":
        boundaries = [r["dependent_launch"] for r in records if r["name"] == "kernel_boundary"]
        assert boundaries == [False, True]


def test_choices_are_right_through_the_bindings(stub: Path, kernels: Kernels) -> None:
    found = drive(stub, kernels, "token", PROBE_PATIENCE=0.2)
    assert [r["name"] for r in found if "median" in r] == [
        "argmax", "argmax", "gumbel", "argmax", "gumbel",
    ]  # fmt: skip
    assert "the device did not answer ping 1 of 20" in found[-1]["error"]


def test_a_slow_device_is_waited_for(stub: Path, kernels: Kernels) -> None:
    records = drive(stub, kernels, "topology", STUB_LATE=5)
    assert [r for r in records if "error" in r] == []


def test_a_hung_device_ends_the_probe(stub: Path, kernels: Kernels) -> None:
    """After the limit of the first wait, and that of the one which asks whether it is lost."""
    (record,) = drive(stub, kernels, "read", STUB_LATE=1 << 30, PROBE_PATIENCE=0.2)
    assert record["name"] == "read_part"
    assert "expected Stub H200 to finish within 0 s, it did not" in record["error"]
