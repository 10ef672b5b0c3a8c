"""A Laneformer's arithmetic for training on a CPU: the same sums, in fewer passes over memory.

Three of torch's ways are slow there. A batched product of a few lanes is slower than a product per
lane; the backward pass of RMSNorm is ten passes over the stream; matrices that read one input (gate
and up) each make a gradient of it, which are then added. ``swift`` puts
other functions in their place while a block runs: the parameters stay, so do optimiser and
checkpoints. Derivatives are written out by hand; tests hold them against torch's.

L lanes, N tokens, O outputs, I inputs of a matrix, D hidden.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from monolane.hf import LaneformerForCausalLM, LaneLinear, LaneMLP, LaneReduce, LaneRMSNorm

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of glibc's mallopt


class _Products(torch.autograd.Function):
    """Each lane's stream through each of its matrices."""

    @staticmethod
    def forward(ctx: Any, x_LNI: Tensor, *weights_LOI: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x_LNI, *weights_LOI)
        outputs = []
        for weight_LOI in weights_LOI:
            y_LNO = x_LNI.new_empty(*x_LNI.shape[:2], weight_LOI.shape[1])
            for x_NI, weight_OI, y_NO in zip(x_LNI, weight_LOI, y_LNO, strict=True):
                torch.mm(x_NI, weight_OI.T, out=y_NO)
            outputs.append(y_LNO)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x_LNI, *weights_LOI = ctx.saved_tensors
        dx_LNI = torch.empty(x_LNI.shape, dtype=x_LNI.dtype, device=x_LNI.device)
        made = []
        for place, (weight_LOI, dy) in enumerate(zip(weights_LOI, gradients, strict=True)):
            dy_LNO, dw_LOI = dy.contiguous(), torch.empty_like(weight_LOI)
            for lane, (dy_NO, weight_OI) in enumerate(zip(dy_LNO, weight_LOI, strict=True)):
                torch.mm(dy_NO.T, x_LNI[lane], out=dw_LOI[lane])
                dx_LNI[lane].addmm_(dy_NO, weight_OI, beta=int(place > 0))
            made.append(dw_LOI)
        return dx_LNI, *made


class _Norm(torch.autograd.Function):
    """RMSNorm with a scale per lane, a lane at a time so that what is read twice is in cache."""

    @staticmethod
    def forward(ctx: Any, x_LND: Tensor, scale_LD: Tensor, eps: float) -> Tensor:
        width = x_LND.shape[2]
        y_LND = torch.empty(x_LND.shape, dtype=x_LND.dtype, device=x_LND.device)
        inverse_LN1 = torch.linalg.vector_norm(x_LND, dim=2, keepdim=True)
        inverse_LN1 = inverse_LN1.square_().div_(width).add_(eps).rsqrt_()
        for x_ND, inverse_N1, scale_D, y_ND in zip(
            x_LND, inverse_LN1, scale_LD, y_LND, strict=True
        ):
            torch.mul(x_ND, inverse_N1, out=y_ND).mul_(scale_D)
        ctx.save_for_backward(x_LND, inverse_LN1, scale_LD)
        return y_LND

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x_LND, inverse_LN1, scale_LD = ctx.saved_tensors
        dx_LND = torch.empty(x_LND.shape, dtype=x_LND.dtype, device=x_LND.device)
        dscale_LD = torch.empty_like(scale_LD)
        dy_LND = gradients[0]
        for lane, scale_D in enumerate(scale_LD):
            x_ND, dy_ND, dx_ND = x_LND[lane], dy_LND[lane], dx_LND[lane]
            inverse_N = inverse_LN1[lane, :, 0]
            product_ND = dy_ND * x_ND
            torch.mv(product_ND.T, inverse_N, out=dscale_LD[lane])
            # d(x / |x|): the share of the gradient along x is taken out.
            along_N = torch.mv(product_ND, scale_D).mul_(inverse_N**3).div_(-len(scale_D))
            torch.mul(dy_ND, scale_D, out=dx_ND).mul_(inverse_N[:, None])
            dx_ND.addcmul_(x_ND, along_N[:, None])
        return dx_LND, dscale_LD, None


class _Heard(torch.autograd.Function):
    """A lane's own output, and what all others said late."""

    @staticmethod
    def forward(ctx: Any, o_LBTD: Tensor, late_LBTD: Tensor) -> Tensor:
        return (o_LBTD - late_LBTD).add_(late_LBTD.sum(0))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        d_LBTD = gradients[0]
        return d_LBTD, d_LBTD.sum(0) - d_LBTD


def _products(x_LBTI: Tensor, *linears: Any) -> list[Tensor]:
    outputs = _Products.apply(x_LBTI.flatten(1, 2), *(linear.weight for linear in linears))
    return [y_LNO.unflatten(1, x_LBTI.shape[1:3]) for y_LNO in outputs]


def _norm(module: Any, x_LBTD: Tensor) -> Tensor:
    normed: Tensor = _Norm.apply(x_LBTD.flatten(1, 2), module.scale, module.eps)
    return normed.unflatten(1, x_LBTD.shape[1:3])


def _mlp(module: Any, x_LBTD: Tensor) -> Tensor:
    gate_LBTF, up_LBTF = _products(x_LBTD, module.w1, module.w3)
    return _products(functional.silu(gate_LBTF) * up_LBTF, module.w2)[0]


def _linear(module: Any, x_LBTI: Tensor) -> Tensor:
    return _products(x_LBTI, module)[0]


def _reduce(module: Any, o_LBTD: Tensor, late_LBTD: Tensor | None) -> Tensor:
    if late_LBTD is None:
        heard: Tensor = type(module).forward(module, o_LBTD, late_LBTD)
    else:
        heard = _Heard.apply(o_LBTD, late_LBTD)
    return heard


_INSTEAD: dict[type, Callable[..., Tensor]] = {
    LaneLinear: _linear,
    LaneRMSNorm: _norm,
    LaneMLP: _mlp,
    LaneReduce: _reduce,
}


@contextmanager
def swift(model: LaneformerForCausalLM) -> Iterator[None]:
    """Train ``model`` by these functions inside the block, where it is a float32 one on a CPU.

    Elsewhere nothing changes: a GPU has batched products and fused norms, and the norms here do
    not widen what is narrower.
    """
    changed: list[nn.Module] = []
    wide = model.dtype in (torch.float32, torch.float64)
    for module in model.modules() if wide and model.device.type == "cpu" else ():
        instead = _INSTEAD.get(type(module))
        if instead is None or (isinstance(module, LaneRMSNorm) and not module.per_lane):
            continue
        module.forward = partial(instead, module)
        changed.append(module)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, where its C library is glibc.

    Otherwise each tensor of some MB is mapped anew and its pages are zeroed at the first touch,
    which takes longer than most of what is computed on them. For programs that do nothing but
    train; call it before the first large tensor.
    """
    try:
        library = ctypes.CDLL("libc.so.6")
        library.gnu_get_libc_version  # noqa: B018  # only glibc has it, and these numbers
    except (OSError, AttributeError):
        return
    most = 2**31 - 1
    for parameter, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, most), (_ARENA_MAX, 1)):
        library.mallopt(parameter, value)
