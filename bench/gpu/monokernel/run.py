"""The monokernel on one GPU, right or wrong and how fast: `python bench/gpu/monokernel/run.py`.

Runs every part in a process of its own within one budget, the most important first, and writes one
JSON in the results format, a page and a log, rewritten after each part. Needs a driver, and the
packages of `monolane[cuda]`; torch and transformers for the peers. It never changes the GPU's
settings. README.md tells how to read the page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
for folder in (ROOT / "src", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bench.gpu._script import Script  # noqa: E402
from bench.gpu._stage import Budget, Stage  # noqa: E402
from bench.gpu.monokernel._page import render  # noqa: E402
from bench.gpu.monokernel._parts import parts  # noqa: E402
from bench.gpu.monokernel._scale import FULL, REHEARSAL  # noqa: E402
from bench.gpu.monokernel._trial import command_lines  # noqa: E402
from monolane._results import Record  # noqa: E402


def make_stage(
    part: str, rehearse: bool, work: Path, budget: Budget, emit: Callable[[Record], None]
) -> Stage:
    """The surroundings of a part."""
    scale = REHEARSAL if rehearse else FULL
    return Stage(scale, work, budget, emit, {"engine": "monolane", "model": scale.model})


SCRIPT = Script(
    path=Path(__file__).resolve(),
    doc=__doc__ or "",
    engine="monolane",
    what="monokernel",
    minutes=10.0,
    parts=parts,
    stage=make_stage,
    render=render,
    epilogue=command_lines,
)


def main(arguments: list[str]) -> int:
    """Exit status 0: all right and measured; 1: something failed; 2: usage."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
