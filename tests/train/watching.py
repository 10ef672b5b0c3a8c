"""How tests of launches look at what happens elsewhere."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attempts(run: Path, node: int = 0) -> list[dict[str, Any]]:
    lines = (run / "attempts" / f"node-{node}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def wait_for(there: Callable[[], object], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)
