"""Attention of narrow heads and cross entropy on a processor: processor.cpp, as torch operations.

torch computes heads of 8 values, and sums over 8,192 words, at a fraction of what one core can.
The library is compiled for this machine when it is first needed, by $CXX or g++. float32 alone.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

SOURCE = Path(__file__).with_name("processor.cpp")
NAME = "narrow"  # of the attention, as a model's config calls it
WIDTHS, MOST_TOKENS = (4, 8, 16), 1024  # of a head; of a row
# Sums of floats in any order, so that loops become vectors; no infinity is lost.
_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fassociative-math",
          "-fno-signed-zeros", "-ffp-contract=fast", "-shared", "-fPIC", "-std=c++17")  # fmt: skip


@cache
def library() -> ctypes.CDLL:
    """Return the compiled library; raise RuntimeError where it cannot be compiled."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise RuntimeError("expected a C++ compiler, $CXX or g++, to compile processor.cpp with; "
                           "found none; install g++")  # fmt: skip
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(_FLAGS).encode()).hexdigest()[:16]
    # One's own folder, of this process: a library of another machine may not run on this one.
    folder = Path(tempfile.mkdtemp(prefix="processor-"))
    made = folder / f"processor-{digest}.so"
    try:
        done = subprocess.run([compiler, *_FLAGS, "-o", made, SOURCE], capture_output=True,
                              text=True, check=False)  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{compiler} failed on {SOURCE.name}: {done.stderr[-2000:]}")
        loaded = ctypes.CDLL(str(made))
    finally:
        shutil.rmtree(folder)  # what is loaded stays loaded
    loaded.cross_entropy_forward.restype = ctypes.c_double
    return loaded


# ---- attention -----------------------------------------------------------------------------------
@torch.library.custom_op("delay::attention", mutates_args=())
def attention(q_BHTE: Tensor, k_BHTE: Tensor, v_BHTE: Tensor, scale: float
              ) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return causal attention [B, H, T, E], and the logarithm of each sum [B, H, T]."""
    q, k, v = (x.contiguous() for x in (q_BHTE, k_BHTE, v_BHTE))
    y, logsum = torch.empty_like(q), q.new_empty(q.shape[:3])
    _computed(
        library().attention_forward(
            _at(q), _at(k), _at(v), ctypes.c_float(scale), *_measures(q), _at(y), _at(logsum)
        ),
        q,
    )
    return y, logsum


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3])


@torch.library.custom_op("delay::attention_gradient", mutates_args=())
def attention_gradient(
    q: Tensor, k: Tensor, v: Tensor, y: Tensor, logsum: Tensor, dy: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, each [B, H, T, E]."""
    q, k, v, dy = (x.contiguous() for x in (q, k, v, dy))
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    _computed(
        library().attention_backward(
            _at(q), _at(k), _at(v), _at(y), _at(logsum), _at(dy), ctypes.c_float(scale),
            *_measures(q), _at(dq), _at(dk), _at(dv),
        ),
        q,
    )  # fmt: skip
    return dq, dk, dv


@attention_gradient.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, y: Tensor, logsum: Tensor, dy: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    like = torch.empty_like(q, memory_format=torch.contiguous_format)
    return like, torch.empty_like(like), torch.empty_like(like)


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output)


def _attention_backward(ctx: Any, dy: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*attention_gradient(*ctx.saved_tensors, dy, ctx.scale), None)


attention.register_autograd(_attention_backward, setup_context=_keep_attention)


def narrow_attention(
    module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention as a model calls it: [B, T, H, E], and no weights."""
    if mask is not None or q.shape != k.shape:
        raise ValueError(
            "expected causal rows without a mask, and a key head for each query head, got "
            f"{list(q.shape)} and {list(k.shape)}; take another attention"
        )
    return attention(q, k, v, scaling)[0].transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS[NAME] = narrow_attention


# ---- cross entropy -------------------------------------------------------------------------------
class _SummedNats(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        logits_NV, targets_N = logits_NV.contiguous(), targets_N.contiguous()
        logsum_N = logits_NV.new_empty(len(targets_N))
        nats = library().cross_entropy_forward(
            _at(logits_NV), _at(targets_N), *_counts(logits_NV), _at(logsum_N)
        )
        ctx.save_for_backward(logits_NV, targets_N, logsum_N)
        return logits_NV.new_tensor(nats)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits_NV, targets_N, logsum_N = ctx.saved_tensors
        out_NV = torch.empty_like(logits_NV)
        library().cross_entropy_backward(
            _at(logits_NV), _at(targets_N), _at(logsum_N), ctypes.c_float(float(gradient)),
            *_counts(logits_NV), _at(out_NV),
        )  # fmt: skip
        return out_NV, None


def summed_nats(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the cross entropy of all targets together, in nats; a target is a known word."""
    _expect_float32(logits_BTV)
    nats: Tensor = _SummedNats.apply(logits_BTV.flatten(0, 1), targets_BT.flatten())  # type: ignore[no-untyped-call]
    return nats


# ---- what is handed over -------------------------------------------------------------------------
def _at(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def _measures(q_BHTE: Tensor) -> tuple[ctypes.c_int64, ctypes.c_int, ctypes.c_int]:
    _expect_float32(q_BHTE)
    rows, heads, tokens, width = q_BHTE.shape
    return ctypes.c_int64(rows * heads), ctypes.c_int(tokens), ctypes.c_int(width)


def _counts(logits_NV: Tensor) -> tuple[ctypes.c_int64, ctypes.c_int64]:
    return ctypes.c_int64(logits_NV.shape[0]), ctypes.c_int64(logits_NV.shape[1])


def _expect_float32(x: Tensor) -> None:
    if x.dtype != torch.float32:
        raise TypeError(f"expected float32, got {x.dtype}: processor.cpp computes no other")


def _computed(status: int, q_BHTE: Tensor) -> None:
    if status:
        raise ValueError(f"expected heads of {WIDTHS} and rows of at most {MOST_TOKENS} tokens, "
                         f"got {list(q_BHTE.shape)} [B, H, T, E]")  # fmt: skip
