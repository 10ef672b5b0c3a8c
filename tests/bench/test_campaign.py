"""The run as a whole: order, budget, files that survive a kill, table, command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from emulated import EmulatedDevice

from bench import _results
from bench.gpu.probes import _child, _compile, run
from bench.gpu.probes._campaign import Campaign
from bench.gpu.probes._child import Outcome, child_main, read_lines, run_probe, spawn
from bench.gpu.probes._context import Probe
from bench.gpu.probes._errors import CompileError, DeviceError
from bench.gpu.probes._registry import PROBES, probe
from bench.gpu.probes._scale import TINY
from bench.gpu.probes._table import table
from bench.gpu.probes.run import chosen, compile_kernels, main, parse

RUN = Path(__file__).resolve().parents[2] / "bench" / "gpu" / "probes" / "run.py"
INFO = {"name": "NVIDIA H200", "driver": "CUDA 13.0", "sm_count": 132, "memory_bytes": 141 * 10**9,
        "compute": [9, 0], "l2_bytes": 1, "shared_per_block": 2}  # fmt: skip


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def campaign(out: Path, runner: Any, clock: Clock, seconds: float = 480.0) -> Campaign:
    return Campaign(PROBES, runner, seconds, "run.py", "abc", "nvcc", out, out.parent, clock)


def test_slices_follow_the_weights_and_nothing_is_lost_silently(tmp_path: Path) -> None:
    clock, given = Clock(), {}

    def runner(one: Probe, seconds: float) -> Outcome:
        given[one.name] = seconds
        clock.now += seconds * (2 if one.name == "read" else 1)  # one probe overstays
        return Outcome([{"name": one.name, "median": 1.0}], INFO)

    made = campaign(tmp_path / "out.json", runner, clock)
    made.run()
    total = sum(p.weight for p in PROBES)
    assert given["topology"] == pytest.approx(470 * PROBES[0].weight / total)
    assert given["read"] == pytest.approx(470 * 4 / total)
    left = 470 - given["topology"] - 2 * given["read"]
    assert given["waits"] == pytest.approx(left * 2 / (total - 4.5))
    assert sum(given.values()) + given["read"] == pytest.approx(470)
    assert clock.now <= 480


def test_a_spent_budget_leaves_a_record_per_probe(tmp_path: Path) -> None:
    clock = Clock()

    def runner(one: Probe, seconds: float) -> Outcome:
        clock.now += 1000
        return Outcome([{"name": one.name, "median": 1.0}], INFO)

    campaign(tmp_path / "out.json", runner, clock).run()
    records = json.loads((tmp_path / "out.json").read_text())["records"]
    assert [r["name"] for r in records[1:]] == [f"{p.name}_probe" for p in PROBES[1:]]
    assert all("was spent before this probe" in r["not_measured"] for r in records[1:])


def test_the_file_is_valid_after_every_probe(tmp_path: Path) -> None:
    out, lengths = tmp_path / "out.json", []

    def runner(one: Probe, seconds: float) -> Outcome:
        if out.exists():
            document = json.loads(out.read_text())
            _results.validate(document)
            lengths.append(len(document["records"]))
        if one.name == "mailbox":
            raise KeyboardInterrupt
        return Outcome([{"name": "read_bandwidth", "gb_per_s": 4500.0 + len(lengths)}], INFO)

    with pytest.raises(KeyboardInterrupt):
        campaign(out, runner, Clock()).run()
    assert lengths == [1, 2, 3, 4, 5]
    device = json.loads(out.read_text())["device"]
    assert device["read_bandwidth_gb_s"] == 4504.0
    assert (device["name"], device["cores"], device["memory_gb"]) == ("NVIDIA H200", 132, 141.0)


def test_a_probe_without_records_is_an_error(tmp_path: Path) -> None:
    made = campaign(tmp_path / "out.json", lambda one, seconds: Outcome([]), Clock())
    made.run()
    assert all("no record at all" in r["error"] for r in made.records)


# ---- the process of one probe --------------------------------------------------------------------
def child(tmp_path: Path, body: str) -> tuple[list[str], Path]:
    records = tmp_path / "records.jsonl"
    code = f"import sys, time, os, signal; f = open({str(records)!r}, 'a')\n{body}"
    return [sys.executable, "-c", code], records


def test_a_hung_probe_is_ended_and_keeps_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_child, "GRACE_SECONDS", 1.0)
    body = """
f.write('{"device_info": {"name": "G"}}\\n{"name": "a", "median": 1}\\n{"na')
f.flush()
time.sleep(60)"""
    command, records = child(tmp_path, body)
    begin = time.monotonic()
    outcome = spawn("read", command, 0.5, records)
    assert time.monotonic() - begin < 20
    assert outcome.device == {"name": "G"}
    assert outcome.records[0] == {"name": "a", "median": 1}
    assert "did not end within" in outcome.records[1]["error"]
    assert len(outcome.records) == 2


def test_a_crashed_probe_is_reported(tmp_path: Path) -> None:
    command, records = child(tmp_path, "print('why', file=sys.stderr); os.kill(os.getpid(), 11)")
    outcome = spawn("read", command, 5, records)
    assert "exit status -11: why" in outcome.records[0]["error"]


def test_the_child_writes_device_and_records(kernels: Path, tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(_child, "run_probe", lambda p, d, s, emit: run_probe(p, d, s, emit, TINY))
    path = tmp_path / "r.jsonl"
    child_main(probe("topology"), lambda: EmulatedDevice(kernels), 100, path)
    outcome = read_lines(path)
    assert outcome.device is not None
    assert outcome.device["name"] == "Emulated"
    assert outcome.records[-1]["gpc_sizes"] == [4]


def test_a_child_without_a_device_says_so(tmp_path: Path) -> None:
    def no_device() -> Any:
        raise DeviceError("expected a GPU, got none")

    child_main(probe("read"), no_device, 1, tmp_path / "r.jsonl")
    (record,) = read_lines(tmp_path / "r.jsonl").records
    assert record["error"] == "DeviceError: expected a GPU, got none"


# ---- table and command line ----------------------------------------------------------------------
def test_the_table_has_the_deciding_figures(measured: dict[str, list[dict[str, Any]]]) -> None:
    records = [record for of_probe in measured.values() for record in of_probe]
    records.append({"name": "x", "error": "CheckError: sum"})
    text = table(records)
    for part in (
        "read_bandwidth   bulk", "copy_bandwidth   driver", "bulk read by ring KB: 16: ",
        "wait counter", "wait cooperative groups", "one-way flag, same GPC, idle",
        "clusters of 2: 2", "GPC sizes: [4]", "kernel_boundary: dependent_launch True",
        "mailbox: pattern pairs", "FAILED x: CheckError: sum", "variants not measured",
    ):  # fmt: skip
        assert part in text, part


def test_only_takes_names_in_the_usual_order() -> None:
    assert [p.name for p in chosen("waits, read")] == ["read", "waits"]
    assert chosen("") == list(PROBES)
    assert parse([]).budget_seconds == 480.0


def test_an_unknown_probe_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "reed", "--arch", "sm_90a"]) == 2
    assert "expected one of topology, read" in capsys.readouterr().err


def test_the_list_names_every_probe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [p.name for p in PROBES]


FAKE_NVCC = """#!/bin/sh
[ "$1" = --version ] && { echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0; }
while [ "$1" != -o ]; do shift; done
printf 'cubin' > "$2"
"""


def fake_toolkit(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text(FAKE_NVCC)
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    return os.environ | {"CUDA_HOME": str(tmp_path)}


def test_without_a_gpu_the_command_ends_with_a_reason_and_a_valid_file(tmp_path: Path) -> None:
    out = tmp_path / "o.json"
    command = [sys.executable, str(RUN), "--only", "topology,read", "--out", str(out)]
    done = subprocess.run(
        command, env=fake_toolkit(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    document = json.loads(out.read_text())
    _results.validate(document)
    assert done.returncode == 1
    assert document["command"] == (
        "python bench/gpu/probes/run.py --only topology,read --out o.json"
    )
    assert [r["name"] for r in document["records"]] == ["topology_probe", "read_probe", "clocks"]
    assert "FAILED topology_probe: DeviceError" in done.stdout
    assert document["compiler"] == "nvcc 13.0.88 sm_90a"


def test_a_failing_nvcc_gives_way_to_nvrtc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Compiler:
        def __init__(self, name: str) -> None:
            self.name = name

        def compile(self, source: str, arch: str, folder: Path) -> _compile.Compiled:
            if self.name == "nvcc":
                raise CompileError("no host compiler")
            return _compile.Compiled(source, b"cubin", "", self.name)

    names = {"any": "nvcc", "nvrtc": "nvrtc"}
    monkeypatch.setattr(_compile, "find_compiler", lambda prefer: Compiler(names[prefer]))
    name, compiled = compile_kernels("sm_90a", tmp_path, "any")
    assert (name, len(compiled)) == ("nvrtc", len(_compile.SOURCES))
    assert "no host compiler" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reading", "arch"),
    [(None, "sm_90a"), ({"compute": 9.0}, "sm_90a"), ({"compute": 8.0}, "sm_80"),
     ({"compute": 10.0}, "sm_100a"), ({"compute": None}, "sm_90a")],
)  # fmt: skip
def test_the_architecture_follows_the_device(
    reading: Any, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "query", lambda fields: reading)
    assert run.device_arch() == arch


def test_a_signal_leaves_a_valid_file(tmp_path: Path) -> None:
    """The parent is stopped while a probe runs: what was measured before stays."""
    out, driver = tmp_path / "o.json", tmp_path / "driver.py"
    driver.write_text(f"""
import sys, time
sys.path.insert(0, {str(RUN.parents[3])!r})
from bench.gpu.probes import run
from bench.gpu.probes._child import Outcome
def slow(name, command, seconds, records):
    if name == "read":
        print("waiting", flush=True)
        time.sleep(60)
    return Outcome([{{"name": name, "median": 1.0}}], None)
run.spawn = slow
raise SystemExit(run.main(sys.argv[1:]))
""")
    command = [sys.executable, str(driver), "--only", "topology,read", "--out", str(out)]
    process = subprocess.Popen(
        command,
        env=fake_toolkit(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert "stopped: signal 15" in err
    assert process.returncode == 1
    records = json.loads(out.read_text())["records"]
    assert [r["name"] for r in records] == ["topology", "clocks"]
