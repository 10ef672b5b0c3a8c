"""The same model by PyTorch, in the same run: what the monokernel is compared with.

    hf-eager             `monolane.hf` as it is, with its own cache
    hf-compile           the same on a static cache, torch.compile max-autotune, one CUDA graph
    cuda-graph           packed weights (baseline.py), one CUDA graph
    cuda-graph-compile   packed weights, torch.compile max-autotune, one CUDA graph

The compiled ones are captured by hand: the graphs of `mode="max-autotune"` would be left out
without a word where a step writes to its cache. The weights are the monokernel's, from its file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import DynamicCache

from bench.gpu._device import gpu_info, lacks_torch
from bench.gpu._stage import NotMeasuredError, Stage, expect, expect_equal, speed
from bench.gpu.monokernel._random_weights import named_parts, read_block
from bench.gpu.monokernel.baseline import HfStep, PackedStep, Step, capture
from monolane._results import Record
from monolane.cuda._plan_device import lay_out_widths
from monolane.model import render_config
from monolane.plan import pass_cost

CHECKED = 24  # tokens whose logits are compared with the plain model's
# Streams and all in bfloat16, 15 layers of such weights are 0.022 of the logits away from float32
# (a model of a quarter of the width, on a processor); two of them sqrt(2) times that from each
# other, and the tolerance is twice that. A wrong cache, mask or lane gives errors near 1.
TOLERANCE = 0.062


def peers(stage: Stage, job: str) -> None:
    """One engine, behind every context, the middle one first."""
    if lacks := lacks_torch(stage.scale.emulated):
        raise NotMeasuredError(lacks)
    torch.set_grad_enabled(False)
    if "torch" not in stage.kept:
        stage.kept["torch"] = hf_model(stage, torch.bfloat16)
    model = stage.kept["torch"]
    middle = stage.scale.middle
    contexts = [middle, *(c for c in stage.scale.contexts if c != middle)]
    if stage.scale.emulated and job.endswith("compile"):
        contexts = [middle]  # to go through the compiler's front end takes ten seconds
    for context in contexts:
        labels = {"engine": job, "context": context, "dtype": "bfloat16"}
        measure = _eager if job == "hf-eager" else _stepped
        stage.attempt("decode", measure, stage, model, job, context, **labels)


# ---- the model -----------------------------------------------------------------------------------
def where(stage: Stage) -> torch.device:
    """The GPU, or the processor in a rehearsal."""
    return torch.device("cpu" if stage.scale.emulated else "cuda")


def hf_model(stage: Stage, dtype: torch.dtype) -> Any:
    """`monolane.hf`'s model with the campaign's weights."""
    from monolane.hf import LaneformerConfig, LaneformerForCausalLM

    if stage.scale.emulated:
        torch.set_num_threads(1)
    fields = render_config(stage.scale.config)
    config = LaneformerConfig.from_dict(fields)
    device, before = where(stage), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = LaneformerForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    block = torch.from_numpy(np.array(read_block(stage.work)).view(np.int16)).to(device)
    block = block.view(torch.bfloat16)
    state = model.state_dict()
    for spec, part in named_parts(stage.scale.config):
        flat = block[part.begin : part.begin + spec.size]
        if (part.scale, part.shift) != (1.0, 0.0):
            flat = (flat.float() * part.scale + part.shift).bfloat16()
        state[spec.name].copy_(flat.view(spec.shape))
    return model.eval()


def reference_logits(
    stage: Stage, ids: list[int], count: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Logits [count, V] behind the last tokens, by float32 and by bfloat16 arithmetic."""
    torch.set_grad_enabled(False)
    model = hf_model(stage, torch.float32)
    # Plain operations: a fused attention might use a matrix unit's shorter float32.
    model.config._attn_implementation = "eager"
    inputs = torch.tensor([ids], device=where(stage))

    def logits() -> npt.NDArray[np.float32]:
        output = model(inputs, use_cache=False, logits_to_keep=count)
        found: npt.NDArray[np.float32] = output.logits[0].float().cpu().numpy()
        return found

    wide = logits()
    model.to(torch.bfloat16)
    return wide, logits()


# ---- hf-eager ------------------------------------------------------------------------------------
def _eager(stage: Stage, model: Any, job: str, context: int) -> Record:
    scale, device, samples = stage.scale, where(stage), []
    for i in range(scale.peer_rounds + 1):
        ids = torch.randint(scale.config.vocab_size, (1, context), device=device)
        # As the model makes it for itself: what outputs call theirs depends on the version.
        cache = DynamicCache(config=model.config)
        output = model(ids, cache=cache, use_cache=True, logits_to_keep=1)
        token = output.logits[:, -1].argmax(-1, keepdim=True)
        count = max(scale.peer_tokens // 2, 2)
        _synchronize(device)
        begin = time.perf_counter()
        for _ in range(count):
            output = model(token, cache=cache, use_cache=True)
            token = output.logits[:, -1].argmax(-1, keepdim=True)
        _synchronize(device)
        # A model that passes its cache over is fast and wrong, or slow: another peer either way.
        expect_equal("tokens in the cache", cache.get_seq_length(), context + count)
        if i:  # the first warms up
            samples.append(count / (time.perf_counter() - begin))
        if i >= 2 and stage.budget.exhausted:
            break
    return speed(samples, _bytes(stage, context + count // 2)) | {"tokens": count}


# ---- graphs --------------------------------------------------------------------------------------
def _stepped(stage: Stage, model: Any, job: str, context: int) -> Record:
    scale = stage.scale
    step, build_seconds = _build(stage, model, job, _capacity(context + scale.peer_tokens))
    error = _check(stage, model, step)
    samples = []
    for i in range(scale.peer_rounds + 1):
        step.position.fill_(context)
        _synchronize(where(stage))
        begin = time.perf_counter()
        for _ in range(scale.peer_tokens):
            step.run()
        _synchronize(where(stage))
        if i:
            samples.append(scale.peer_tokens / (time.perf_counter() - begin))
    return speed(samples, _bytes(stage, context + scale.peer_tokens // 2)) | {
        "tokens": scale.peer_tokens,
        "build_seconds": build_seconds,
        "relative_error": error,
    }


class _Runner:
    """A step, as it is run: replayed where there is a GPU."""

    def __init__(self, step: Step, run: Callable[[], Any]) -> None:
        self.token, self.position, self.logits, self.run = (
            step.token, step.position, step.logits, run,
        )  # fmt: skip


def _build(stage: Stage, model: Any, job: str, capacity: int) -> tuple[_Runner, float]:
    begin = time.perf_counter()
    if job.startswith("hf"):
        step: Step = HfStep(model, capacity)
    else:
        packed = PackedStep(model, capacity)
        packed.choose()
        step = packed
    work: Callable[[], Any] = step
    if job.endswith("compile"):
        work = _compiled(stage, step)
    work()  # compiles, outside of any capture
    _synchronize(where(stage))
    run = work if stage.scale.emulated else capture(work).replay
    run()
    _synchronize(where(stage))
    return _Runner(step, run), time.perf_counter() - begin


def _compiled(stage: Stage, step: Step) -> Callable[[], Any]:
    torch._dynamo.reset()  # another cache is another step, and not the same one with other sizes
    if stage.scale.emulated:  # the compiler's front end alone: no C++ compiler for half a minute
        return torch.compile(step.__call__, backend="eager", fullgraph=True, dynamic=False)
    import torch._inductor.config as inductor

    inductor.coordinate_descent_tuning = True  # products with one vector become loads and sums
    mode = "max-autotune-no-cudagraphs"
    return torch.compile(step.__call__, mode=mode, fullgraph=True, dynamic=False)


def _check(stage: Stage, model: Any, step: _Runner) -> float:
    """The error of the step's logits behind a few tokens beside the plain model's."""
    device = where(stage)
    ids = torch.randint(stage.scale.config.vocab_size, (CHECKED,), device=device)
    step.position.zero_()
    for token in ids:
        step.token.copy_(token)
        step.run()
    expected: Tensor = model(ids[None], use_cache=False).logits[0, -1].float()
    error = float((step.logits - expected).norm() / expected.norm())
    expect(
        error <= TOLERANCE,
        f"logits: expected the plain model's to {TOLERANCE} of their size, got {error:.2g}",
    )
    return error


# ---- small things --------------------------------------------------------------------------------
def _capacity(tokens: int) -> int:
    return -(-tokens // 64) * 64


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _bytes(stage: Stage, length: int) -> int:
    """What a token must move: the same count as for the monokernel."""
    scale = stage.scale
    try:
        info = gpu_info(scale.emulated)
    except NotMeasuredError:
        return 0
    (layout,) = lay_out_widths(scale.config, info, "bfloat16", scale.context, (1,))
    return pass_cost(layout.plan, 1, min(length, scale.context)).bytes
