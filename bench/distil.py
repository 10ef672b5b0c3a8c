"""A step of `monolane retrofit --distil` on this machine's cores, beside the plain way to do it.

    pip install 'monolane[sft]'
    python bench/distil.py --model smollm2 --lanes 3 --delay 2 --out bench/results

``plain`` is what Transformers and torch do unasked: the teacher runs, all logits of both are held,
products of lanes are batched. ``kept`` is the product's: the teacher's best tokens are at hand, the
loss is made in chunks, lanes are multiplied one by one; ``kept, bfloat16`` does it with factors in
bfloat16. All keep the memory that they free, which alone is a fifth of the plain way's time, and
share one optimiser. Matrix products of 2,048 cubed, in both types, say what the cores can do at
most; all take turns. docs/retrofit.md quotes it.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _document import publish
from _program import run_script
from torch.nn import functional

from monolane.hf import LaneformerForCausalLM, load_whole
from monolane.measure import Record
from monolane.model import is_gguf
from monolane.sources import find_model, unpack_gguf
from monolane.tune import (
    BestTokens,
    Windows,
    divergence,
    keep_freed_memory,
    retrofit_folder,
    swift,
)

_SIDE = 2048  # of the matrices that show what the cores can do
_PLACES = np.arange(4)


def main() -> None:
    """Measure, and write one results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--lanes", type=int, default=3)
    parser.add_argument("--delay", type=int, default=2)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        ways, flops, tokens = prepare(Path(name), options)
        for run in ways.values():  # memory, caches, and the teacher's best tokens
            run()
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.runs):
            for way, run in ways.items():
                began = time.perf_counter()
                run()
                seconds[way].append(time.perf_counter() - began)
    about = {"model": options.model, "workers": options.threads, "tokens": tokens}
    records: list[Record] = [record(way, flops[way], seconds[way], about) for way in ways]
    for way, other in (("kept", "plain"), ("kept, bfloat16", "kept")):
        pairs = [b / a for a, b in zip(seconds[way], seconds[other], strict=True)]
        found = records[list(ways).index(way)]
        found |= {"other": other, "ratio_to_other": statistics.median(pairs)}
        found |= {"ratio_to_other_min": min(pairs), "ratio_to_other_max": max(pairs)}
    publish(records, "distil", options.out)


def prepare(
    folder: Path, options: argparse.Namespace
) -> tuple[dict[str, Callable[[], Any]], dict[str, float], int]:
    """Return the ways to do a step, the operations of each, and the tokens of a step."""
    source = find_model(options.model)
    if is_gguf(source):
        unpack_gguf(source, folder / "dense")
        source = folder / "dense"
    retrofit_folder(source, folder / "one", lanes=1)
    retrofit_folder(source, folder / "lanes", lanes=options.lanes, delay=options.delay)
    teacher, student = load(folder / "one").eval(), load(folder / "lanes").train()
    rng = np.random.default_rng(0)
    ids_N = rng.integers(student.config.vocab_size, size=24 * options.context)
    windows = Windows(ids_N, options.context, seed=0)
    ids_BC = torch.from_numpy(windows.train_RC[_PLACES])
    best = BestTokens(folder / "best", teacher, windows, 64)
    optimiser = torch.optim.AdamW(student.parameters(), lr=1e-6, fused=True)
    matrix = torch.randn(_SIDE, _SIDE)
    narrow = matrix.bfloat16()

    def update(loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    def plain() -> None:
        with torch.no_grad():
            wanted = teacher(input_ids=ids_BC, use_cache=False).logits.log_softmax(-1)
        found = student(input_ids=ids_BC, use_cache=False).logits.log_softmax(-1)
        update(functional.kl_div(found, wanted, log_target=True, reduction="none").sum(-1).mean())

    def kept(dtype: torch.dtype = torch.float32) -> None:
        with swift(student, dtype):
            update(divergence(student, ids_BC, *best.take(_PLACES), dtype=dtype))

    tokens = int(ids_BC.numel())
    # A multiplication and an addition for each weight, forward; twice that, backward.
    once = 2.0 * tokens * sum(p.numel() for p in teacher.parameters())
    ways: dict[str, tuple[Callable[[], Any], float]] = {
        "plain": (plain, 4 * once),
        "kept": (kept, 3 * once),
        "kept, bfloat16": (partial(kept, torch.bfloat16), 3 * once),
        "product": (partial(torch.mm, matrix, matrix), 2.0 * _SIDE**3),
        "product, bfloat16": (partial(torch.mm, narrow, narrow), 2.0 * _SIDE**3),
    }
    return (
        {way: run for way, (run, _) in ways.items()},
        {way: flops for way, (_, flops) in ways.items()},
        tokens,
    )


def load(folder: Path) -> LaneformerForCausalLM:
    """Return the model of a folder, in float32."""
    model: LaneformerForCausalLM = load_whole(LaneformerForCausalLM, folder, dtype=torch.float32)
    return model


def record(way: str, flops: float, seconds: list[float], about: dict[str, Any]) -> Record:
    """Return the record of one way: seconds, and operations a second."""
    middle = statistics.median(seconds)
    return {
        "name": f"distil: {way}",
        "engine": "torch",
        "dtype": "bfloat16" if way.endswith("bfloat16") else "float32",
        **about,
        "min": min(seconds),
        "median": middle,
        "max": max(seconds),
        "unit": "s a step",
        "runs": len(seconds),
        "gflops": flops / middle / 1e9,
    }


if __name__ == "__main__":
    run_script(main)
