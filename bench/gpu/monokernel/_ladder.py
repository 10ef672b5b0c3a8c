"""What a run does once it is known how it goes, and what it says at its end.

Truth comes before speed. Where a GPU does not run the smallest kernel, nothing else is tried; where
tokens are wrong, what was to be timed makes way for what finds out why. The last line is the
command to type next: a machine that waits seconds only leaves no time to think.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu._campaign import FIRST, Course, Part
from bench.gpu.monokernel._carried import kernels_digest
from bench.gpu.monokernel._ledger import PATH, Ledger, card_of
from bench.gpu.monokernel._parts import OURS
from monolane._results import Document, Record

MACHINE = ("launch",)
TRUTH = ("first-golden", "first-tokens", "goldens", "full", "reference")
BESIDE_TORCH = ("reference",)
# The first half runs at once; the second is the next command.
DIAGNOSIS = ("words", "sanitizer:memcheck", "sanitizer:synccheck", "width-1")
SECOND_HALF = ("other-compiler", "sanitizer:racecheck", "goldens")
NO_LAUNCH = ("launch", "sanitizer:memcheck", "width-1")  # looked at if the smallest kernel fails
_FAILURES = 2  # of our own parts, one behind the other: then it is no accident of one


@dataclass
class Ladder(Course):
    """The course of one run."""

    parts: Sequence[Part]  # all that there are
    asked: Sequence[str]
    ledger: Ledger
    options: Any  # of the command line
    broken: str = ""  # the part that ended the climb
    why: str = ""
    failed: list[str] = field(default_factory=list)

    # ---- on the way ------------------------------------------------------------------------------
    def after(self, part: Part, records: Sequence[Record], left: list[Part]) -> list[Part]:
        """The parts to run now."""
        errors = [" ".join(str(record["error"]).split()) for record in records if "error" in record]
        if part.group == OURS:
            self.failed = [*self.failed, part.name] if errors else []
        if not errors or self.options.diagnose or self.broken or part.name == FIRST:
            return left
        true = part.name in (*MACHINE, *TRUTH)
        if part.name in BESIDE_TORCH:  # torch has troubles of its own
            true = any(error.startswith("CheckError") for error in errors)
        if not true and len(self.failed) < _FAILURES:
            return left
        self.broken, self.why = part.name, errors[0][:300]
        if part.name in MACHINE:
            return []
        return [x for name in DIAGNOSIS for x in self.parts if x.name == name]

    def reason(self, part: Part) -> str:
        """Why a part that was left is not run."""
        what = "nothing else is tried" if self.broken in MACHINE else "diagnosis comes first"
        return f"{self.broken} failed: {what}"

    # ---- at the end ------------------------------------------------------------------------------
    def conclude(self, document: Document) -> Record | None:
        """The verdict and the next command, as a record."""
        verdict, following = self._verdict(document)
        return {"name": "verdict", "engine": "suite", "verdict": verdict, "next": following}

    def written(self, path: Path, document: Document) -> None:
        """The ledger, beside the results."""
        self.ledger.folded(document, path.name).write(path.with_name(PATH.name))

    def last_words(self, document: Document) -> list[str]:
        """Both again, for the end of what is printed."""
        (record,) = (x for x in document["records"] if x["name"] == "verdict")
        following = record["next"] or "nothing: no part is pending on this card"
        return [f"verdict: {record['verdict']}", f"next: {following}"]

    def _verdict(self, document: Document) -> tuple[str, str]:
        records = document["records"]
        told = {name: _told(name, records) for name in _names(records)}
        if document["device"]["name"] == "unknown":
            return f"NO DEVICE: {told.get(FIRST, 'it made no record')}", self._command(self.asked)
        if self.broken in MACHINE:
            text = f"NO LAUNCH: {self.why}. The log has the driver's own words"
            return text, self._command(NO_LAUNCH, diagnose=True)
        if self.broken:
            found = [f"{name}: {told[name]}" for name in DIAGNOSIS if name in told]
            text = f"WRONG at {self.broken}: {self.why}. Diagnosis: {'; '.join(found) or 'none'}"
            missing = [name for name in DIAGNOSIS if told.get(name, "left out") == "left out"]
            return text, self._command((*missing, *SECOND_HALF), diagnose=True)
        ran = {name: text for name, text in told.items() if text != "left out"}
        if self.options.diagnose:
            found = [f"{name}: {text}" for name, text in ran.items() if name != FIRST]
            text = f"DIAGNOSED: {'; '.join(found) or 'nothing ran'}"
            return text, self._pending(document)
        return _summary(ran), self._pending(document)

    def _pending(self, document: Document) -> str:
        """The command for what is most valuable now."""
        device = document["device"]["name"]
        there = [part.name for part in self.parts]
        ledger = self.ledger.folded(document, "")
        chosen = ledger.choose(card_of(device), self.options.then, kernels_digest(), there)
        return self._command(chosen) if chosen else ""

    def _command(self, names: Sequence[str], diagnose: bool = False) -> str:
        """As it can be typed at the root of the repository."""
        o, there = self.options, {part.name for part in self.parts}
        named = ",".join(name for name in dict.fromkeys(names) if name in there)
        words = ["python", "bench/gpu/monokernel/run.py", "--only", named]
        words += ["--diagnose"] if diagnose else []
        words += ["--rehearse"] if o.rehearse else []
        words += ["--minutes", f"{o.then / 60:g}", "--then", f"{o.then:g}"]
        for name in ("carried", "work", "out", "commit"):
            if (value := getattr(o, name)) is not None:
                words += [f"--{name}", str(value)]
        return shlex.join([*words, "--name", _next_name(o.name)])


def _names(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(str(x["part"]) for x in records if "part" in x))


def _told(part: str, records: Sequence[Record]) -> str:
    """What came of a part, in a few words."""
    found = [x for x in records if x.get("part") == part and x["name"] != "part"]
    if not any(x["name"] == "part" and x["part"] == part for x in records):
        return "left out"
    if errors := [x["error"] for x in found if "error" in x]:
        return f"failed ({' '.join(str(errors[0]).split())[:120]})"
    if found and all("not_measured" in x for x in found):
        return f"not measured ({found[0]['not_measured'][:120]})"
    return "right"


def _summary(ran: dict[str, str]) -> str:
    """Of a run in which nothing ended the climb."""
    groups: dict[str, list[str]] = {"right": [], "failed": [], "not measured": []}
    for name, text in ran.items():
        if name != FIRST:
            groups[text.partition(" (")[0]].append(name)
    head = "RIGHT" if not groups["failed"] else "FAILED IN PART"
    if not groups["right"]:
        head = "NOTHING MEASURED"
    return f"{head}: " + "; ".join(f"{k}: {', '.join(v)}" for k, v in groups.items() if v)


def _next_name(name: str) -> str:
    """Of the next run's files: monokernel, monokernel-2, monokernel-3."""
    head, dash, number = name.rpartition("-")
    return f"{head}-{int(number) + 1}" if dash and number.isdigit() else f"{name}-2"
