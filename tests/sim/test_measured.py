"""The simulator beside every decode of ours in bench/results on a processor it has constants of.

A processor's constants are shares of its read bandwidth, one for each weight format. Each was taken
from one run, which devices.toml names; all others are held to 10 %. The bandwidth is that of the
run itself, as measured between its epochs: memory of a virtual machine changes by the minute.
"""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from monolane.measure import synthetic_config
from monolane.sim import Scenario, find_processor, run_scenario

RESULTS = Path(__file__).parents[2] / "bench" / "results"
CLOSE = 0.10
SAME = 0.01  # a constant has four digits


@dataclass(frozen=True)
class Measured:
    """One decode run."""

    file: str
    processor: str
    record: dict[str, Any]

    @property
    def bandwidth(self) -> float:
        """GB/s while it ran: by its MBU, or the median of what was read beside it."""
        if "mbu" in self.record:
            return float(self.record["gb_per_s"] / self.record["mbu"])
        return float(statistics.median(self.record["read_bandwidth_gb_s"]))

    @property
    def scenario(self) -> Scenario:
        record = self.record
        machine = find_processor(self.processor, record["workers"])
        return Scenario(
            model=record["model"],
            config=synthetic_config(record["model"].removeprefix("synthetic-")),
            machine=machine.stated(bandwidth=self.bandwidth),
            dtype=record["dtype"],
            context=record["context"] + record["tokens"] // 2,
        )

    @property
    def calibrates(self) -> bool:
        """Whether the constant for its format was taken from it."""
        constant = self.scenario.machine.timing.share.get(self.record["dtype"])
        first = self.record["context"] == 128
        return constant is not None and self.file in constant.source and first

    @property
    def error(self) -> float:
        """Simulated by measured speed, less one."""
        return run_scenario(self.scenario).speed / float(self.record["median"]) - 1


def _runs() -> list[Measured]:
    found = []
    for path in sorted(RESULTS.glob("*.json")):
        document = json.loads(path.read_text())
        name = str(document["device"]["name"])
        for record in document["records"]:
            ours = record["name"] == "decode" and record["engine"] == "monolane"
            known = find_processor(name, 1).timing.processors  # else nothing says what to expect
            alone = "workers" in record and "ranks" not in record  # what a scenario describes
            if ours and known and alone and record.get("median"):
                found.append(Measured(path.name, name, record))
    return found


RUNS = _runs()


def _name(run: Measured) -> str:
    return f"{run.file.removesuffix('.json')}-{run.record['dtype']}-{run.record['context']}"


def test_there_are_runs_of_both_kinds() -> None:
    taken = {(run.processor, run.record["dtype"]) for run in RUNS if run.calibrates}
    assert taken == {
        (name, dtype)
        for name in ("AMD EPYC", "Intel(R) Xeon(R) Processor")
        for dtype in ("bfloat16", "int8", "int4")
    }
    assert sum(not run.calibrates for run in RUNS) >= 9


@pytest.mark.parametrize("run", [r for r in RUNS if not r.calibrates], ids=_name)
def test_a_run_that_no_constant_was_taken_from(run: Measured) -> None:
    assert abs(run.error) < CLOSE, (
        f"{run.error:+.1%}: if the kernels have become faster, take the constant in devices.toml "
        "from the new run, and let the others be held to it"
    )


@pytest.mark.parametrize("run", [r for r in RUNS if r.calibrates], ids=_name)
def test_a_constant_is_what_its_run_says(run: Measured) -> None:
    assert abs(run.error) < SAME
