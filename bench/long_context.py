"""Attention over long contexts: what it reads, and how fast, by the dtype of keys and values.

    python bench/long_context.py [--shapes llama-8b laneformer-2b smollm2] [--contexts 32768 131072]
        [--cache-dtypes bfloat16 int8 int4] [--layers 2] [--rounds 7] [--out DIR]

A shape has the attention heads of the model that it is named after, and two layers of it; the rest
is small. Its weights are random. **No prompt of so many tokens is read**: slots are filled with
random keys and values, put there as kept prefixes are. What is timed is attention alone, by the
executor's own trace of eight tokens that are drawn behind them, so neither weights nor words enter.

A share is the bytes of keys and values by that time, over the read bandwidth that the same cores
measured right before and after. Dtypes take turns.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from _document import publish

from monolane._core import kernels
from monolane.epoch import KeptBytes
from monolane.measure import LoadedModel, ReadProbe, Record, summary, trace_epoch
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
    records: list[Record] = []
    for shape in options.shapes:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / shape
            write_model(folder, *SHAPES[shape], options.layers, max(options.contexts) + 64)
            records += measure(
                folder, options.cache_dtypes, sorted(options.contexts), options.rounds
            )
    publish(records, "long-context", options.out, tokens=TOKENS)


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


def measure(
    folder: Path, cache_dtypes: list[str], contexts: list[int], rounds: int
) -> list[Record]:
    """Return a record for each dtype of keys and values and each length."""
    models = {name: load(folder, name, contexts) for name in cache_dtypes}
    workers = next(iter(models.values())).workers
    probe = ReadProbe(workers, PROBE_BYTES)
    samples: dict[tuple[str, int], list[tuple[float, float, float]]] = defaultdict(list)
    order = [(name, slot) for slot in range(len(contexts)) for name in cache_dtypes]
    for number in range(rounds + 1):
        for name, slot in order if number % 2 else order[::-1]:
            before = probe.measure()
            busy_us, moved = attention(models[name], slot, contexts[slot])
            speed = moved / busy_us / 1e3  # GB/s
            bandwidth = (before + probe.measure()) / 2e9
            if number:  # the first warms up
                samples[name, contexts[slot]].append((busy_us, speed, speed / bandwidth))
    found = []
    for (name, context), each in sorted(samples.items(), key=lambda item: item[0][1]):
        model = models[name]
        about = {"name": "attention", "engine": "monolane", "model": folder.name}
        plan, config = model.plan, model.config
        token = 2 * config.num_layers * config.num_kv_heads * plan.key_bytes
        sizes = {"cache_bytes_per_token": token, "cache_bytes": model.executor.cache_bytes}
        found.append(
            about
            | {"dtype": name, "context": context, "isa": kernels.best(), "workers": workers}
            | sizes
            | summary([us for us, _, _ in each], "us")
            | {
                "bytes_per_token": round(median(us * gb * 1e3 for us, gb, _ in each)),
                "gb_per_s": median(gb for _, gb, _ in each),
                "mbu": median(share for _, _, share in each),
                "shares": [round(share, 4) for _, _, share in each],
            }
        )
    return found


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


def attention(model: LoadedModel, slot: int, context: int) -> tuple[float, float]:
    """Draw tokens behind a context; return us a token in attention, and bytes a token."""
    trace = trace_epoch(model, slot, 1, TOKENS)
    model.executor.truncate(slot, context)
    row = next(row for row in summarise(trace) if row.kind == "ATTEND")
    return row.busy_us, row.bytes


if __name__ == "__main__":
    main()
