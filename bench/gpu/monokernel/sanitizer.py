"""NVIDIA's tools: compute-sanitizer over a small model, and what to type for the profilers.

The sanitizer runs this suite again for one small job; the status says whether it found something.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from bench.gpu._child import inner_command
from bench.gpu._stage import NotMeasuredError, Stage, expect
from bench.gpu.monokernel._model import Model
from bench.gpu.monokernel._random_weights import make_block
from bench.gpu.monokernel._scale import REHEARSAL
from monolane._results import Record
from monolane.epoch import Advance, Draw

RUN = Path(__file__).resolve().parent / "run.py"
_INNER = (
    "python bench/gpu/monokernel/run.py --child profile --work WORK --records WORK/profile.jsonl"
)
TOOLS = ("memcheck", "synccheck", "racecheck")
_FOUND = 86  # the exit status that says that the tool found something
_SMS = 4
_WATCHDOG = 300.0  # seconds: the tool makes the kernel hundreds of times slower


def sanitize(stage: Stage, job: str) -> None:
    """One tool; `job` ends with its name."""
    stage.attempt("sanitizer", _run, stage, job.partition(":")[2], job=job)


def find_sanitizer() -> str | None:
    """The tool, on the PATH or in the toolkit."""
    usual = Path("/usr/local/cuda/bin/compute-sanitizer")
    return shutil.which("compute-sanitizer") or (str(usual) if usual.exists() else None)


def _run(stage: Stage, tool: str) -> Record:
    sanitizer = find_sanitizer()
    if sanitizer is None:
        raise NotMeasuredError("compute-sanitizer is not installed here")
    small = stage.work / f"sanitized-{tool}"
    small.mkdir(exist_ok=True)
    inner = inner_command(RUN, "small-model", 600.0, small / "records.jsonl", small)
    command = [
        sanitizer, "--tool", tool, "--error-exitcode", str(_FOUND), "--print-limit", "20", *inner,
    ]  # fmt: skip
    seconds = max(5.0, stage.budget.seconds - stage.budget.spent)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise NotMeasuredError(f"{tool} did not end within {seconds:.0f} s") from None
    text = done.stdout + done.stderr
    print(text[-8000:], file=sys.stderr)
    if "Device not supported" in text or "not supported" in text.lower()[:2000]:
        said = (line.strip() for line in text.splitlines() if "not supported" in line.lower())
        raise NotMeasuredError(f"{tool}: {next(said)}")
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    expect(
        done.returncode == 0,
        f"{tool}: expected nothing, got status {done.returncode}: "
        f"{summary[-1] if summary else text.strip()[-500:]}; the log has its report",
    )
    return {"tool": tool, "summary": summary[-1] if summary else "nothing was said"}


def small_model(stage: Stage, job: str) -> None:
    """What runs under the tool: every width, greedy and sampled, two sequences, on few blocks."""
    scale = replace(REHEARSAL, emulated=stage.scale.emulated)
    stage = replace(stage, scale=scale)
    make_block(scale.config, stage.work)
    model = Model(stage, widths=(1, 8, 32), slots=2, sms=_SMS, watchdog=_WATCHDOG)
    prompt = model.random_tokens(40)
    model.run(
        Advance(slot=0, token_ids=prompt, budget=4),
        Advance(
            slot=1, token_ids=prompt[:9], budget=4, draw=Draw(temperature=0.8, top_p=0.9, seed=1)
        ),
    )
    stage.emit({"name": "small_model", "engine": "monolane", "tokens_drawn": 8})
    model.close()


# ---- profilers ----------------------------------------------------------------------------------
def profile(stage: Stage, job: str) -> None:
    """A context, then one launch of a few tokens: the last kernel is the one to look at."""
    model = Model(stage, widths=(1,))
    token = model.feed(0, model.random_tokens(stage.scale.middle))
    drawn = model.run(Advance(slot=0, token_ids=(token,), budget=8))
    stage.emit({"name": "profile", "engine": "monolane", "tokens_drawn": len(drawn)})
    model.close()


def command_lines() -> list[str]:
    """What to type for the profilers that are installed; WORK is a folder of `--work`."""
    found = []
    if shutil.which("ncu"):
        # The last launch decodes eight tokens; the clocks stay as they are.
        found.append(
            "ncu --clock-control none --set full --kernel-name monokernel --launch-skip 1 "
            f"--launch-count 1 -o monokernel {_INNER}"
        )
    if shutil.which("nsys"):
        found.append(f"nsys profile --trace cuda,osrt -o monokernel {_INNER}")
    return found
