"""The monokernel on N of a machine's GPUs: the bits of one, and tokens/s.

A Laneformer's lanes are dealt out; a dense model is cut into as many lanes as there are GPUs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.gpu._child import ROOT
from bench.gpu._device import gpu_info
from bench.gpu._stage import NotMeasuredError, Stage, expect
from bench.gpu.monokernel._model import Model, Tokens
from bench.gpu.monokernel._random_weights import random_weights
from bench.gpu.monokernel._scale import FULL
from bench.gpu.monokernel.speed import Decode, rounds
from bench.gpu.tiny import TINY
from monolane._results import Record
from monolane.cuda import examine
from monolane.executor_api import Advance
from monolane.model import (
    NOW,
    Checkpoint,
    LayerConfig,
    ModelConfig,
    Weights,
    parse_config,
    read_config,
)

COUNTS = (1, 2, 4, 8)
EMULATED_GPUS = 2


def dense_name(emulated: bool) -> str:
    """Of the dense model, in the records."""
    return "rehearsal-dense" if emulated else "synthetic-dense-2b"


def dense_config(emulated: bool) -> ModelConfig:
    """The sizes of the Laneformer in one piece, with as long a context; tiny in a rehearsal."""
    if not emulated:
        # monolane.measure's dense-2b, which cannot be asked here: that package needs the C++ core.
        whole = FULL.config
        layers = (LayerConfig(NOW, NOW),) * whole.num_layers
        return replace(whole, num_lanes=1, layers=layers)
    lanes = ("num_lanes", "broadcast_delay", "sliding_window", "swa_layers")
    fields = {key: value for key, value in TINY.items() if key not in lanes}
    return parse_config(fields | {"model_type": "llama", "torch_dtype": "bfloat16"})


def dense_folder(work: Path) -> Path:
    """Where the weights of the dense model lie."""
    folder = work / "dense"
    folder.mkdir(exist_ok=True)
    return folder


def gpus_here(emulated: bool) -> int:
    """GPUs that this machine shows; NotMeasuredError without a driver."""
    if emulated:
        return EMULATED_GPUS
    if examine().gpu is None:
        raise NotMeasuredError("no GPU")
    from cuda.bindings import driver

    status, count = driver.cuDeviceGetCount()
    expect(status == driver.CUresult.CUDA_SUCCESS, f"cuDeviceGetCount: got {status}")
    return int(count)


def count_of(stage: Stage, job: str) -> int:
    """The N of a part ``name:N``; NotMeasuredError where the machine has fewer GPUs."""
    count, there = int(job.partition(":")[2]), gpus_here(stage.scale.emulated)
    if count > there:
        raise NotMeasuredError(f"{count} GPUs: this machine has {there}")
    return count


def dense_weights(stage: Stage) -> Weights:
    """The dense model's."""
    return random_weights(dense_config(stage.scale.emulated), dense_folder(stage.work))


# ---- right or wrong ------------------------------------------------------------------------------
def bits(stage: Stage, job: str) -> None:
    """Golden models and both full shapes on N GPUs: logits and tokens of one GPU."""
    count = count_of(stage, job)
    for name in stage.scale.goldens:
        folder = ROOT / "tests" / "golden" / name
        config = read_config(folder)
        if config.num_lanes % count == 0:
            weights = Weights.load(config, Checkpoint.open(folder))
            labels = {"devices": count, "model": name}
            stage.attempt("bits", same_bits, stage, count, weights, None, **labels)
    lanes = random_weights(stage.scale.config, stage.work)
    for model, weights, cut in (
        (stage.scale.model, lanes, None),
        (dense_name(stage.scale.emulated), dense_weights(stage), count),
    ):
        labels = {"devices": count, "model": model}
        stage.attempt("bits", same_bits, stage, count, weights, cut, **labels)


def same_bits(stage: Stage, count: int, weights: Weights, lanes: int | None) -> Record:
    """On N GPUs that pretend to have an N-th of their SMs: there are as many blocks in all."""
    sms, context = gpu_info(stage.scale.emulated).sms, weights.config.max_positions
    context = min(context, stage.scale.context)
    found = []
    for devices in (1, count):
        model = Model(
            stage, weights=weights, context=context, sms=sms // devices, devices=devices,
            lanes=lanes, widths=stage.scale.golden_widths,
        )  # fmt: skip
        try:
            prompt = model.random_tokens(min(stage.scale.compared, context // 2))
            logits = model.logits(0, prompt)
            model.empty(0)
            budget = min(stage.scale.tokens, context - len(prompt))
            drawn = model.run(Advance(slot=0, token_ids=prompt, budget=budget))
            found.append((logits, tuple(x.token_id for x in drawn)))
        finally:
            model.close()
    (one, alone), (other, together) = found
    different = int((one.view(np.uint32) != other.view(np.uint32)).sum())
    expect(different == 0, f"expected the bits of one GPU, got {different} other logits")
    expect(together == alone, f"expected the tokens of one GPU, {_told(alone)}, {_told(together)}")
    expect(bool(np.isfinite(one).all()), "logits: expected numbers, got some that are not")
    return {"logits_compared": one.size, "tokens_drawn": len(alone)}


def _told(tokens: Tokens) -> str:
    return " ".join(map(str, tokens[:8]))


# ---- how fast ------------------------------------------------------------------------------------
def decode(stage: Stage, job: str) -> None:
    """Tokens/s of one sequence, of both models, behind every context."""
    count = count_of(stage, job)
    for model in (stage.scale.model, dense_name(stage.scale.emulated)):
        dense = model != stage.scale.model
        for context in stage.scale.contexts:
            labels = {"devices": count, "model": model, "context": context, "dtype": "bfloat16"}
            stage.attempt("decode", _decode, stage, count, dense, context, **labels)


def _decode(stage: Stage, count: int, dense: bool, context: int) -> Record:
    scale = stage.scale
    model = Model(
        stage, weights=dense_weights(stage) if dense else None, devices=count,
        # A rehearsal's kernels are those whose bits were compared.
        sms=gpu_info(True).sms // count if scale.emulated else None,
        widths=scale.golden_widths,
    )  # fmt: skip
    try:
        case = Decode(model, 0, context, scale.tokens)
        rounds([case], scale.rounds, stage)
        return case.record()
    finally:
        model.close()
