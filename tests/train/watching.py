"""How tests of launches look at what happens elsewhere."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from monolane.train import read_weights
from monolane.train._journal import read_journal


def attempts(run: Path, node: int = 0) -> list[dict[str, Any]]:
    lines = (run / "attempts" / f"node-{node}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def wait_for(there: Callable[[], object], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def losses(run: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_journal(run) if "loss" in line}


def ranks(run: Path) -> dict[int, int]:
    """Return the process ids of a run's training processes by rank, and of its torchrun as -1."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (path / "cmdline").read_bytes()
            variables = (path / "environ").read_bytes().split(b"\0")
            if str(run).encode() not in command or b"train" not in command.split(b"\0"):
                continue
            rank = next((v[5:] for v in variables if v.startswith(b"RANK=")), b"0")
            torchrun = b"torch.distributed.run" in command
            found[-1 if torchrun else int(rank)] = int(path.name)
    return found


def assert_same_end(run: Path, whole: Path, steps: int) -> None:
    """A run that was killed has the curve and the weights of one that was not, bit for bit."""
    figures = [
        {one["step"]: (one["loss"], one["norm"]) for one in read_journal(each) if "loss" in one}
        for each in (run, whole)
    ]
    assert figures[0] == figures[1]
    assert list(figures[0]) == list(range(1, steps + 1))
    expected, got = read_weights(whole, steps), read_weights(run, steps)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
