"""Which way a run takes when a rung fails, what it says last, and what the ledger chooses."""

from __future__ import annotations

import json
import lzma
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu._campaign import FIRST, Campaign, Part, chosen
from bench.gpu._child import Outcome
from bench.gpu._worker import Worker, Workers
from bench.gpu.monokernel._build import describe
from bench.gpu.monokernel._carried import (
    MAIN,
    MANIFEST,
    PROGRAMS,
    PROOFS,
    code_digest,
    kernels_digest,
    program_digest,
    shown,
    signature,
)  # fmt: skip
from bench.gpu.monokernel._ladder import DIAGNOSIS, SECOND_HALF, Ladder
from bench.gpu.monokernel._ledger import PATH, TRUTH, Ledger
from bench.gpu.monokernel._page import render
from bench.gpu.monokernel._parts import parts
from bench.gpu.monokernel._scale import FULL
from bench.gpu.monokernel._wanted import wanted
from bench.gpu.monokernel.run import main, next_parts
from monolane._results import Record
from monolane.cuda import GpuInfo
from monolane.cuda._compile import compiler_version

ROOT = Path(__file__).resolve().parents[2]
DEVICE = {"name": "NVIDIA H100 80GB HBM3", "driver": "CUDA 13.0", "cores": 132, "memory_gb": 85.0}
KNOWN = parts(False)
THERE = [part.name for part in KNOWN]
DIAGNOSED = [name for name in DIAGNOSIS if name in THERE]  # in sight of this branch
RUNGS = (
    "launch", "first-golden", "first-tokens", "bandwidth", "decode", "phases", "decode-float8",
    "cuda-graph", "hf-eager",
)  # fmt: skip
SPEED = RUNGS[3:]


def options(folder: Path, **wish: Any) -> Any:
    fields = {
        "diagnose": False, "rehearse": False, "then": 300.0, "carried": None, "work": None,
        "out": folder, "commit": "abc", "name": "monokernel",
    }  # fmt: skip
    return SimpleNamespace(**(fields | wish))


class Climb:
    """A campaign whose parts do nothing but fail where they are told to."""

    def __init__(
        self,
        folder: Path,
        *broken: str,
        only: Sequence[str] = RUNGS,
        ledger: Ledger | None = None,
        error: str = "CheckError: {} is off",
        **wish: Any,
    ) -> None:
        self.error = error
        self.ran: list[str] = []
        self.broken, self.folder = broken, folder
        asked = chosen(KNOWN, ",".join(only), as_named=True)
        ladder = Ladder(
            KNOWN, [x.name for x in asked], ledger or Ledger.read(), options(folder, **wish)
        )
        campaign = Campaign(
            parts=asked, engine="monolane", runner=self.run, render=render,
            tell=lambda line: None, seconds=3600.0, command="run.py", commit="abc", out=folder,
            what="monokernel", always=True, course=ladder,
        )  # fmt: skip
        campaign.run()
        verdict = ladder.conclude(campaign.document())
        assert verdict is not None
        campaign.records.append(verdict)
        campaign.write()
        self.document = campaign.document()
        self.verdict, self.next = verdict["verdict"], shlex.split(verdict["next"])
        self.last = ladder.last_words(self.document)
        assert chosen(KNOWN, ",".join(self.following)), "what is said next can be typed"

    def run(self, part: Part, soft: float, hard: float) -> Outcome:
        self.ran.append(part.name)
        label: Record = {"name": part.name, "engine": "monolane", "part": part.name}
        if part.name == FIRST:
            if FIRST in self.broken:
                return Outcome([label | {"not_measured": "no driver"}])
            machine = {"name": "machine", "part": FIRST, "sources": kernels_digest()}
            return Outcome([machine], DEVICE)
        if part.name in self.broken:
            return Outcome([label | {"error": self.error.format(part.name)}])
        return Outcome([label | {"tokens_drawn": 1}])

    @property
    def following(self) -> list[str]:
        """The parts of the next command."""
        return self.next[self.next.index("--only") + 1].split(",")


# ---- the ways ------------------------------------------------------------------------------------
def test_the_rungs_are_climbed_in_their_order(tmp_path: Path) -> None:
    climb = Climb(tmp_path)
    assert climb.ran == [FIRST, *RUNGS]
    assert climb.verdict == "RIGHT: right: " + ", ".join(RUNGS)
    assert climb.next[:2] == ["python", "bench/gpu/monokernel/run.py"]
    # What is left of the first window, then the second.
    assert climb.following[:3] == [
        "variant:product",
        "variant:ring 6 slots",
        "variant:ring 4 slots",
    ]
    assert "probe:topology" in climb.following
    assert not set(climb.following) & set(RUNGS)
    assert climb.next[-2:] == ["--name", "monokernel-2"]
    assert climb.last[-1] == f"next: {shlex.join(climb.next)}"


def test_no_device(tmp_path: Path) -> None:
    climb = Climb(tmp_path, FIRST)
    assert climb.ran == [FIRST]
    assert climb.verdict == "NO DEVICE: not measured (no driver)"
    assert climb.following == [FIRST, *RUNGS]


def test_a_gpu_that_launches_nothing(tmp_path: Path) -> None:
    climb = Climb(tmp_path, "launch")
    assert climb.ran == [FIRST, "launch"]
    assert climb.verdict.startswith("NO LAUNCH: CheckError: launch is off")
    left = [r for r in climb.document["records"] if r.get("part") == "decode"]
    assert left[0]["not_measured"] == "launch failed: nothing else is tried"
    assert climb.following == ["launch", "sanitizer:memcheck", "width-1"]
    assert "--diagnose" in climb.next


@pytest.mark.parametrize("rung", ["first-golden", "first-tokens", "goldens", "full", "reference"])
def test_a_wrong_token_ends_speed(rung: str, tmp_path: Path) -> None:
    only = [*RUNGS[:3], rung, *SPEED] if rung not in RUNGS else RUNGS
    climb = Climb(tmp_path, rung, only=only)
    assert not set(climb.ran) & set(SPEED), "nothing is timed"
    assert climb.ran == [FIRST, *only[: only.index(rung) + 1], *DIAGNOSED]
    assert climb.verdict.startswith(f"WRONG at {rung}: CheckError: {rung} is off. Diagnosis: ")
    assert "sanitizer:memcheck: right" in climb.verdict
    assert climb.following == list(SECOND_HALF)
    assert "--diagnose" in climb.next
    left = [r for r in climb.document["records"] if r.get("part") == "decode"]
    assert left[0]["not_measured"] == f"{rung} failed: diagnosis comes first"


def test_the_second_half_of_a_diagnosis_runs_whatever_fails(tmp_path: Path) -> None:
    climb = Climb(tmp_path, "goldens", "other-compiler", only=SECOND_HALF, diagnose=True)
    assert climb.ran == [FIRST, *SECOND_HALF]
    assert climb.verdict == (
        "DIAGNOSED: other-compiler: failed (CheckError: other-compiler is off); "
        "sanitizer:racecheck: right; goldens: failed (CheckError: goldens is off)"
    )
    assert climb.following[:3] == list(TRUTH), "once it is mended"


@pytest.mark.parametrize("rung", SPEED)
def test_a_rung_of_speed_costs_itself_alone(rung: str, tmp_path: Path) -> None:
    climb = Climb(tmp_path, rung)
    assert climb.ran == [FIRST, *RUNGS]
    assert climb.verdict.startswith("FAILED IN PART: right: launch, ")
    assert climb.verdict.endswith(f"; failed: {rung}")
    assert "variant:product" in climb.following
    ledger = Ledger.read(tmp_path / PATH.name)
    assert ledger.state(rung, "H100") == "failed"


def test_two_parts_that_fail_one_behind_the_other_are_no_accident(tmp_path: Path) -> None:
    climb = Climb(tmp_path, "decode", "phases")
    assert climb.ran == [FIRST, *RUNGS[:6], *DIAGNOSED]
    assert climb.verdict.startswith("WRONG at phases: ")


def test_troubles_of_torch_are_not_ours(tmp_path: Path) -> None:
    climb = Climb(tmp_path, "cuda-graph", "hf-eager")
    assert climb.ran == [FIRST, *RUNGS]
    only = ("reference", "decode")
    climb = Climb(tmp_path, "reference", only=only, error="OutOfMemoryError: of torch")
    assert climb.ran == [FIRST, *only]


# ---- the ledger ----------------------------------------------------------------------------------
def test_the_committed_ledger_knows_every_part() -> None:
    ledger = Ledger.read()
    names = [x["part"] for x in ledger.parts]
    assert len(set(names)) == len(names)
    for part in ledger.parts:
        if not part["part"].startswith(("delay:", "training:")):  # those are tested beside them
            assert part["built"] == (part["part"] in THERE), part["part"]
    shown = {part.name for part in KNOWN if not part.hidden and part.name != FIRST}
    assert shown <= set(names)
    for state in (x for part in ledger.parts for x in part["cards"].values()):
        assert (PATH.parent / state["results"]).exists(), "the file that answered it"


def ledger(*rows: tuple[str, int, int, float]) -> Ledger:
    return Ledger(
        tuple(
            {"part": n, "window": w, "value": v, "seconds": s, "built": n != "plan", "cards": {}}
            for n, w, v, s in rows
        )
    )


def test_the_most_valuable_that_fit_are_chosen() -> None:
    made = ledger(
        ("launch", 1, 9, 5), ("plan", 1, 8, 1), ("long", 1, 7, 100), ("late", 2, 9, 20),
        ("low", 1, 1, 20), ("gone", 1, 6, 1),
    )  # fmt: skip
    there = ["launch", "plan", "long", "late", "low"]
    assert made.choose("H100", 60, "now", there) == ["launch", "low", "late"]
    assert made.choose("H100", 40, "now", there) == ["launch", "low"]
    assert made.choose("H100", 500, "now", there) == ["launch", "long", "low", "late"]


def test_what_is_done_is_not_chosen_and_what_failed_comes_last() -> None:
    made = ledger(("launch", 1, 9, 5), ("a", 1, 8, 5), ("b", 1, 7, 5), ("c", 2, 9, 5))
    records = [
        {"name": "machine", "part": FIRST, "sources": "now"},
        *({"name": "part", "part": x, "took_s": 4.0} for x in ("launch", "a", "b")),
        {"name": "launch", "part": "launch"},
        {"name": "x", "part": "a", "error": "wrong"},
        {"name": "x", "part": "b", "not_measured": "no torch"},
    ]
    document = {"device": DEVICE, "records": records, "commit": "abc"}
    made = made.folded(document, "2026-12-01-x.json")
    names = ["launch", "a", "b", "c"]
    assert [made.state(x, "H100") for x in names] == ["done", "failed", "pending", "pending"]
    assert made.parts[0]["cards"]["H100"]["results"] == "2026-12-01-x.json"
    assert made.choose("H100", 300, "now", names) == ["b", "c", "a"]
    # A truth about other kernels is none, and none about the other card.
    assert made.choose("H100", 300, "later", names)[0] == "launch"
    assert made.choose("H200", 300, "now", names) == names
    assert made.folded(document, "y").choose("H100", 300, "now", ["launch"]) == []


def test_results_are_brought_into_the_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Climb(tmp_path).folder / next(tmp_path.glob("2*.json")).name
    place = tmp_path / "ledger.json"
    place.write_bytes(PATH.read_bytes())
    assert main(["--fold", str(results), "--ledger", str(place)]) == 0
    assert Ledger.read(place).state("decode", "H100") == "done"
    assert main(["--next", "10"]) == 2
    assert main(["--next", "300", "--only", "decode"]) == 2
    assert "expected 60 seconds or more" in capsys.readouterr().err


def test_the_ledger_chooses_for_the_gpu_here(tmp_path: Path) -> None:
    place = tmp_path / "ledger.json"
    ledger(("launch", 1, 9, 5), ("late", 2, 9, 5), ("decode", 1, 8, 20)).write(place)
    wish = SimpleNamespace(rehearse=True, next=60.0, ledger=place)
    assert next_parts(wish) == ["launch", "decode"], "`late` is no part"
    entry = {"state": "done", "sources": kernels_digest()}
    done = [{**x, "cards": {"Emulated": entry}} for x in Ledger.read(place).parts]
    Ledger(tuple(done)).write(place)
    assert next_parts(wish) == []
    assert main(["--rehearse", "--next", "60", "--ledger", str(place)]) == 0


# ---- a process for several parts -----------------------------------------------------------------
SCRIPT = """
import json, os, sys, time
sys.path[:0] = [{root!r}, {source!r}]
from bench.gpu._worker import serve_jobs
seen = []
def run(job):
    seen.append(job["part"])
    with open(job["records"], "a") as file:
        record = {{"name": "a", "pid": os.getpid(), "seen": len(seen)}}
        if job["part"] == "wrong":
            record["error"] = "wrong"
        file.write(json.dumps(record) + "\\n")
    if job["part"] == "crash":
        os.abort()
    while job["part"] == "hang":
        time.sleep(60)
    return 0
serve_jobs(int(sys.argv[-1]), run)
"""


@pytest.mark.parametrize(
    ("bad", "why"),
    [("wrong", "wrong"), ("crash", "ended with status -6"), ("hang", "did not end within 1 s")],
)
def test_a_part_that_goes_wrong_takes_its_process_with_it(
    bad: str, why: str, tmp_path: Path
) -> None:
    script, log = tmp_path / "script.py", tmp_path / "log.txt"
    script.write_text(SCRIPT.format(root=str(ROOT), source=str(ROOT / "src")))
    workers = Workers(lambda group: Worker([sys.executable, str(script)], log, {}))
    found = []
    for name in ("one", "two", bad, "three", "four"):
        job = {"part": name, "records": str(tmp_path / f"{name}.jsonl")}
        # A busy machine may take long to start a process: that one hangs is seen after a second.
        outcome = workers.run("ours", "suite", job, 1.0 if name == "hang" else 600.0)
        found.append(outcome.records)
    workers.end()
    (one,), (two,), broken, (three,), (four,) = found
    assert (one["seen"], two["seen"], one["pid"]) == (1, 2, two["pid"])
    assert (broken[0]["seen"], broken[0]["pid"]) == (3, one["pid"]), "its records are kept"
    assert why in broken[-1]["error"]
    assert (three["seen"], four["seen"], four["pid"]) == (1, 2, three["pid"]), "a fresh process"
    assert three["pid"] != one["pid"]


# ---- real processes ------------------------------------------------------------------------------
def test_a_fault_of_the_smallest_kernel_ends_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kernel_cache: Path
) -> None:
    """On the emulated device, the fault being put in on purpose: what is printed last."""
    words = ["--rehearse", "--only", "launch,first-golden", "--fault", "launch=wrong"]
    words += ["--out", str(tmp_path), "--commit", "abc", "--work", str(kernel_cache)]
    assert main([*words, "--minutes", "60"]) == 1
    verdict, following = capfd.readouterr().out.splitlines()[-2:]
    assert verdict.startswith("verdict: NO LAUNCH: CheckError: a fault on purpose")
    assert following.startswith(
        "next: python bench/gpu/monokernel/run.py --only launch,sanitizer:memcheck,width-1 "
        "--diagnose --rehearse"
    )
    files = {path.name for path in tmp_path.iterdir()}
    (stem,) = (name[:-5] for name in files if name.endswith("-monokernel.json"))
    assert files == {f"{stem}.json", f"{stem}.md", f"{stem}.txt", PATH.name}, "four files"
    document = json.loads((tmp_path / f"{stem}.json").read_text())
    (machine,) = (r for r in document["records"] if r["name"] == "machine")
    assert machine["sources"] == kernels_digest()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["wrong", "crash"])
def test_a_fault_of_the_first_golden_turns_to_diagnosis(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], kernel_cache: Path
) -> None:
    words = ["--rehearse", "--only", "first-golden,decode", "--fault", f"first-golden={kind}"]
    words += ["--out", str(tmp_path), "--commit", "abc", "--work", str(kernel_cache)]
    assert main([*words, "--minutes", "60"]) == 1
    verdict, following = capfd.readouterr().out.splitlines()[-2:]
    assert verdict.startswith("verdict: WRONG at first-golden: ")
    assert "width-1: right" in verdict
    assert "--only other-compiler,sanitizer:racecheck,goldens --diagnose" in following


STUB = GpuInfo("Stub", (9, 0), 4, 227 << 10, 1 << 32, 1 << 32)


@pytest.mark.parametrize(
    "part", ["launch", pytest.param("first-golden", marks=pytest.mark.exhaustive)]
)
def test_a_rung_through_the_bindings(part: str, tmp_path: Path, kernel_cache: Path) -> None:
    """No rehearsal: a driver that is a stub, and carried kernels that this processor runs.

    A kernel that was not carried would be compiled for a GPU, which the stub refuses.
    """
    pytest.importorskip("cuda.bindings.driver", reason="no packages of monolane[cuda]")
    from emulated_gpu import build_kernel

    stub, carried, out = (tmp_path / x for x in ("stub", "carried", "out"))
    environment = os.environ | build_stub(stub)
    (carried / MAIN).mkdir(parents=True)
    release = ".".join(map(str, compiler_version())) + ".99"
    programs = {}
    for i, item in enumerate(wanted(part, FULL, STUB)):
        headers = dict(item.headers())
        # The stub takes the name of a library for machine code, the cache what begins like an ELF.
        code = f"\x7fELF-{i}"
        library = build_kernel(kernel_cache / "kernels", item.source, headers).library
        shutil.copy(library, stub / code)
        name = program_digest(item.source, headers, False, release)
        programs[name] = {
            "source": shown(item.source), "headers": headers, "fuse": False, "usage": describe(item)
        }  # fmt: skip
        (carried / MAIN / f"{name}.xz").write_bytes(lzma.compress(code.encode() + b"\0"))
    (carried / PROGRAMS).write_bytes(lzma.compress(json.dumps(programs).encode()))
    (carried / PROOFS).touch()
    manifest = {"nvrtc": release, "code": code_digest(), "gpus": [signature(STUB)],
                "parts": {part: list(programs)}}  # fmt: skip
    (carried / MANIFEST).write_text(json.dumps(manifest))
    script = ROOT / "bench" / "gpu" / "monokernel" / "run.py"
    words = ["--only", part, "--carried", str(carried), "--out", str(out), "--commit", "abc"]
    command = [sys.executable, str(script), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    verdict = done.stdout.splitlines()[-2]
    assert verdict == f"verdict: RIGHT: right: {part}", done.stdout + done.stderr
    (path,) = out.glob("2*.json")
    records = json.loads(path.read_text())["records"]
    (kernels,) = (r for r in records if r["name"] == "kernels")
    assert (kernels["prepared"], kernels["compiled"]) == (len(programs), 0)
    if part == "launch":
        launches = [(r["blocks"], r["arrived"]) for r in records if r["name"] == "launch"]
        assert launches == [(1, 1), (4, 4)]
    else:
        (golden,) = (r for r in records if r["name"] == "golden")
        assert golden["widths"] == [1, 8, 64]


def build_stub(folder: Path) -> dict[str, str]:
    """A libcuda.so.1 of ours, and the variables with which a process takes it for the driver."""
    import emulation

    folder.mkdir()
    compiler = emulation.find_compiler()
    assert compiler is not None
    command = [compiler, "-std=c++17", "-shared", "-fPIC", *emulation.WARNINGS]
    source = ROOT / "tests" / "cuda" / "stub_driver.cpp"
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1"), str(source), "-ldl"], check=True)
    shared = folder / "context.so"  # of all emulated kernels, loaded before them
    command = [compiler, "-O2", "-fPIC", "-shared", "-o", str(shared), str(emulation.CONTEXT)]
    subprocess.run(command, check=True)
    return {"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": str(shared), "STUB_PAGEABLE": "1"}


def test_a_fault_has_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rehearse", "--fault", "launch"]) == 2
    assert "expected PART=KIND" in capsys.readouterr().err
