"""The parts of the suite, the most important first, and how long each may take."""

from __future__ import annotations

import os

from bench.gpu._campaign import FIRST, SOFT, Part
from bench.gpu.monokernel import variants
from bench.gpu.monokernel.sanitizer import TOOLS

# Of the first part. 88 kernels take 3 to 9 s of a processor each, 6 in the mean, side by side on as
# many as there are. One thread has 33 s to do besides: proofs (23 s under Python's lock),
# weights, imports. So 16 processors need 66 s, 4 need 165 and 2 need 297.
_KERNEL_SECONDS = 88 * 6
_ALONE_SECONDS = 33
# Half of the usual ten minutes: two processors leave the last kernels to the parts that use them.
_MOST_BUILD_SECONDS = 300


def build_seconds(processors: int) -> float:
    """The first part's limit: it begins nothing new once its soft share of it is spent."""
    needed = (_ALONE_SECONDS + _KERNEL_SECONDS / processors) / SOFT
    return min(max(needed, 90), _MOST_BUILD_SECONDS)


def parts(emulated: bool) -> tuple[Part, ...]:
    """All of them, in order."""
    peers, decode = "peers:peers", "decode with other constants"
    building = build_seconds(os.cpu_count() or 2)
    tool = "compute-sanitizer, a small model"
    shown = (
        (FIRST, "_build:build", building, "weights, and every kernel compiled"),
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
        *((f"variant:{x.name}", "variants:variants", 25, decode) for x in variants.known(emulated)),
        ("cuda-graph-compile", peers, 100, "packed PyTorch, compiled, one CUDA graph"),
        ("decode-again", "speed:decode", 25, "has the machine drifted?"),
        *((f"sanitizer:{x}", "sanitizer:sanitize", 40, tool) for x in TOOLS),
        ("soak", "soak:soak", 60, "many sequences, and the same bits at the end"),
        ("hf-compile", peers, 180, "monolane.hf compiled, one CUDA graph"),
    )
    hidden = (
        ("small-model", "sanitizer:small_model", 600, "what the sanitizer runs"),
        ("words", "words:words", 90, "the first wrong phase, by a tiny pass's words"),
        ("words-pinned", "words:words", 90, "the same, by words that outlast a fault"),
        ("profile", "_trial:profile", 120, "a short decode, for a profiler"),
        ("crash", "_trial:crash", 20, "a process that dies"),
        ("hang", "_trial:hang", 3, "a process that never ends"),
    )
    # A rehearsal compiles on what may be a busy machine, and its times mean nothing.
    return tuple(
        Part(name, f"monokernel.{entry}", 900 if emulated else seconds, tells)
        for name, entry, seconds, tells in shown
    ) + tuple(
        Part(name, f"monokernel.{entry}", seconds, tells, hidden=True)
        for name, entry, seconds, tells in hidden
    )
