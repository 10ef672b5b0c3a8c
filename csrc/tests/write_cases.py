"""Writes small models and their plans for executor_test.cpp, which cannot build a plan itself.

    python write_cases.py cases.bin

The file is a row of blobs, each an int64 length and as many bytes, all little-endian:
    number of models, then of each: sizes int32 [layers, heads * head_dim, kv_heads * head_dim,
    head_columns]; frequencies, embedding, final norm, head; of each layer attention norm, q, k, v,
    o, mlp norm, gate, up, down (all float32); number of plans, then of each: dtype name, header,
    phases, shares.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from monolane.model import (
    NEVER,
    NOW,
    Head,
    LayerConfig,
    ModelConfig,
    Reduce,
    Role,
    lane_shape,
    layer_roles,
)
from monolane.plan import build, cpu, to_arrays

# 5 workers on 4 lanes: one group, shares that begin amid a lane; 8: two workers to a lane, and
# keys that are split. All on any number of cores: a wait that only works on idle ones must show.
# Waits do not depend on the dtype, so one dtype has every number of workers.
WORKERS = {"float32": (1, 5), "bfloat16": (1, 2, 5, 8), "int8": (1, 5), "int4": (1, 5)}
CONTEXT = 600  # beyond two chunks of attention


def models() -> tuple[ModelConfig, ...]:
    """Return a Laneformer with every rule and a window, and one whose head reads all lanes."""
    mixed = (
        LayerConfig(NEVER, NEVER, 24),
        LayerConfig(NOW, Reduce(1)),
        LayerConfig(Reduce(2), Reduce(1), 24),
        LayerConfig(Reduce(2), NOW),
    )
    return (
        _config(num_lanes=4, layers=mixed, head=Head.VOCAB_PARALLEL),
        _config(num_lanes=2, layers=(LayerConfig(NOW, NOW),) * 2, head=Head.MEAN),
    )


def _config(num_lanes: int, layers: tuple[LayerConfig, ...], head: Head) -> ModelConfig:
    return ModelConfig(
        family="laneformer",
        hidden_size=64,
        intermediate_size=128,
        num_heads=8,
        num_kv_heads=4,
        head_dim=16,
        vocab_size=96,
        max_positions=CONTEXT,
        num_lanes=num_lanes,
        layers=layers,
        head=head,
    )


def blobs() -> Iterator[bytes]:
    """Yield the content of the file."""
    rng = np.random.default_rng(0)
    yield _int(len(models()))
    for config in models():
        h = config.head_dim
        sizes = [config.num_layers, config.num_heads * h, config.num_kv_heads * h]
        yield np.array([*sizes, config.head_inputs], np.int32).tobytes()
        yield config.rotary.frequencies(h).astype(np.float32).tobytes()
        outer = (Role.EMBEDDING, Role.FINAL_NORM, Role.HEAD)
        inner = layer_roles(config) * config.num_layers
        for role in (*outer, *inner):
            scale = 1.0 if "norm" in role else 0.15
            yield rng.normal(scale=scale, size=lane_shape(config, role)).astype("<f4").tobytes()
        cases = [(dtype, count) for dtype, counts in WORKERS.items() for count in counts]
        yield _int(len(cases))
        for dtype, workers in cases:
            arrays = to_arrays(build(config, cpu(workers), dtype, context=CONTEXT))
            yield dtype.encode()
            yield from (a.tobytes() for a in (arrays.header, arrays.phases, arrays.shares))


def _int(value: int) -> bytes:
    return value.to_bytes(8, "little")


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(b"".join(_int(len(blob)) + blob for blob in blobs()))
