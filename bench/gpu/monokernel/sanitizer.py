"""NVIDIA's compute-sanitizer over a small model, where it is installed.

It runs this suite again for one small job, whose status says whether something was found.
"""

from __future__ import annotations

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
from monolane.cuda import GpuInfo
from monolane.cuda._layout import Layout
from monolane.cuda._plan_device import lay_out_widths
from monolane.executor_api import Advance, Draw

RUN = Path(__file__).resolve().parent / "run.py"
TOOLS = ("memcheck", "synccheck", "racecheck")
_FOUND = 86  # the exit status that says that the tool found something
_SMS = 4
_WIDTHS = (1, 8, 32)
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
        raise NotMeasuredError(f"{tool}: {_first_line(text, 'not supported')}")
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    expect(
        done.returncode == 0,
        f"{tool}: expected nothing, got status {done.returncode}: "
        f"{summary[-1] if summary else text.strip()[-500:]}; the log has its report",
    )
    return {"tool": tool, "summary": summary[-1] if summary else "nothing was said"}


def _first_line(text: str, part: str) -> str:
    return next((line.strip() for line in text.splitlines() if part in line.lower()), part)


def small_layouts(gpu: GpuInfo) -> tuple[Layout, ...]:
    """Of the kernels of `small_model`."""
    gpu = replace(gpu, sms=min(_SMS, gpu.sms))
    return lay_out_widths(REHEARSAL.config, gpu, "bfloat16", REHEARSAL.context, _WIDTHS)


def small_model(stage: Stage, job: str) -> None:
    """What runs under the tool: every width, greedy and sampled, two sequences, on few blocks."""
    scale = replace(REHEARSAL, emulated=stage.scale.emulated)
    stage = replace(stage, scale=scale)
    make_block(scale.config, stage.work)
    model = Model(stage, widths=_WIDTHS, slots=2, sms=_SMS, watchdog=_WATCHDOG)
    prompt = model.random_tokens(40)
    model.run(
        Advance(slot=0, token_ids=prompt, budget=4),
        Advance(
            slot=1, token_ids=prompt[:9], budget=4, draw=Draw(temperature=0.8, top_p=0.9, seed=1)
        ),
    )
    stage.emit({"name": "small_model", "engine": "monolane", "tokens_drawn": 8})
    model.close()
