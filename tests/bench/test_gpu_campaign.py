"""The campaign of the GPU suite: what each part gets of the time, what its process leaves behind,
and the page that is made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.gpu._campaign import (
    FIRST,
    Campaign,
    Part,
    chosen,
    complete,
    find_part,
    summary_line,
)
from bench.gpu._child import Outcome, run_child
from bench.gpu._stage import speed
from bench.gpu.monokernel._page import render
from bench.gpu.monokernel._parts import parts
from bench.gpu.monokernel.run import SCRIPT, main
from monolane import _results
from monolane._results import Record

ROOT = Path(__file__).resolve().parents[2]
DEVICE = {"name": "NVIDIA H200", "driver": "CUDA 13.0", "cores": 132, "memory_gb": 141.0}


# ---- the campaign --------------------------------------------------------------------------------
class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def campaign(
    folder: Path, runner: Callable[[Part, float, float], Outcome], **wish: Any
) -> Campaign:
    fields: dict[str, Any] = {
        "parts": chosen(parts(False), ""), "engine": "monolane", "runner": runner,
        "render": render, "tell": lambda line: None,
        "seconds": 600.0, "command": "run.py", "commit": "abc", "out": folder,
        "what": "monokernel", "always": False, "clock": Clock(),
    }  # fmt: skip
    return Campaign(**(fields | wish))


def test_parts_get_their_time_until_none_is_left(tmp_path: Path) -> None:
    clock, given = Clock(), {}

    def runner(part: Part, soft: float, hard: float) -> Outcome:
        given[part.name] = hard
        assert soft == 0.75 * hard
        clock.now += hard  # every part overstays
        assert clock.now <= 590
        return Outcome([{"name": "decode", "engine": "monolane", **speed([1.0])}], DEVICE)

    made = campaign(tmp_path, runner, clock=clock)
    made.run()
    assert given["decode"] == find_part(parts(False), "decode").seconds
    left_out = [r["part"] for r in made.records if "not_measured" in r]
    assert set(given) | set(left_out) == {p.name for p in made.parts}
    assert left_out[-1] == "hf-compile"


def test_the_files_are_valid_after_every_part(tmp_path: Path) -> None:
    seen = []

    def runner(part: Part, soft: float, hard: float) -> Outcome:
        for path in tmp_path.glob("*.json"):
            document = json.loads(path.read_text())
            _results.validate_document(document)
            seen.append(len(document["records"]))
            assert path.with_suffix(".md").read_text().startswith("# The monokernel on NVIDIA H200")
        if part.name == "decode":
            raise KeyboardInterrupt
        return Outcome([{"name": "soak", "engine": "monolane", "tokens_drawn": 1}], DEVICE)

    with pytest.raises(KeyboardInterrupt):
        campaign(tmp_path, runner).run()
    assert seen == [2, 4, 6, 8, 10]


def test_a_record_that_breaks_the_format_costs_itself_alone(tmp_path: Path) -> None:
    def runner(part: Part, soft: float, hard: float) -> Outcome:
        bad: Record = {"name": "decode", "engine": "monolane", "median": float("nan")}
        strange: Record = {"name": "prefill", "engine": "monolane", "tokens": None}
        return Outcome([bad, strange, {"name": "pass", "width": 1, **speed([2.0])}], DEVICE)

    campaign(tmp_path, runner, parts=chosen(parts(False), "decode")).run()
    (path,) = tmp_path.glob("*.json")
    records = json.loads(path.read_text())["records"]
    assert "a finite number in 'median'" in records[0]["error"]
    assert records[2]["median"] == 2.0
    assert "The page could not be made: TypeError" in path.with_suffix(".md").read_text()


def test_without_a_device_nothing_else_is_tried(tmp_path: Path) -> None:
    run = []

    def runner(part: Part, soft: float, hard: float) -> Outcome:
        run.append(part.name)
        return Outcome([{"name": "build_part", "engine": "monolane", "not_measured": "no driver"}])

    made = campaign(tmp_path, runner)
    made.run()
    assert run == [FIRST]
    assert all("not_measured" in r for r in made.records if r["name"] != "part")
    assert not list(tmp_path.iterdir()), "a machine without a GPU leaves no results"


def test_records_get_their_share_of_the_bandwidth_and_their_peer() -> None:
    ours = {"name": "decode", "engine": "monolane", "context": 8, "median": 30.0,
            "bytes_per_token": 10**9, "gb_per_s": 30.0}  # fmt: skip
    peers = [
        {"name": "decode", "engine": "hf-eager", "context": 8, "median": 5.0},
        {"name": "decode", "engine": "cuda-graph", "context": 8, "median": 20.0},
        {"name": "decode", "engine": "cuda-graph", "context": 9, "median": 90.0},
        {"name": "decode", "engine": "hf-compile", "context": 8, "error": "out of memory"},
    ]
    found = complete(ours, 40.0, [ours, *peers])
    assert (found["mbu"], found["ratio_to_best_peer"]) == (0.75, 1.5)
    assert "mbu" not in complete(ours, None, [ours])


def test_one_line_tells_what_came_of_a_part() -> None:
    assert summary_line([{"name": "a", "median": 2.0}, {"name": "b", "error": "no"}]) == (
        "FAILED: no"
    )
    assert summary_line([{"name": "decode", "context": 8, "median": 2.0, "unit": "tokens/s"}]) == (
        "decode context 8: 2 tokens/s"
    )
    assert summary_line([{"name": "a", "not_measured": "no tool"}]) == "not measured: no tool"


def test_names_choose_parts_and_families() -> None:
    assert [p.name for p in chosen(parts(False), "decode, sanitizer")] == [
        FIRST, "decode", "sanitizer:memcheck", "sanitizer:synccheck", "sanitizer:racecheck",
    ]  # fmt: skip
    assert "crash" not in [p.name for p in chosen(parts(False), "")]
    assert [p.name for p in chosen(parts(False), "variant:4 warps")] == [FIRST, "variant:4 warps"]
    for as_named, order in ((True, ["phases", "decode"]), (False, ["decode", "phases"])):
        found = chosen(parts(False), "phases,decode,phases", as_named)
        assert [p.name for p in found] == [FIRST, *order]
    for part in parts(emulated=False):
        if part.entry.partition(":")[0] != "monokernel.peers":
            assert callable(part.function()), part.name


def test_an_unknown_part_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "decod"]) == 2
    assert "expected some of build, launch" in capsys.readouterr().err


# ---- the process of one part ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "seconds", "why"),
    [("crash", 600.0, "ended with status -6"), ("hang", 1.0, "did not end within 1 s")],
)
def test_a_part_that_dies_keeps_its_records(
    name: str,
    seconds: float,
    why: str,
    tmp_path: Path,
    limit_from_the_first_record: Callable[[Path], None],
) -> None:
    log = tmp_path / "log.txt"
    part = find_part(parts(True), name)
    limit_from_the_first_record(tmp_path / f"{name}.jsonl")
    outcome = SCRIPT.run_part(part, seconds, seconds, tmp_path, True, log)
    first, last = outcome.records
    assert (first["name"], first["tokens_drawn"], first["part"]) == (name, 1, name)
    assert why in last["error"]


def test_what_a_part_has_started_ends_with_it(tmp_path: Path) -> None:
    """As the process under a sanitizer, which is ended alone."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    inner = f"import time; f = open({str(fifo)!r}, 'w'); time.sleep(60); f.write('still here')"
    outer = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {inner!r}])"
    # Opening waits for the other side: the part ends once its child has the file.
    outer += f"; open({str(fifo)!r}).close()"
    command = [sys.executable, "-c", outer]
    keep = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    records, log = tmp_path / "r.jsonl", tmp_path / "log.txt"
    run_child("decode", "monolane", command, 600.0, records, log, {})
    os.set_blocking(keep, True)
    assert os.read(keep, 100) == b"", "its end of the pipe is closed"
    os.close(keep)


def options(records: Path, work: Path) -> Any:
    arguments = ["--rehearse", "--records", str(records), "--work", str(work)]
    return SCRIPT.parser().parse_args(arguments)


def test_a_bug_in_a_part_is_told_once(tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    missing = Part("decode", "monokernel._nowhere:decode", 1.0, "")
    with pytest.raises(ModuleNotFoundError, match="_nowhere"):
        SCRIPT.child(options(records, tmp_path), missing, {})
    broken = Part("decode", "monokernel.speed:nothing", 1.0, "")
    assert SCRIPT.child(options(records, tmp_path), broken, {}) == 1
    (record,) = map(json.loads, records.read_text().splitlines())
    assert record["error"].startswith("AttributeError")


def test_a_bug_in_a_part_keeps_its_earlier_records(tmp_path: Path) -> None:
    """The process ends with status 1, and nothing is said twice."""
    script = tmp_path / "run.py"
    script.write_text(f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "src")!r}]
from dataclasses import replace
from pathlib import Path
from bench.gpu._campaign import Part
from bench.gpu.monokernel import soak
from bench.gpu.monokernel.run import SCRIPT
def broken(stage, job):
    stage.emit({{"name": "a", "median": 1.0}})
    1 / 0
soak.soak = broken
raise SystemExit(SCRIPT.main(sys.argv[1:]))
""")
    made = replace(SCRIPT, path=script)
    part = find_part(parts(True), "soak")
    outcome = made.run_part(part, 600.0, 600.0, tmp_path, True, tmp_path / "log.txt")
    assert [r.get("median", r.get("error")) for r in outcome.records] == [
        1.0, "ZeroDivisionError: division by zero",
    ]  # fmt: skip


def test_without_torch_the_peers_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("bench.gpu.monokernel.peers", "bench.gpu.monokernel.baseline"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    class NoTorch:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "torch":
                raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(sys, "meta_path", [NoTorch(), *sys.meta_path])
    records = tmp_path / "r.jsonl"
    part = find_part(parts(True), "cuda-graph")
    assert SCRIPT.child(options(records, tmp_path), part, {}) == 0
    assert json.loads(records.read_text())["not_measured"] == "torch is not installed here"


def test_nothing_needs_the_native_core() -> None:
    code = f"""
import importlib, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "src")!r}]
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("monolane._core"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
for name in ("run", "speed", "phases", "correctness", "soak", "variants", "sanitizer", "_build",
             "switches", "_trial", "devices", "_several", "links", "start", "prepare"):
    importlib.import_module("bench.gpu.monokernel." + name)
for name in ("run", "_build", "bandwidth", "choose", "launches", "mailbox", "matvec", "topology",
             "waits"):
    importlib.import_module("bench.gpu.probes." + name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- the page ------------------------------------------------------------------------------------
def test_the_page_says_what_is_wrong_first() -> None:
    records: list[Record] = [
        {"name": "golden", "error": "CheckError: other logits", "golden": "no_comm"},
        {"name": "soak", "engine": "monolane", "tokens_drawn": 100_000},
        {"name": "decode", "engine": "monolane", "context": 1024, "min": 1.0, "median": 2.0,
         "max": 3.0, "us_per_token": 5e5, "mbu": 0.912, "ratio_to_best_peer": 1.41},
        {"name": "decode", "engine": "hf-compile", "context": 1024, "not_measured": "no time"},
    ]  # fmt: skip
    page = render(_results.build_document(DEVICE, "run.py", records, "abc"))
    assert "| **WRONG**: CheckError: other logits |" in page
    assert "right (100,000 tokens)" in page
    assert "| 1,024 | **2** (1 to 3) | 500,000.0 |  | 91.2% | 1.41 |" in page
    assert "- golden no_comm: **failed**: CheckError: other logits" in page
    assert "- decode 1024: not measured: no time" in page
    assert page.index("Right or wrong") < page.index("Decode") < page.index("Trouble")
