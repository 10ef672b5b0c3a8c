"""A mixture of experts of which a part is in memory: what the rest costs.

    python bench/expert_memory.py [--type Q4_K_M Q8_0] [--parts 0 25 50 75 100 all] [--out DIR]

Models are files of random weights, or the one that --gguf names. A part is a percentage of the
bytes of all experts; that many are held in memory, and ``all`` is the model without the option. The
others are read from a file in the cache folder, past the page cache: what is measured is its disk.

Each sample loads the model, reads a prompt of 64 random tokens, decodes as many as --tokens to warm
up and as many again, which are timed: all of their time, waits for the disk too. Tokens are drawn
at temperature 1. Routers of random weights choose some experts far more often than others, and one
that was trained may choose otherwise. Parts take turns, in an order that is reversed each time.
"""

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from _document import publish
from _gguf import random_gguf
from _program import run_script

from monolane._core import kernels
from monolane._env import CACHE
from monolane.cpu import CpuExecutor
from monolane.engine import ModelFiles
from monolane.executor_api import Advance, Draw
from monolane.measure import Record, summary
from monolane.model import EXPERT_ROLES, Weights

PROMPT = 64
DRAW = Draw(temperature=1.0, seed=1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What experts cost that are not in memory.")
    parser.add_argument("--gguf", type=Path, help="file to use instead of random ones")
    parser.add_argument("--shape", default="moe-2b", help="of the random weights")
    parser.add_argument("--type", nargs="+", default=["Q4_K_M", "Q8_0"])
    parser.add_argument("--parts", nargs="+", default=["0", "25", "50", "75", "100", "all"])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path, help=".json file, or folder of the results file")
    options = parser.parse_args()
    home = CACHE.get() / "synthetic"
    paths = [options.gguf] if options.gguf else []
    paths = paths or [random_gguf(home, options.shape, kind) for kind in options.type]
    records = []
    for path in paths:
        files = ModelFiles.open(path)
        found: dict[str, list[dict[str, Any]]] = {part: [] for part in options.parts}
        for index in range(options.rounds):
            for part in options.parts if index % 2 == 0 else reversed(options.parts):
                found[part].append(sample(files.weights(), part, options))
                print(path.stem, part, found[part][-1], file=sys.stderr, flush=True)
        records += [record(path.stem, part, samples) for part, samples in found.items()]
    publish(records, "expert-memory", options.out)


def sample(weights: Weights, part: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the speed of one executor, and what its experts were found in."""
    size = weights.expert_bytes
    memory = None if part == "all" else size * int(part) // 100
    executor = CpuExecutor(
        weights,
        context=PROMPT + 2 * options.tokens + 1,
        slots=1,
        workers=options.workers,
        expert_memory=memory,
    )
    ids = np.random.default_rng(0).integers(weights.config.vocab_size, size=PROMPT)
    last, _ = draw(executor, tuple(ids.tolist()), options.tokens)
    before = executor.expert_counts
    _, seconds = draw(executor, (last,), options.tokens)
    found, missed, _ = np.subtract(executor.expert_counts, before).tolist()
    count = sum(len(each) for (role, _), each in weights.experts.items() if role is EXPERT_ROLES[0])
    result = {
        "speed": options.tokens / seconds,
        "found": found / max(found + missed, 1),
        "read_mb": missed * size / count / executor.workers / options.tokens / 1e6,
        "expert_mb": size / 1e6,
        "dtype": executor.dtype,
        "workers": executor.workers,
    }
    executor.close()
    return result


def draw(executor: CpuExecutor, ids: tuple[int, ...], tokens: int) -> tuple[int, float]:
    """Feed tokens and draw as many as ``tokens``; return the last, and the seconds of them all."""
    begin = perf_counter()
    executor.start([Advance(slot=0, token_ids=ids, budget=tokens, draw=DRAW)])
    while not executor.read(0.1):
        pass
    seconds = perf_counter() - begin
    return executor.take()[-1].token_id, seconds


def record(model: str, part: str, samples: list[dict[str, Any]]) -> Record:
    """Return the record of one part."""
    first = samples[0]
    return {
        "name": "expert_memory_decode",
        "engine": "monolane",
        "model": model,
        "dtype": first["dtype"],
        "context": PROMPT,
        "workers": first["workers"],
        "expert_mb": round(first["expert_mb"], 1),
        "part": part,
        "found": round(sum(x["found"] for x in samples) / len(samples), 4),
        "read_mb": round(sum(x["read_mb"] for x in samples) / len(samples), 2),
        "isa": kernels.best(),
        **summary([x["speed"] for x in samples], "tokens/s"),
    }


if __name__ == "__main__":
    run_script(main)
