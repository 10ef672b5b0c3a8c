"""All parts one after the other within one budget; the files are rewritten after each.

A part is a function in a module that only its own process imports: torch in one must not cost the
others, and a machine without it runs the rest. The first part says what the device is and compiles
the kernels; without a device nothing else is tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.gpu._child import Outcome
from monolane import _results
from monolane._results import Record

FIRST = "build"
_LEAST = 5.0  # seconds: less is not worth a process
_RESERVE = 10.0  # for the last reading of the clocks, and the files
_GRACE = 30.0  # a part with a weight: start, allocation, and its last variant
SOFT = 0.75  # of another part's time: then it begins nothing new


@dataclass(frozen=True)
class Part:
    """One process of a campaign; `variant:4 warps` is a part of the family `variant`."""

    name: str
    entry: str  # module:function in bench.gpu
    seconds: float  # at most; it is ended then
    tells: str
    hidden: bool = False  # runs only if it is named
    weight: float = 0.0  # its share of the time that is left, beside those to come; 0: `seconds`
    group: str = ""  # parts of one share a process and what is loaded in it; "": one of its own
    environment: tuple[tuple[str, str], ...] = ()  # more variables of its process

    @property
    def family(self) -> str:
        """The name without what follows a colon."""
        return self.name.partition(":")[0]

    def function(self) -> Callable[[Any, str], None]:
        """What runs in the child: takes a Stage and the part's name."""
        module, name = self.entry.split(":")
        found: Callable[[Any, str], None] = getattr(import_module(f"bench.gpu.{module}"), name)
        return found


def find_part(parts: Iterable[Part], name: str) -> Part:
    """A part by its name."""
    return next(part for part in parts if part.name == name)


def chosen(parts: Sequence[Part], only: str, as_named: bool = False) -> tuple[Part, ...]:
    """The first part and those or the families named, all that are not hidden for none.

    In the usual order, or in that of the names.
    ValueError if a name is unknown.
    """
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    names = {part.name for part in parts} | {part.family for part in parts}
    if unknown := [name for name in wanted if name not in names]:
        known = ", ".join(dict.fromkeys(p.family for p in parts if not p.hidden))
        raise ValueError(f"--only: expected some of {known}, got {', '.join(unknown)}")
    if not wanted:
        return tuple(part for part in parts if not part.hidden)
    named = [p for name in wanted for p in parts if name in (p.name, p.family)]
    found = dict.fromkeys([find_part(parts, FIRST), *named])
    return tuple(found) if as_named else tuple(p for p in parts if p in found)


class Course:
    """Which parts come next, once it is known what came of one; this one keeps to the list."""

    def after(self, part: Part, records: Sequence[Record], left: list[Part]) -> list[Part]:
        """The parts to run now. `records` are those of `part`."""
        return left

    def reason(self, part: Part) -> str:
        """Why a part that was left is not run."""
        raise NotImplementedError

    def conclude(self, document: _results.Document) -> Record | None:
        """What the whole says, as a last record."""
        return None

    def written(self, path: Path, document: _results.Document) -> None:
        """Called whenever a document is written: other files may be put beside it."""

    def last_words(self, document: _results.Document) -> list[str]:
        """Lines for the end."""
        return []


Runner = Callable[[Part, float, float], Outcome]  # soft and hard seconds


@dataclass
class Campaign:
    """`run` collects every record; `write` leaves valid files whenever it is called."""

    parts: Sequence[Part]
    engine: str  # of records about parts
    runner: Runner
    render: Callable[[_results.Document], str]
    tell: Callable[[str], None]
    seconds: float
    command: str
    commit: str
    out: Path  # the results file, or its folder
    what: str  # the end of the files' names
    always: bool  # write also without a device
    driver: str | None = None
    clock: Callable[[], float] = time.monotonic
    records: list[Record] = field(default_factory=list)
    device: dict[str, Any] = field(default_factory=dict)
    course: Course = field(default_factory=Course)
    log: Path | None = None  # what the parts have printed

    def run(self) -> None:
        """Every part, or why it was not run."""
        begin, queue = self.clock(), list(self.parts)
        while queue:
            part = queue.pop(0)
            left = self.seconds - _RESERVE - (self.clock() - begin)
            if left < _LEAST:
                self._skip(part, f"the budget of {self.seconds:.0f} s was spent before this part")
            elif part.name != FIRST and not self.device:
                self._skip(part, "no device: see the first record")
            else:
                time = self._time(part, queue, left)
                queue = self._steered(part, self._one(part, *time, begin), queue)
            self.write()

    def _steered(self, part: Part, found: list[Record], left: list[Part]) -> list[Part]:
        """What is to be run after a part; what is not any more is said."""
        queue = self.course.after(part, found, left)
        for dropped in (x for x in left if x not in queue):
            self._skip(dropped, self.course.reason(dropped))
        return queue

    def _time(self, part: Part, queue: list[Part], left: float) -> tuple[float, float]:
        """Soft and hard seconds of a part."""
        if part.weight:
            soft = left * part.weight / sum(x.weight for x in (part, *queue))
            return soft, soft + _GRACE
        hard = min(part.seconds, left)
        return SOFT * hard, hard

    def _one(self, part: Part, soft: float, hard: float, begin: float) -> list[Record]:
        at = self.clock() - begin
        outcome = self.runner(part, soft, hard)
        spent = self.clock() - begin - at
        self.device = outcome.device or self.device
        found = [sound(record) for record in outcome.records]
        self.records += found
        self.records.append({
            "name": "part", "engine": "suite", "part": part.name,
            "begun_at_s": round(at, 2), "took_s": round(spent, 2),
        })  # fmt: skip
        self.tell(f"{at:5.0f} s  {part.name:22} {spent:5.1f} s  {summary_line(outcome.records)}")
        return found

    def _skip(self, part: Part, why: str) -> None:
        label: Record = {"name": f"{part.name}_part", "engine": self.engine, "part": part.name}
        self.records.append(label | {"not_measured": why})
        self.tell(f"         {part.name:22}   -    {why}")

    def document(self) -> _results.Document:
        """The results so far, with what only the whole knows: shares and ratios."""
        best = best_read(self.records)
        bandwidth = best["gb_per_s"] if best else None
        device = {"name": "unknown", "memory_gb": None, **self.device}
        device |= {
            "driver": self.driver or self.device.get("driver"),
            "cores": self.device.get("cores"),
            "read_bandwidth_gb_s": bandwidth,
        }
        records = [complete(record, bandwidth, self.records) for record in self.records]
        compilers = [x["compiler"] for x in records if "compiler" in x]
        more = {"compiler": compilers[0]} if compilers else {}
        return _results.build_document(device, self.command, records, self.commit, **more)

    def write(self) -> None:
        """The JSON, beside it page, log and what the course writes; nothing without a device."""
        if not self.device and not self.always:
            return
        document = self.document()
        path = self.path(document)
        _results.write_document(path, document)
        path.with_suffix(".md").write_text(self.page(document), encoding="utf-8")
        if self.log is not None and self.log.exists():
            path.with_suffix(".txt").write_bytes(self.log.read_bytes())
        self.course.written(path, document)

    def page(self, document: _results.Document) -> str:
        """The page; a record that it cannot show must not cost those that come after it."""
        try:
            return self.render(document)
        except Exception as error:
            return f"The page could not be made: {type(error).__name__}: {error}\n"

    def path(self, document: _results.Document | None = None) -> Path:
        """Of the JSON file."""
        if self.out.suffix == ".json":
            return self.out
        return self.out / _results.result_name(document or self.document(), self.what)

    @property
    def right(self) -> bool:
        """Whether there is a device, and nothing failed on it."""
        return bool(self.device) and not any("error" in record for record in self.records)


def sound(record: Record) -> Record:
    """The record, or in its place why the results format refuses it."""
    try:
        _results.check_record(record)
    except _results.ResultsError as error:
        kept = ("engine", "model", "part")
        labels: Record = {key: record[key] for key in kept if key in record}
        return {"name": str(record.get("name") or "unnamed"), **labels, "error": str(error)}
    return record


def best_read(records: Sequence[Record]) -> Record | None:
    """The fastest checked read."""
    reads = [r for r in records if r["name"] == "read_bandwidth" and "gb_per_s" in r]
    return max(reads, key=lambda r: float(r["gb_per_s"]), default=None)


def complete(record: Record, bandwidth: float | None, records: Sequence[Record]) -> Record:
    """A record with its share of the bandwidth, and its ratio to the best peer at its context."""
    found = dict(record)
    if bandwidth and record.get("bytes_per_token") and record.get("gb_per_s"):
        found["mbu"] = record["gb_per_s"] / bandwidth
    if record["name"] == "decode" and record.get("engine") == "monolane" and "median" in record:
        peers = [
            x["median"]
            for x in records
            if x["name"] == "decode" and x.get("engine") != "monolane" and "median" in x
            and x.get("context") == record.get("context")
        ]  # fmt: skip
        if peers:
            found["ratio_to_best_peer"] = record["median"] / max(peers)
    return found


def summary_line(records: Sequence[Record]) -> str:
    """One line about a part: its trouble if it has any, else its figures."""
    errors = [x for x in records if "error" in x]
    if errors:
        return f"FAILED: {errors[0]['error'][:160]}" + (
            f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        )
    left_out = [x["not_measured"] for x in records if "not_measured" in x]
    figures = [x for x in records if "median" in x]
    if best := best_read(figures):
        return f"best {best['median']:,.0f} GB/s"
    told = [f"{_where(x)}{x['median']:,.4g} {x.get('unit', '')}".strip() for x in figures]
    if not told:
        told = [_counts(x) for x in records if "not_measured" not in x]
    if left_out:
        told.append(f"not measured: {left_out[0][:100]}")
    return "; ".join(told[:6]) or "done"


def _where(record: Record) -> str:
    for key in ("context", "width", "tokens"):
        if record.get(key):
            return f"{record['name']} {key} {record[key]}: "
    return f"{record['name']}: "


def _counts(record: Record) -> str:
    shown = {
        key: value
        for key, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return f"{record['name']} " + ", ".join(f"{k} {v:.4g}" for k, v in list(shown.items())[:4])
