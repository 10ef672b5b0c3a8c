"""Parts that are run by name only: a short decode for a profiler, and two that go wrong."""

from __future__ import annotations

import os
import shutil
import time

from bench.gpu._stage import Stage
from bench.gpu.monokernel._model import Model
from monolane.executor_api import Advance

_INNER = (
    "python bench/gpu/monokernel/run.py --child profile --work WORK --records WORK/profile.jsonl"
)


def profile(stage: Stage, job: str) -> None:
    """A context, then one launch of a few tokens: the last kernel is the one to look at."""
    model = Model(stage, widths=(1,))
    token = model.feed(0, model.random_tokens(stage.scale.middle))
    drawn = model.run(Advance(slot=0, token_ids=(token,), budget=8))
    stage.emit({"name": "profile", "engine": "monolane", "tokens_drawn": len(drawn)})
    model.close()


def crash(stage: Stage, job: str) -> None:
    """Leaves a record, and dies as a process does after a memory fault."""
    stage.emit({"name": "crash", "engine": "monolane", "tokens_drawn": 1})
    os.abort()


def hang(stage: Stage, job: str) -> None:
    """Leaves a record, and never ends."""
    stage.emit({"name": "hang", "engine": "monolane", "tokens_drawn": 1})
    while True:
        time.sleep(60)


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
