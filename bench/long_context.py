"""Attention over long contexts: what it reads, and how fast, by the dtype of keys and values.

    python bench/long_context.py [--shapes llama-8b laneformer-2b smollm2] [--contexts 32768 131072]
        [--cache-dtypes bfloat16 int8 int4] [--layers 2] [--rounds 7] [--out DIR]

A shape has the attention heads of the model that it is named after, in two layers; the rest is
small. Its weights are random. **No prompt of so many tokens is read**: slots are filled with
random keys and values, put there as kept prefixes are. What is timed is attention alone, by the
executor's own trace of eight tokens that are drawn behind them, so neither weights nor words enter.

A record's microseconds are those of one token in all layers of the shape. Its MBU is the bytes of
keys and values by that time, over the read bandwidth of the same cores right before and after.
`core_gflops` is what they multiplied then, since arithmetic may be the limit. Dtypes and contexts
take turns.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from _document import publish
from _program import run_script

from monolane._core import kernels
from monolane.executor_api import KeptBytes
from monolane.measure import (
    ArithmeticProbe,
    Case,
    LoadedModel,
    ReadProbe,
    Record,
    bench_records,
    run_rounds,
    summary,
    trace_epoch,
)
from monolane.model import find_cache_format, parse_config, tensor_specs, write_checkpoint
from monolane.plan import summarise

SHAPES = {  # query heads, KV heads, width of a head
    "llama-8b": (32, 8, 128),
    "laneformer-2b": (32, 16, 96),
    "smollm2": (9, 3, 64),
}
TOKENS = 8  # of a sample
PIECE = 4096  # positions that are restored at once
PROBE_BYTES = 512 << 20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Attention over long contexts.")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--contexts", type=int, nargs="+", default=[32768, 131072])
    parser.add_argument("--cache-dtypes", nargs="+", default=["bfloat16", "int8", "int4"])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    probe: ReadProbe | None = None
    records: list[Record] = []
    for shape in options.shapes:
        probe, found = measure(shape, options, probe)
        records += found
    assert probe is not None
    read = bench_records("", probe, (), ())
    publish([*read, *records], "long-context", options.out, tokens=TOKENS)


def measure(
    shape: str, options: argparse.Namespace, probe: ReadProbe | None
) -> tuple[ReadProbe, list[Record]]:
    """Return a record for each dtype of keys and values and each length; one probe is for all."""
    contexts = sorted(options.contexts)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / shape
        write_model(folder, *SHAPES[shape], options.layers, contexts[-1] + 64)
        models = {name: load(folder, name, contexts) for name in options.cache_dtypes}
    probe = probe or ReadProbe(next(iter(models.values())).workers, PROBE_BYTES)
    cases = [
        AttentionCase(model, name, slot, context, probe)
        for slot, context in enumerate(contexts)
        for name, model in models.items()
    ]
    run_rounds([probe, *cases], options.rounds, lambda: None)
    return probe, [record(shape, case) for case in cases]


def write_model(
    folder: Path, heads: int, kv_heads: int, head_dim: int, layers: int, context: int
) -> None:
    """Write a Llama of few layers with these heads, its rotary scaled as Llama 3.1's is."""
    folder.mkdir()
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 512,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": 512,
        "max_position_embeddings": context,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    rng = np.random.default_rng(0)
    specs = tensor_specs(parse_config(config))
    write_checkpoint(
        folder, [(x.name, rng.normal(scale=0.05, size=x.shape).astype(np.float32)) for x in specs]
    )


class AttentionCase(Case):
    """Attention of one token behind a context, and what the same cores read and multiply then."""

    def __init__(
        self, model: LoadedModel, cache_dtype: str, slot: int, context: int, probe: ReadProbe
    ) -> None:
        super().__init__()  # samples: us a token
        self.model, self.cache_dtype, self.context = model, cache_dtype, context
        self._slot, self._probe = slot, probe
        self._cores = ArithmeticProbe(model.workers)
        self.bytes_per_token = 0.0  # of keys and values
        self.shares: list[float] = []  # of the read bandwidth
        self.arithmetic: list[float] = []  # operations/s of all workers

    def warm_up(self) -> None:
        """Draw once."""
        self._draw()

    def measure(self) -> float:
        """Draw tokens between two looks at the machine."""
        bandwidth, operations = self._probe.measure(), self._cores.measure()
        busy_us = self._draw()
        operations += self._cores.measure()
        bandwidth += self._probe.measure()
        self.shares.append(self.bytes_per_token / busy_us * 1e6 / (bandwidth / 2))
        self.arithmetic.append(operations / 2)
        return busy_us

    def forget(self) -> None:
        """Take the last sample back."""
        super().forget()
        self.shares.pop()
        self.arithmetic.pop()

    def _draw(self) -> float:
        trace = trace_epoch(self.model, self._slot, 1, TOKENS)
        self.model.executor.truncate(self._slot, self.context)
        row = next(row for row in summarise(trace) if row.kind == "ATTEND")
        self.bytes_per_token = row.bytes
        return row.busy_us


def record(shape: str, case: AttentionCase) -> Record:
    """Return the record of a dtype of keys and values at a length."""
    model, (heads, kv_heads, head_dim) = case.model, SHAPES[shape]
    time = summary(case.samples, "us")
    gflops = summary([each / 1e9 for each in case.arithmetic], "GFLOP/s")
    return {
        "name": "attention",
        "engine": "monolane",
        "model": f"heads of {shape}",
        "dtype": model.dtype,
        "cache_dtype": case.cache_dtype,
        "context": case.context,
        "layers": model.config.num_layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "isa": kernels.best(),
        "workers": model.workers,
        "cache_bytes_per_token": model.plan.position_bytes,
        **time,
        "us_per_token": time["median"],
        "bytes_per_token": round(case.bytes_per_token),
        "gb_per_s": case.bytes_per_token / time["median"] / 1e3,
        "mbu": median(case.shares),
        "mbu_min": min(case.shares),
        "mbu_max": max(case.shares),
        "core_gflops": gflops["median"],
        "core_gflops_min": gflops["min"],
        "core_gflops_max": gflops["max"],
    }


def load(folder: Path, cache_dtype: str, contexts: list[int]) -> LoadedModel:
    """Return a model with a slot for each length, filled."""
    model = LoadedModel(
        folder, "bfloat16", context=max(contexts) + TOKENS, slots=len(contexts), workers=None,
        cache_dtype=cache_dtype,
    )  # fmt: skip
    rows = random_rows(model, cache_dtype)
    for slot, context in enumerate(contexts):
        for begin in range(0, context, PIECE):
            count = min(PIECE, context - begin)
            model.executor.restore(slot, KeptBytes(rows[:, :count].copy()), count)
    return model


def random_rows(model: LoadedModel, cache_dtype: str) -> npt.NDArray[np.uint8]:
    """Return keys and values as a slot holds them: uint8 [lists, PIECE, bytes of a row]."""
    config = model.config
    lists = 2 * config.num_layers * config.num_kv_heads
    x = np.random.default_rng(1).standard_normal((lists, PIECE, config.head_dim), np.float32)
    stored = kernels.store_kv(kernels.best(), x.reshape(-1), find_cache_format(cache_dtype).short)
    return stored.reshape(lists, PIECE, -1)


if __name__ == "__main__":
    run_script(main)
