"""Verdicts of the prover, kept on disk: a program that was proven sound is so at the next start.

A proof takes more than half a second of one processor, of each width, before the first kernel can
run. The verdict depends on the program and on the code that proves it, so it is kept under a digest
of both. Only success is kept: an unsound program is proven anew, and refused again.
"""

import hashlib
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from monolane import _env
from monolane.cuda._program import Program
from monolane.cuda._race_check import prove

# What a verdict rests on besides the program: each file of these packages, and these modules.
_PACKAGES = ("monolane.plan", "monolane.model")
_MODULES = ("monolane.cuda._race_check", "monolane.cuda._program")


def prove_once(program: Program) -> None:
    """Prove a program, unless the same program was proven before; PlanError if it is unsound."""
    place = folder() / digest(program)
    if place.exists():
        return
    prove(program)
    with suppress(OSError):  # a full disk costs the next start half a second, not this one
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def folder() -> Path:
    """Return the folder of verdicts: of each sound program an empty file, named by its digest."""
    return _env.CACHE.get() / "proofs"


def digest(program: Program) -> str:
    """Return the name of a verdict: of all that it depends on."""
    plan = program.plan
    # What a GPU is called, and how much of a byte or a sum it does, says nothing about order.
    machine = replace(plan.device, name="", source="", bandwidth=1.0, compute=1.0)
    text = repr(replace(program, plan=replace(plan, device=machine)))
    return hashlib.sha256(f"{_code()}\0{text}".encode()).hexdigest()


@cache
def _code() -> str:
    """Return a digest of the code that proves."""
    found = hashlib.sha256()
    for name in (*_PACKAGES, *_MODULES):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        path = Path(spec.origin)
        files = sorted(path.parent.rglob("*.py")) if name in _PACKAGES else [path]
        for file in files:
            found.update(f"{name}\0{file.name}\0".encode() + file.read_bytes())
    return found.hexdigest()
