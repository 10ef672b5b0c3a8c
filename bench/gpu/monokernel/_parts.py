"""The parts of the suite, in the order of the ladder, and how long each may take."""

from __future__ import annotations

import os

from bench.gpu._campaign import FIRST, SOFT, Part
from bench.gpu.monokernel import variants
from bench.gpu.monokernel.sanitizer import TOOLS
from bench.gpu.probes import run as probes

# Of the first part, where nothing was prepared. 88 kernels take 3 to 9 s of a processor each, 6 in
# the mean, side by side on as many as there are. One thread has 33 s to do besides: proofs (23 s
# under Python's lock), weights, imports. So 16 processors need 66 s, 4 need 165 and 2 need 297.
_KERNEL_SECONDS = 88 * 6
_ALONE_SECONDS = 33
# Half of the usual ten minutes: two processors leave the last kernels to the parts that use them.
_MOST_BUILD_SECONDS = 300
# Parts of one group share a process and the models in it, while nothing goes wrong.
OURS, _TORCH = "ours", "torch"


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
        (FIRST, "_build:build", building, "", "the machine; kernels of the parts that follow"),
        ("launch", "start:start", 30, OURS, "a trivial kernel; a block on every SM at once"),
        ("first-golden", "correctness:first_golden", 45, OURS, "one golden model, every width"),
        ("first-tokens", "correctness:first_tokens", 60, OURS, "the full shape beside NumPy"),
        ("bandwidth", "speed:bandwidth", 40, "", "what reading memory can reach"),
        ("decode", "speed:decode", 60, OURS, "tokens/s of one sequence, greedy and sampled"),
        ("phases", "phases:phases", 45, OURS, "where the microseconds of a pass go"),
        ("decode-float8", "speed:decode_float8", 45, OURS, "the same with weights in float8"),
        ("cuda-graph", peers, 60, _TORCH, "packed PyTorch in one CUDA graph"),
        ("hf-eager", peers, 45, _TORCH, "monolane.hf as it is"),
        ("goldens", "correctness:goldens", 60, OURS, "golden models, every dtype and width"),
        ("full", "correctness:full", 45, OURS, "the full shape: bits of all widths, run twice"),
        ("reference", "correctness:reference", 60, "", "the full shape beside torch in float32"),
        ("prefill", "speed:prefill", 45, OURS, "time to the first token"),
        ("widths", "speed:widths", 45, OURS, "passes of 1 to 64 rows, batches"),
        *((f"variant:{x.name}", "variants:variants", 25, OURS, decode)
          for x in variants.known(emulated)),
        ("switches", "switches:switches", 150, OURS, "shorter chains of waits: which of them win"),
        ("cuda-graph-compile", peers, 100, "", "packed PyTorch, compiled, one CUDA graph"),
        ("decode-again", "speed:decode", 25, OURS, "has the machine drifted?"),
        *((f"sanitizer:{x}", "sanitizer:sanitize", 40, "", tool) for x in TOOLS),
        ("soak", "soak:soak", 60, OURS, "many sequences, and the same bits at the end"),
        ("hf-compile", peers, 180, "", "monolane.hf compiled, one CUDA graph"),
    )  # fmt: skip
    hidden = (
        ("width-1", "correctness:width_one", 60, "the narrowest kernel alone"),
        ("other-compiler", "correctness:other_compiler", 60, "machine code by another release"),
        ("small-model", "sanitizer:small_model", 600, "what the sanitizer runs"),
        ("words", "words:words", 90, "the first wrong phase, by a tiny pass's words"),
        ("words-pinned", "words:words", 90, "the same, by words that outlast a fault"),
        ("profile", "_trial:profile", 120, "a short decode, for a profiler"),
        ("crash", "_trial:crash", 20, "a process that dies"),
        ("hang", "_trial:hang", 3, "a process that never ends"),
    )
    # A rehearsal compiles on what may be a busy machine, and its times mean nothing.
    return (
        *(Part(name, f"monokernel.{entry}", 900 if emulated else seconds, tells, group=group)
          for name, entry, seconds, group, tells in shown),
        *(Part(name, f"monokernel.{entry}", seconds, tells, hidden=True)
          for name, entry, seconds, tells in hidden),
        *_probes(),
    )  # fmt: skip


def _probes() -> tuple[Part, ...]:
    """What probes/run.py measures at length, for the ledger to choose; each in its own process."""
    environment = tuple(probes.SCRIPT.environment.items())
    return tuple(
        Part(f"probe:{x.name}", x.entry, 60, x.tells, hidden=True, environment=environment)
        for x in probes.PROBES
    )
