"""Tokens/s against link delay, for tensor parallelism that blocks and for delays of 1, 2 and 4.

    python bench/dtp_overlap.py [--lanes-of-smollm2 FOLDER] [--only demo:8 ...] [--out DIR]

Timed compute: every rank is a process of its own that really waits, exchanges and passes tokens on,
but a phase takes the time that the simulator's model of a device gives it, by sleeping. So eight
ranks fit on two cores. All modelled times and the link's delay are stretched by one factor, chosen
for each point so that a token takes about --token-seconds: waking a process, some tens of
microseconds at each wait, is small beside it. Speeds are divided by that factor again.

    demo      phases compute within their time, so tokens are the model's; ranks on CPUs
    smollm2   the same; retrofitted into 3 lanes: monolane retrofit -m smollm2 -o FOLDER --lanes 3
    2b        phases wait alone: weights are zeros in a file without blocks; a lane on each H200

A rule (now, after:D) changes time alone here: no model was trained for the others. Rules and link
delays take turns. Where the system allows it, ranks have real-time priority once they are loaded.
The simulator's prediction of each point stands beside it.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _document import publish
from _program import run_script

from monolane.cpu import CpuExecutor
from monolane.executor_api import Advance
from monolane.measure import Record, summary, synthetic_config
from monolane.model import ModelConfig, Weights, read_config, render_config, tensor_specs
from monolane.sim import Ranks, find_machine, with_reduce
from monolane.sources import find_model

RULES = ("now", "after:1", "after:2", "after:4")
LINKS = (0, 5, 10, 20, 50, 100)  # us
CONTEXT = 128  # whose keys a token reads, whatever its position
FALL = 0.9  # of a rule's own speed without a link: where it is said to have fallen
MODE = "timed compute: real processes and exchanges, modelled times of phases, stretched"


Speeds = dict[tuple[str, float], float]  # (rule, us) -> tokens/s


@dataclass(frozen=True)
class Shape:
    """A model, on devices that its ranks stand for."""

    model: str
    device: str  # as monolane.sim names it; {n}: the ranks
    ranks: tuple[int, ...]
    computes: bool


SHAPES = {
    "demo": Shape("demo", "{n}xcpu:1", (2, 4, 8), True),
    "smollm2": Shape("smollm2 in 3 lanes", "{n}xcpu:1", (3,), True),
    "2b": Shape("laneformer-2b, no weights", "{n}xh200", (2, 4, 8), False),
}


class Running:
    """One rule of a shape: its ranks, and what the simulator says of them."""

    def __init__(self, folder: Path, machine: str, ranks: int) -> None:
        self.executor = CpuExecutor(
            Weights.open(folder),
            "bfloat16",
            context=CONTEXT,
            slots=1,
            workers=ranks,
            ranks=ranks,
            timed=True,
            patience=60.0,
        )
        self.model = Ranks(find_machine(machine), self.executor.plan, CONTEXT)
        self.real_time = _promote(self.executor.processes)

    def speed(self, link: float, computes: bool, token_seconds: float, tokens: int) -> float:
        """Return modelled tokens/s of an epoch, whose first token is not counted."""
        executor = self.executor
        stretch = token_seconds / self.model.seconds(link)
        table = self.model.timetable(link, stretch)
        executor.set_times(table.times, table.ring, computes=computes)
        executor.set_links(table.hops)
        executor.truncate(0, 0)
        executor.start([Advance(slot=0, token_ids=(1,), budget=tokens + 1)])
        while not executor.read(1.0):
            pass
        times = [event.time_ns for event in executor.take()]
        return tokens / (times[-1] - times[0]) * 1e9 * stretch


def _promote(processes: Sequence[int]) -> bool:
    """Give all threads of the ranks real-time priority; return whether that is allowed."""
    try:
        for process in processes:
            for thread in Path(f"/proc/{process}/task").iterdir():
                os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    return True


@contextmanager
def variant(config: ModelConfig, source: Path | None, rule: str) -> Iterator[Path]:
    """Yield a folder of the model under another rule: its own weights, or none."""
    varied = with_reduce(config, rule)
    with tempfile.TemporaryDirectory(prefix="monolane-overlap-") as scratch:
        folder = Path(scratch)
        (folder / "config.json").write_text(json.dumps(render_config(varied)), encoding="utf-8")
        if source is None:
            _write_holes(folder / "model.safetensors", varied)
        else:
            for file in source.glob("*.safetensors*"):
                (folder / file.name).symlink_to(file.resolve())
        yield folder


def _write_holes(path: Path, config: ModelConfig) -> None:
    """Write a checkpoint of zeros that takes no room on the disk."""
    header, at = {}, 0
    for spec in tensor_specs(config):
        end = at + 2 * spec.size
        header[spec.name] = {"dtype": "BF16", "shape": spec.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


def measure(name: str, ranks: int, folder: Path | None, options: Any) -> list[Record]:
    """Return a record for each rule of a shape."""
    shape, machine = SHAPES[name], SHAPES[name].device.format(n=ranks)
    config = read_config(folder) if folder is not None else synthetic_config("laneformer-2b")
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        running = {}
        for rule in RULES:
            place = stack.enter_context(variant(config, folder, rule))
            running[rule] = one = Running(place, machine, ranks)
            stack.callback(one.executor.close)
        for run in range(options.runs):
            for link in LINKS:
                for rule, one in running.items():
                    wanted = (link / 1e6, shape.computes, options.token_seconds, options.tokens)
                    found[rule, link].append(one.speed(*wanted))
            sys.stderr.write(f"{name}, {ranks} ranks: run {run + 1} of {options.runs}\n")
        promoted = all(one.real_time for one in running.values())
        simulated: Speeds = {
            (rule, link): 1 / one.model.seconds(link / 1e6)
            for rule, one in running.items()
            for link in LINKS
        }
    return [
        record_of(name, ranks, rule, found, simulated) | {"real_time": promoted} for rule in RULES
    ]


def record_of(
    name: str,
    ranks: int,
    rule: str,
    found: dict[tuple[str, float], list[float]],
    simulated: Speeds,
) -> Record:
    """Return what was measured of a rule, and what was predicted."""
    shape = SHAPES[name]
    machine = shape.device.format(n=ranks)
    points = []
    for link in LINKS:
        speeds = summary(found[rule, link], "")
        point = {key: speeds[key] for key in ("min", "median", "max")}
        points.append({"link_us": link, **point, "simulated": simulated[rule, link]})
    medians = [point["median"] for point in points]
    predicted = [point["simulated"] for point in points]
    kept = medians[LINKS.index(20)] / medians[0]
    unit = f"modelled tokens/s without a link delay; {kept:.1%} of it at 20 us"
    return {
        "name": f"dtp_overlap {rule}, {ranks} ranks",
        "engine": "monolane",
        "shape": name,
        "model": f"{shape.model}, {machine}",
        "machine": machine,
        "dtype": "bfloat16",
        "ranks": ranks,
        "rule": rule,
        "computes": shape.computes,
        **summary(found[rule, 0], unit),
        "points": points,
        "kept_at_20_us": kept,
        "kept_at_20_us_simulated": predicted[LINKS.index(20)] / predicted[0],
        "falls_at_us": falls_at(medians),
        "falls_at_us_simulated": falls_at(predicted),
    }


def falls_at(speeds: Sequence[float]) -> float | None:
    """Return the link delay (us) at which a speed is FALL of its first; None: never.

    Between two points the time of a token is taken as a straight line.
    """
    seconds = 1 / np.asarray(speeds)
    limit = seconds[0] / FALL
    over = np.flatnonzero(seconds > limit)
    if not over.size:
        return None
    at = int(over[0])
    return float(np.interp(limit, seconds[at - 1 : at + 1], LINKS[at - 1 : at + 1]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Tokens/s against link delay; timed compute.")
    parser.add_argument("--lanes-of-smollm2", type=Path, help="folder that retrofit wrote")
    parser.add_argument("--only", nargs="*", help="shapes and ranks, as demo:8")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=2, help="timed tokens of an epoch")
    parser.add_argument("--token-seconds", type=float, default=0.4)
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    folders = {"demo": find_model("demo"), "smollm2": options.lanes_of_smollm2, "2b": None}
    records = []
    for name, shape in SHAPES.items():
        for ranks in shape.ranks:
            left_out = options.only and f"{name}:{ranks}" not in options.only
            if left_out or (name == "smollm2" and folders[name] is None):
                continue
            records += measure(name, ranks, folders[name], options)
    shapes = {record["shape"] for record in records}
    what = "-".join(["dtp-overlap", *(shapes if len(shapes) == 1 else ())])
    told = {"mode": MODE, "context": CONTEXT, "token_seconds": options.token_seconds}
    publish(records, what, options.out, **told)


if __name__ == "__main__":
    run_script(main)
