"""The parts of the campaign, the most important first, and how long each may take.

A part is a function in a module that only its own process imports: torch in one must not cost the
others, and a machine without it runs the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bench.gpu.monokernel import variants
from bench.gpu.monokernel.sanitizer import TOOLS

FIRST = "build"  # without which nothing else makes sense


@dataclass(frozen=True)
class Part:
    """One process of the campaign; `variant:4 warps` is a part of the family `variant`."""

    name: str
    entry: str  # module:function in this folder
    seconds: float  # at most; it is ended then
    tells: str
    hidden: bool = False  # runs only if it is named

    @property
    def family(self) -> str:
        """The name without what follows a colon."""
        return self.name.partition(":")[0]

    def function(self) -> Callable[[Any, str], None]:
        """What runs in the child: takes a Stage and the part's name."""
        module, name = self.entry.split(":")
        found: Callable[[Any, str], None] = getattr(
            import_module(f"bench.gpu.monokernel.{module}"), name
        )
        return found


def parts(emulated: bool) -> tuple[Part, ...]:
    """All of them, in order."""
    return (
        Part(FIRST, "_build:build", 90, "weights, and every kernel compiled"),
        Part("goldens", "correctness:goldens", 60, "golden models, every dtype and width"),
        Part("full", "correctness:full", 45, "the full shape: bits of all widths, run twice"),
        Part("reference", "correctness:reference", 60, "the full shape beside torch or NumPy"),
        Part("bandwidth", "speed:bandwidth", 40, "what reading memory can reach"),
        Part("decode", "speed:decode", 60, "tokens/s of one sequence, greedy and sampled"),
        Part("decode-float8", "speed:decode_float8", 45, "the same with weights in float8"),
        Part("prefill", "speed:prefill", 45, "time to the first token"),
        Part("phases", "phases:phases", 45, "where the microseconds of a pass go"),
        Part("cuda-graph", "peers:peers", 60, "packed PyTorch in one CUDA graph"),
        Part("hf-eager", "peers:peers", 45, "monolane.hf as it is"),
        Part("widths", "speed:widths", 45, "passes of 1 to 64 rows, batches"),
        *(
            Part(f"variant:{x.name}", "variants:variants", 25, "decode with other constants")
            for x in variants.known(emulated)
        ),
        Part("cuda-graph-compile", "peers:peers", 100, "packed PyTorch, compiled, one CUDA graph"),
        Part("decode-again", "speed:decode", 25, "has the machine drifted?"),
        *(
            Part(f"sanitizer:{tool}", "sanitizer:sanitize", 40, "compute-sanitizer, a small model")
            for tool in TOOLS
        ),
        Part("soak", "soak:soak", 60, "many sequences, and the same bits at the end"),
        Part("hf-compile", "peers:peers", 180, "monolane.hf compiled, one CUDA graph"),
        Part("small-model", "sanitizer:small_model", 600, "what the sanitizer runs", hidden=True),
        Part("profile", "_trial:profile", 120, "a short decode, for a profiler", hidden=True),
        Part("crash", "_trial:crash", 20, "a process that dies", hidden=True),
        Part("hang", "_trial:hang", 3, "a process that never ends", hidden=True),
    )


def find_part(name: str, emulated: bool) -> Part:
    """A part by its name."""
    return next(part for part in parts(emulated) if part.name == name)


def chosen(only: str, emulated: bool) -> tuple[Part, ...]:
    """The parts or families named, with the first one; all that are not hidden for none.

    ValueError if a name is unknown.
    """
    everything = parts(emulated)
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    names = {part.name for part in everything} | {part.family for part in everything}
    if unknown := [name for name in wanted if name not in names]:
        known = ", ".join(dict.fromkeys(p.family for p in everything if not p.hidden))
        raise ValueError(f"--only: expected some of {known}, got {', '.join(unknown)}")
    if not wanted:
        return tuple(part for part in everything if not part.hidden)
    return tuple(
        part
        for part in everything
        if part.name == FIRST or part.name in wanted or part.family in wanted
    )
