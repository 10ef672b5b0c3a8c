"""The monokernel on 1, 2, 4 and 8 GPUs: `python bench/gpu/monokernel/devices.py`.

Says which GPUs there are and what joins them, compares the bits of N with those of one, and times
the decoding of one sequence, by a Laneformer and by a dense model. Each part in a process of its
own, one JSON in the results format, a page and a log, as run.py. Counts that the machine does not
have are said to be not measured. `--rehearse` runs all of it on two emulated GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
for folder in (ROOT / "src", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bench.gpu._campaign import FIRST, Part  # noqa: E402
from bench.gpu._script import Script  # noqa: E402
from bench.gpu._stage import Budget, Stage  # noqa: E402
from bench.gpu.monokernel._scale import FULL, REHEARSAL  # noqa: E402
from bench.gpu.monokernel._several import COUNTS, EMULATED_GPUS  # noqa: E402
from bench.gpu.monokernel._several_page import render  # noqa: E402
from monolane._results import Record  # noqa: E402


def parts(emulated: bool) -> tuple[Part, ...]:
    """All of them, in order."""
    counts = [n for n in COUNTS if not emulated or n <= EMULATED_GPUS]
    rows = (
        (FIRST, "links:topology", 90, "which GPUs, which reach which; weights"),
        ("links", "links:links", 60, "how long a word is on its way, of every pair"),
        # Of either most is the compiler's: every count of GPUs has kernels of its own.
        *((f"bits:{n}", "_several:bits", 400, "the bits of one GPU") for n in counts if n > 1),
        *((f"decode:{n}", "_several:decode", 400, "tokens/s of one sequence") for n in counts),
    )
    # A rehearsal compiles on what may be a busy machine, and its times mean nothing.
    return tuple(
        Part(name, f"monokernel.{entry}", 900 if emulated else seconds, tells)
        for name, entry, seconds, tells in rows
    )


def make_stage(
    part: str, rehearse: bool, work: Path, budget: Budget, emit: Callable[[Record], None]
) -> Stage:
    """The surroundings of a part."""
    # Goldens and widths are run.py's to go through; here a wide and a narrow kernel are enough.
    full = replace(FULL, golden_widths=(1, 64), goldens=FULL.goldens[:4])
    scale = replace(REHEARSAL, tokens=4, contexts=(8,)) if rehearse else full
    return Stage(scale, work, budget, emit, {"engine": "monolane"})


SCRIPT = Script(
    path=Path(__file__).resolve(),
    doc=__doc__ or "",
    engine="monolane",
    what="devices",
    minutes=60.0,
    parts=parts,
    stage=make_stage,
    render=render,
)


def main(arguments: list[str]) -> int:
    """Exit status 0: all right and measured; 1: something failed; 2: usage."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
