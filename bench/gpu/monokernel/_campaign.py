"""All parts one after the other within one budget; the files are rewritten after each.

`document` adds what only the whole knows: shares of the measured bandwidth, ratios to the peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import _results
from bench._results import Record
from bench.gpu.monokernel._parts import FIRST, Part
from bench.gpu.probes._campaign import best_read
from bench.gpu.probes._child import Outcome

Runner = Callable[[Part, float], Outcome]
_LEAST = 5.0  # seconds: less is not worth a process
_RESERVE = 5.0  # for the last reading of the clocks, and the files


@dataclass
class Campaign:
    """`run` collects every record; `write` leaves valid files whenever it is called."""

    parts: Sequence[Part]
    runner: Runner
    render: Callable[[_results.Document], str]
    tell: Callable[[str], None]
    seconds: float
    command: str
    commit: str
    folder: Path
    what: str  # the end of the files' names
    always: bool  # write also without a device
    driver: str | None = None
    clock: Callable[[], float] = time.monotonic
    records: list[Record] = field(default_factory=list)
    device: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Every part, or why it was not run."""
        begin = self.clock()
        for part in self.parts:
            left = self.seconds - _RESERVE - (self.clock() - begin)
            if left < _LEAST:
                why = f"the budget of {self.seconds:.0f} s was spent before this part"
                self._skip(part, why)
            else:
                self._one(part, min(part.seconds, left), begin)
            self.write()
            if part.name == FIRST and not self.device:
                for other in self.parts[1:]:
                    self._skip(other, "no device: see the first record")
                self.write()
                return

    def _one(self, part: Part, seconds: float, begin: float) -> None:
        at = self.clock() - begin
        outcome = self.runner(part, seconds)
        spent = self.clock() - begin - at
        self.device = outcome.device or self.device
        self.records += [sound(record) for record in outcome.records]
        self.records.append({
            "name": "part", "engine": "suite", "part": part.name,
            "begun_at_s": round(at, 2), "took_s": round(spent, 2),
        })  # fmt: skip
        self.tell(f"{at:5.0f} s  {part.name:22} {spent:5.1f} s  {summary_line(outcome.records)}")

    def _skip(self, part: Part, why: str) -> None:
        self.records.append(
            {"name": f"{part.name}_part", "engine": "monolane", "part": part.name,
             "not_measured": why}
        )  # fmt: skip
        self.tell(f"         {part.name:22}   -    {why}")

    def document(self) -> _results.Document:
        """The results so far."""
        best = best_read(self.records)
        bandwidth = best["gb_per_s"] if best else None
        device = {"name": "unknown", "memory_gb": None, **self.device}
        device |= {
            "driver": self.driver or self.device.get("driver"),
            "cores": self.device.get("cores"),
            "read_bandwidth_gb_s": bandwidth,
        }
        return _results.build(
            device=device,
            command=self.command,
            records=[complete(record, bandwidth, self.records) for record in self.records],
            commit=self.commit,
        )

    def write(self) -> None:
        """The JSON and the table beside it; without a device there is nothing worth a file."""
        if not self.device and not self.always:
            return
        document = self.document()
        path = self.path(document)
        _results.write(path, document)
        path.with_suffix(".md").write_text(self.page(document), encoding="utf-8")

    def page(self, document: _results.Document) -> str:
        """The table; a record that it cannot show must not cost those that come after it."""
        try:
            return self.render(document)
        except Exception as error:
            return f"The page could not be made: {type(error).__name__}: {error}\n"

    def path(self, document: _results.Document | None = None) -> Path:
        """Of the JSON file."""
        return self.folder / _results.file_name(document or self.document(), self.what)


def sound(record: Record) -> Record:
    """The record, or in its place why the results format refuses it."""
    try:
        _results.check_record(record)
    except _results.ResultsError as error:
        kept = ("engine", "model", "part")
        labels: Record = {key: record[key] for key in kept if key in record}
        return {"name": str(record.get("name") or "unnamed"), **labels, "error": str(error)}
    return record


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
    if any(x["name"] == "read_bandwidth" for x in figures):
        return f"best {max(x['median'] for x in figures):,.0f} GB/s"
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
