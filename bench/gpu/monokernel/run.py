"""The monokernel on one GPU, right or wrong and how fast: `python bench/gpu/monokernel/run.py`.

Runs every part in a process of its own within one budget, the most important first, and writes one
JSON in the results format, a page and a log, rewritten after each part. Needs a driver, and the
packages of `monolane[cuda]`; torch and transformers for the peers. It never changes the GPU's
settings. README.md tells how to read the page.
"""

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
for folder in (ROOT / "src", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bench.gpu._campaign import FIRST, Part  # noqa: E402
from bench.gpu._script import Script  # noqa: E402
from bench.gpu._stage import Budget, Stage  # noqa: E402
from bench.gpu.monokernel._page import render  # noqa: E402
from bench.gpu.monokernel._scale import FULL, REHEARSAL  # noqa: E402
from bench.gpu.monokernel.sanitizer import TOOLS, command_lines  # noqa: E402
from bench.gpu.monokernel.speed import known_variants  # noqa: E402
from monolane._results import Record  # noqa: E402


def parts(emulated: bool) -> tuple[Part, ...]:
    """All of them, the most important first, and how long each may take."""
    peers, decode = "peers:peers", "decode with other constants"
    tool = "compute-sanitizer, a small model"
    shown = (
        (FIRST, "_build:build", 90, "weights, and every kernel compiled"),
        ("goldens", "correctness:goldens", 60, "golden models, every dtype and width"),
        ("full", "correctness:full", 45, "the full shape: bits of all widths, run twice"),
        ("reference", "correctness:reference", 60, "the full shape beside torch or NumPy"),
        ("bandwidth", "speed:bandwidth", 40, "what reading memory can reach"),
        ("decode", "speed:decode", 60, "tokens/s of one sequence, greedy and sampled"),
        ("decode-float8", "speed:decode_float8", 45, "the same with weights in float8"),
        ("prefill", "speed:prefill", 45, "time to the first token"),
        ("phases", "phases:phases", 45, "where the microseconds of a pass go"),
        ("cuda-graph", peers, 60, "packed PyTorch in one CUDA graph"),
        ("hf-eager", peers, 45, "monolane.hf as it is"),
        ("widths", "speed:widths", 45, "passes of 1 to 64 rows, batches"),
        *((f"variant:{x.name}", "speed:variant", 25, decode) for x in known_variants(emulated)),
        ("cuda-graph-compile", peers, 100, "packed PyTorch, compiled, one CUDA graph"),
        ("decode-again", "speed:decode_again", 25, "has the machine drifted?"),
        *((f"sanitizer:{x}", "sanitizer:sanitize", 40, tool) for x in TOOLS),
        ("soak", "soak:soak", 60, "many sequences, and the same bits at the end"),
        ("hf-compile", peers, 180, "monolane.hf compiled, one CUDA graph"),
    )
    hidden = (
        ("small-model", "sanitizer:small_model", 600, "what the sanitizer runs"),
        ("profile", "sanitizer:profile", 120, "a short decode, for a profiler"),
    )
    return tuple(
        Part(name, f"monokernel.{entry}", seconds, tells, hidden=rows is hidden)
        for rows in (shown, hidden)
        for name, entry, seconds, tells in rows
    )


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
