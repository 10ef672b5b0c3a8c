"""From the start of a process to its first token, and what it holds in memory then.

In a process of its own, and through the engine: interpreter, imports, mapping the weights, plan,
threads and prompt are all part of what a user waits for.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolane.errors import BackendError

_CHILD = """
import json, sys, time
wish = json.loads(sys.argv[1])
from monolane.engine import Engine, SamplingParams
engine = Engine.load(wish["folder"], "cpu", **wish["options"])
params = SamplingParams(max_tokens=wish["tokens"], ignore_eos=True)
prompt = [i * 7919 % engine.config.vocab_size for i in range(wish["prompt"])]
first = None
for piece in engine.stream(prompt, params):
    first = first or time.perf_counter_ns()
fields = {"peak_bytes": "VmHWM", "anonymous_bytes": "RssAnon", "file_bytes": "RssFile"}
fields["shared_bytes"] = "RssShmem"
def memory(process):
    with open(f"/proc/{process}/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return {name: int(lines[key].split()[0]) * 1024 for name, key in fields.items()}
ranks = [memory(process) for process in engine.backend.executor.processes]
print(json.dumps({"first": first, "load_seconds": engine.load_seconds, "ranks": ranks}))
"""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What a process held at the end."""

    peak_bytes: int  # resident at most, pages of mapped files included
    anonymous_bytes: int  # its own memory
    file_bytes: int  # pages of mapped files that it has touched; shared with others
    shared_bytes: int  # of what the ranks exchange


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What one process told, of itself and of those that decoded with it."""

    seconds: float  # from before it was started to its first token
    load_seconds: float  # of these, Engine.load
    ranks: tuple[ProcessMemory, ...]  # itself first

    @property
    def memory(self) -> ProcessMemory:
        """What the process itself held."""
        return self.ranks[0]


def first_token(
    folder: Path,
    dtype: str = "auto",
    *,
    prompt: int = 16,
    tokens: int = 1,
    **options: Any,
) -> FirstToken:
    """Start a process that answers ``prompt`` tokens; BackendError if it fails.

    ``options``: of ``Engine.load``, as JSON can say them.
    """
    wish = {
        "folder": str(folder),
        "prompt": prompt,
        "tokens": tokens,
        "options": {"dtype": dtype, **options},
    }
    # perf_counter_ns is CLOCK_MONOTONIC on Linux: one clock for both processes.
    begin = time.perf_counter_ns()
    child = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD, json.dumps(wish)],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise BackendError(f"the process whose start was to be measured failed: {last}")
    told = json.loads(child.stdout)
    memory = tuple(ProcessMemory(**rank) for rank in told["ranks"])
    return FirstToken((told["first"] - begin) / 1e9, told["load_seconds"], memory)
