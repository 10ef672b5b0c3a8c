"""Writes small models and their plans for executor_test.cpp, which cannot build a plan itself.

    python write_cases.py cases.bin           every case: what a worker reads, writes and computes
    python write_cases.py cases.bin --races   those in which threads can meet differently
    python write_cases.py cases.bin --few     one of each model: for an emulated processor

The file is a row of blobs, each an int64 length and as many bytes, all little-endian:
    number of models, then of each: int32 [tensors], of what layers share and of each layer;
    frequencies of both rotaries, final norm; embedding and head, each with the number of its
    columns before it; of what layers share and of each layer each tensor, with its WeightRole and
    the number of its columns before it, of experts all one below the other (all float32);
    number of plans, then of each: dtype name, whether every instruction set of the machine is to
    run it, whether a batch is all that is asked of it, header, phases, shares.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from monolane.model import (
    EXPERT_ROLES,
    NEVER,
    NOW,
    AltUp,
    Delta,
    Experts,
    Head,
    Latent,
    LayerConfig,
    ModelConfig,
    ModuleConfig,
    QkNorm,
    Reduce,
    Role,
    Rotary,
    lane_shape,
    layer_roles,
)
from monolane.model._layer_config import ModuleName
from monolane.ops import Operation
from monolane.ops.laurel.spec import Laurel
from monolane.ops.per_layer.spec import PerLayer
from monolane.ops.sparse_mlp.spec import SparseMlp
from monolane.plan import build, cpu, to_arrays

# 5 workers on 4 lanes: one group, shares that begin amid a lane; 8: two workers to a lane, and
# keys that are split. All on any number of cores: a wait that only works on idle ones must show.
# Waits do not depend on the dtype, so one dtype has every number of workers.
WORKERS = {"float32": (1, 5), "bfloat16": (1, 2, 5, 8), "int8": (1, 5), "int4": (1, 5)}
DENSE_WORKERS = {"bfloat16": (1, 5)}
# What a race detector is shown, ten times slower than the rest: each model, so each kind of phase
# and each exchange; each number of workers above one, whose waits one dtype has all of; and each
# other dtype once, since packed activations differ in what workers write side by side. One worker
# races with nobody but the reader and the guide, as more do; another instruction set touches the
# same memory.
RACES = {"bfloat16": (2, 5, 8)}
RACES_OF_EVERY_DTYPE = {**RACES, "float32": (5,), "int8": (5,), "int4": (5,)}
DENSE_RACES = {"bfloat16": (5,)}
# What an emulator runs: each model, so each kind of phase, and each kind of product.
FEW = {"bfloat16": (2,)}
FEW_OF_EVERY_DTYPE = {"float32": (1,), "bfloat16": (2,), "int8": (2,), "int4": (2,)}
CONTEXT = 600  # beyond two chunks of attention
SPARSE = ((0.8, None), (None, 0))  # of a layer: of its gate, and whose keys it reads


def models() -> tuple[ModelConfig, ...]:
    """Return models that go through all of the executor.

    A dense one whose heads are normed all at once; one with four norms a layer, two rotaries and
    GELU; one with mixtures of experts; one with latent attention, chosen groups of experts and what
    tokens share; one with gated delta rules and gated attention; one with several streams, learned
    residuals, sparse gates and per-layer embeddings; a Laneformer with every rule and a window; and
    one whose head reads all lanes.
    """
    mixed = (
        LayerConfig(NEVER, NEVER, 24),
        LayerConfig(NOW, Reduce(1)),
        LayerConfig(Reduce(2), Reduce(1), 24),
        LayerConfig(Reduce(2), NOW),
    )
    return (
        _config(
            num_lanes=1,
            layers=(LayerConfig(NOW, NOW), LayerConfig(NOW, NOW, rotary="none")),
            head=Head.MEAN,
            qk_norm=QkNorm.ALL,
            norm_before=False,
            norm_after=True,
        ),
        _config(
            num_lanes=1,
            layers=(LayerConfig(NOW, NOW, 24, "local"), LayerConfig(NOW, NOW)),
            head=Head.MEAN,
            rotary=Rotary(style="half"),
            local_rotary=Rotary(theta=100.0, style="half"),
            qk_norm=QkNorm.HEAD,
            norm_after=True,
            activation="gelu_tanh",
            embedding_scale=8.0,
            residual_scale=0.5,
            logit_scale=2.0,
            logit_cap=9.0,
        ),
        _config(
            num_lanes=1,
            layers=(LayerConfig(NOW, NOW, experts=True), LayerConfig(NOW, NOW)) * 2,
            head=Head.MEAN,
            experts=Experts(6, 2, 32, normalised=True),
        ),
        _config(
            num_lanes=1,
            layers=(LayerConfig(NOW, NOW), LayerConfig(NOW, NOW, 24, experts=True)),
            head=Head.MEAN,
            num_kv_heads=8,
            head_dim=32 + 16,
            latent=Latent(rank=32, query_rank=32, plain=32, turned=16, value=32),
            experts=Experts(
                *(6, 2, 32, True),
                scores="sigmoid",
                corrected=True,
                groups=3,
                chosen_groups=2,
                group_best=2,
                shared=32,
                shared_expert_gate=True,
            ),
        ),
        _config(
            num_lanes=1,
            layers=(LayerConfig(NOW, NOW, delta=True), LayerConfig(NOW, NOW)) * 2,
            head=Head.MEAN,
            rotary=Rotary(style="half", part=0.5),
            qk_norm=QkNorm.HEAD,
            attention_gate=True,
            delta=Delta(key_heads=2, value_heads=4, key=12, value=40, kernel=4),
        ),
        _config(
            num_lanes=1,
            layers=tuple(_altup_layer(sparsity, keys) for sparsity, keys in SPARSE),
            head=Head.MEAN,
            rotary=Rotary(style="half"),
            qk_norm=QkNorm.HEAD,
            norm_after=True,
            value_norm=True,
            activation="gelu_tanh",
            altup=AltUp(3),
        ),
        _config(num_lanes=4, layers=mixed, head=Head.VOCAB_PARALLEL),
        _config(num_lanes=2, layers=(LayerConfig(NOW, NOW),) * 2, head=Head.MEAN),
    )


def _altup_layer(sparsity: float | None, keys_of: int | None) -> LayerConfig:
    """Return a layer of Gemma 3n; its table has rows for half of the tokens."""
    sparse = SparseMlp(inner=128, sparsity=sparsity or 0.5, activation="gelu_tanh")
    laurel = ModuleConfig(Laurel(rank=32), norm_after=False, beside=True, same_norm=True)
    own = PerLayer(inner=32, layers=len(SPARSE), rows=48, activation="gelu_tanh")
    modules: tuple[ModuleName | Operation | ModuleConfig, ...] = (
        "attention",
        laurel,
        "mlp" if sparsity is None else sparse,
        ModuleConfig(own, norm_before=False),
    )
    return LayerConfig(NOW, NOW, modules=modules, keys_of=keys_of)


def _config(**fields: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "family": "laneformer",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 16,
        "vocab_size": 96,
        "max_positions": CONTEXT,
    }
    return ModelConfig(**sizes | fields)


def cases_of(config: ModelConfig, part: str) -> list[tuple[str, int]]:
    """Return the dtypes and numbers of workers that a model is run with."""
    dense = config.num_lanes == 1
    if part == "--few":
        chosen = FEW_OF_EVERY_DTYPE if config.head is Head.VOCAB_PARALLEL else FEW
    elif part == "--races":
        every_dtype = RACES_OF_EVERY_DTYPE if config.head is Head.VOCAB_PARALLEL else RACES
        chosen = DENSE_RACES if dense else every_dtype
    else:
        chosen = DENSE_WORKERS if dense else WORKERS
    return [(dtype, count) for dtype, counts in chosen.items() for count in counts]


def is_batch_alone(config: ModelConfig, part: str, dtype: str) -> bool:
    """Tell whether a batch is all that is asked of a plan.

    Drafts, guides and ranks know nothing of products: of further dtypes a batch is enough. Nor of
    layers, but for their states: an emulator has them of a model with states, and of one with all
    kinds of lanes.
    """
    whole = config.delta is not None or config.head is Head.VOCAB_PARALLEL
    return bool(part) and (dtype != "bfloat16" or (part == "--few" and not whole))


def blobs(part: str) -> Iterator[bytes]:
    """Yield the content of the file; `part`: "", "--races" or "--few"."""
    rng = np.random.default_rng(0)
    yield _int(len(models()))
    for number, config in enumerate(models()):
        roles = [tuple(config.shared_shapes)]
        roles += [layer_roles(config, i) for i in range(config.num_layers)]
        yield np.array([len(each) for each in roles], np.int32).tobytes()
        for which, rotary in (("main", config.rotary), ("local", config.local_rotary)):
            yield b"" if rotary is None else rotary.frequencies(config.rotary_dim(which)).tobytes()
        yield _random(config, Role.FINAL_NORM, rng)[-1]
        for role in (Role.EMBEDDING, Role.HEAD):
            yield from _random(config, role, rng)
        for role in (role for each in roles for role in each):
            yield _int(tuple(Role).index(role))
            yield from _random(config, role, rng)
        cases = cases_of(config, part)
        yield _int(len(cases))
        for dtype, workers in cases:
            every_set = not part and workers == 5 and number == len(models()) - 1
            arrays = to_arrays(build(config, cpu(workers), dtype, context=CONTEXT))
            yield dtype.encode()
            yield _int(every_set)
            yield _int(is_batch_alone(config, part, dtype))
            yield from (
                a.tobytes() for a in (arrays.header, arrays.modules, arrays.phases, arrays.shares)
            )


def _random(config: ModelConfig, role: Role, rng: np.random.Generator) -> tuple[bytes, bytes]:
    """Return the number of columns of a tensor, and its values."""
    shape = lane_shape(config, role)
    if role in EXPERT_ROLES and config.experts is not None:
        shape = (config.experts.count, *shape)
    values = rng.normal(scale=1.0 if "norm" in role else 0.15, size=shape).astype("<f4")
    return _int(shape[-1]), values.tobytes()


def _int(value: int) -> bytes:
    return value.to_bytes(8, "little")


if __name__ == "__main__":
    found = blobs("".join(sys.argv[2:]))
    Path(sys.argv[1]).write_bytes(b"".join(_int(len(blob)) + blob for blob in found))
