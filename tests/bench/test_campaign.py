"""A run of the probes as a whole: budget, files that survive a kill, page, command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.gpu._campaign import FIRST, Campaign, Part, chosen
from bench.gpu._child import Outcome, run_child
from bench.gpu.probes._page import render
from bench.gpu.probes.run import PARTS, PROBES, RUN, main
from monolane import _results
from monolane._results import Record

INFO = {"name": "NVIDIA H200", "driver": "CUDA 13.0", "cores": 132, "memory_gb": 141.0}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def campaign(
    out: Path, runner: Callable[[Part, float, float], Outcome], clock: Clock, parts: Any = PROBES
) -> Campaign:
    return Campaign(
        parts=parts, engine="probe", runner=runner, render=render, tell=lambda line: None,
        seconds=480.0, command="run.py", commit="abc", out=out, what="probes", always=True,
        clock=clock, device=dict(INFO),
    )  # fmt: skip


def test_time_follows_the_weights_and_nothing_is_lost_silently(tmp_path: Path) -> None:
    clock, given = Clock(), {}

    def runner(one: Part, soft: float, hard: float) -> Outcome:
        given[one.name] = soft
        assert hard == soft + 30
        clock.now += soft * (2 if one.name == "read" else 1)  # one probe overstays
        return Outcome([{"name": one.name, "median": 1.0}], INFO)

    campaign(tmp_path / "out.json", runner, clock).run()
    total = sum(p.weight for p in PROBES)
    assert given["topology"] == pytest.approx(470 * PROBES[0].weight / total)
    assert given["read"] == pytest.approx(470 * 4 / total)
    left = 470 - given["topology"] - 2 * given["read"]
    assert given["waits"] == pytest.approx(left * 2 / (total - 4.5))
    assert sum(given.values()) + given["read"] == pytest.approx(470)
    assert clock.now <= 480


def test_a_spent_budget_leaves_a_record_per_probe(tmp_path: Path) -> None:
    clock = Clock()

    def runner(one: Part, soft: float, hard: float) -> Outcome:
        clock.now += 1000
        return Outcome([{"name": one.name, "median": 1.0}], INFO)

    campaign(tmp_path / "out.json", runner, clock).run()
    records = json.loads((tmp_path / "out.json").read_text())["records"]
    assert [r["name"] for r in records[2:]] == [f"{p.name}_part" for p in PROBES[1:]]
    assert all("was spent before this part" in r["not_measured"] for r in records[2:])


def test_the_file_is_valid_after_every_probe(tmp_path: Path) -> None:
    out, lengths = tmp_path / "out.json", []

    def runner(one: Part, soft: float, hard: float) -> Outcome:
        if out.exists():
            document = json.loads(out.read_text())
            _results.validate_document(document)
            lengths.append(len(document["records"]))
        if one.name == "mailbox":
            raise KeyboardInterrupt
        return Outcome([{"name": "read_bandwidth", "gb_per_s": 4500.0 + len(lengths)}], INFO)

    with pytest.raises(KeyboardInterrupt):
        campaign(out, runner, Clock()).run()
    assert lengths == [2, 4, 6, 8, 10, 12, 14]
    device = json.loads(out.read_text())["device"]
    assert device["read_bandwidth_gb_s"] == 4506.0
    assert (device["name"], device["cores"], device["memory_gb"]) == ("NVIDIA H200", 132, 141.0)


# ---- the process of one probe --------------------------------------------------------------------
def child(tmp_path: Path, body: str, seconds: float) -> Outcome:
    records = tmp_path / "records.jsonl"
    code = f"import sys, time, os, signal; f = open({str(records)!r}, 'a')\n{body}"
    command = [sys.executable, "-c", code]
    return run_child("read", "probe", command, seconds, records, tmp_path / "log.txt", {"A": "b"})


def test_a_hung_probe_is_ended_and_keeps_its_records(
    tmp_path: Path, limit_from_the_first_record: Callable[[Path], None]
) -> None:
    limit_from_the_first_record(tmp_path / "records.jsonl")
    outcome = child(tmp_path, """
f.write('{"device_info": {"name": "G"}}\\n{"name": "a", "median": 1}\\n{"na')
f.flush()
while True:
    signal.pause()""", 0.5)  # fmt: skip
    assert outcome.device == {"name": "G"}
    assert outcome.records[0] == {"name": "a", "median": 1, "part": "read"}
    assert "did not end within" in outcome.records[1]["error"]
    assert len(outcome.records) == 2


def test_a_crashed_probe_is_reported_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("of another part\n")
    body = "print(os.environ['A'] + '!', file=sys.stderr); os.kill(os.getpid(), 11)"
    outcome = child(tmp_path, body, 600)
    assert outcome.records[0]["error"] == "its process ended with status -11: b!"
    assert "of another part\nb!\n-- read: " in (tmp_path / "log.txt").read_text()


def test_a_probe_without_records_is_an_error(tmp_path: Path) -> None:
    (record,) = child(tmp_path, "", 600).records
    assert record["error"] == "made no record at all"


# ---- page and command line -----------------------------------------------------------------------
def test_the_page_has_the_deciding_figures(measured: dict[str, list[Record]]) -> None:
    records = [record for of_probe in measured.values() for record in of_probe]
    records.append({"name": "x", "error": "CheckError: sum"})
    text = render(_results.build_document(INFO, "run.py", records, "abc"))
    for part in (
        "| read_bandwidth | bulk |", "| copy_bandwidth | driver |", "## Bulk reads by ring",
        "| counter |", "| cooperative groups |", "| same | idle |", "| 2 | 0 | 2 |",
        "GPC sizes: [4]", "| kernel_boundary | dependent_launch True |",
        "| mailbox | pattern pairs, stream False |", "- x: **failed**: CheckError: sum",
        "not measured: ",
    ):  # fmt: skip
        assert part in text, part


def test_many_left_out_variants_are_counted() -> None:
    records: list[Record] = [{"name": "matvec", "not_measured": "no"} for _ in range(50)]
    text = render(_results.build_document(INFO, "run.py", records, "abc"))
    assert text.count("not measured: no") == 40
    assert "- and 10 more not measured: see the JSON" in text


def test_only_takes_names_in_the_usual_order() -> None:
    assert [p.name for p in chosen(PARTS, "waits, read")] == [FIRST, "read", "waits"]
    assert chosen(PARTS, "") == PARTS


def test_every_probe_has_a_function() -> None:
    assert all(callable(part.function()) for part in PARTS)


def test_an_unknown_probe_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "reed"]) == 2
    assert "expected some of build, topology, read" in capsys.readouterr().err


def test_the_list_names_every_probe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [p.name for p in PARTS]


def no_driver(tmp_path: Path) -> dict[str, str]:
    """An environment whose driver's library is no library."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcuda.so.1").write_text("no library")
    return os.environ | {"LD_LIBRARY_PATH": str(tmp_path / "lib")}


def test_without_a_gpu_the_command_ends_with_a_reason_and_a_valid_file(tmp_path: Path) -> None:
    out = tmp_path / "o.json"
    command = [sys.executable, str(RUN), "--only", "topology,read", "--out", str(out)]
    done = subprocess.run(
        command, env=no_driver(tmp_path), capture_output=True, text=True, timeout=600, check=False
    )
    document = json.loads(out.read_text())
    _results.validate_document(document)
    assert done.returncode == 1
    assert document["command"] == (
        "python bench/gpu/probes/run.py --only topology,read --out o.json"
    )
    names = [r["name"] for r in document["records"]]
    assert names == ["build_part", "part", "topology_part", "read_part", "clocks"]
    why = "not measured: no NVIDIA driver (libcuda.so.1 is not there): install the driver of"
    assert f"- build_part build: {why}" in done.stdout
    assert "no device: see the first record" in done.stdout
    assert out.with_suffix(".txt").exists()


def test_a_signal_leaves_a_valid_file(tmp_path: Path) -> None:
    """The parent is stopped while a probe runs: what was measured before stays."""
    out, driver = tmp_path / "o.json", tmp_path / "driver.py"
    driver.write_text(f"""
import signal, sys
sys.path.insert(0, {str(RUN.parents[3])!r})
from bench.gpu._child import Outcome
from bench.gpu.probes import run
from bench.gpu import _script
def slow(name, *rest):
    if name == "read":
        print("waiting", flush=True)
        while True:
            signal.pause()
    return Outcome([{{"name": name, "median": 1.0}}], {{"name": "G"}})
_script.run_child = slow
raise SystemExit(run.main(sys.argv[1:]))
""")
    command = [sys.executable, str(driver), "--only", "topology,read", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "waiting\n" in process.stdout
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=600)  # only where it hangs, however slow the machine
    assert "stopped: signal 15" in err
    assert process.returncode == 1
    records = json.loads(out.read_text())["records"]
    assert [r["name"] for r in records] == ["build", "part", "topology", "part", "clocks"]
