"""A Laneformer's arithmetic for training on a CPU: the same sums, in fewer passes over memory.

Four of torch's ways are slow there. A batched product of a few lanes is slower than a product per
lane; matrices that read one input (queries, keys and values; gate and up) are small products apart,
and each makes a gradient of the input, which are then added; the backward pass of RMSNorm is ten
passes over the stream; turning pairs of numbers one by one is not vectorised. ``swift`` puts
other functions in their place while a block runs: the parameters stay, so do optimiser and
checkpoints. Derivatives are written out by hand; tests hold them against torch's.

With products in bfloat16, weights stay float32 and are rounded when they are used. Inside a module
(queries, keys, values, scores; gate and up) numbers are bfloat16; the stream, what lanes tell each
other, norms and gradients of weights are float32.

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

from monolane.hf import (
    LaneAttention,
    LaneformerForCausalLM,
    LaneMLP,
    LaneReduce,
    LaneRMSNorm,
)

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of glibc's mallopt


class _Products(torch.autograd.Function):
    """Each lane's stream through several matrices that read it, as one product a lane.

    ``dtype`` is that of the factors; the outputs are side by side, [L, N, sum of O].
    """

    @staticmethod
    def forward(ctx: Any, x_LNI: Tensor, dtype: torch.dtype, *weights_LOI: Tensor) -> Tensor:
        x_LNI = x_LNI.to(dtype)
        weight_LOI = _joined(weights_LOI, dtype)
        ctx.save_for_backward(x_LNI, weight_LOI)
        ctx.rows = [weight.shape[1] for weight in weights_LOI]
        y_LNO = x_LNI.new_empty(*x_LNI.shape[:2], weight_LOI.shape[1])
        for x_NI, weight_OI, y_NO in zip(x_LNI, weight_LOI, y_LNO, strict=True):
            torch.mm(x_NI, weight_OI.T, out=y_NO)
        return y_LNO

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x_LNI, weight_LOI = ctx.saved_tensors
        dy_LNO = gradients[0].to(x_LNI.dtype).contiguous()
        dx_LNI, dw_LOI = torch.empty_like(x_LNI), torch.empty_like(weight_LOI)
        for dy_NO, x_NI, weight_OI, dx_NI, dw_OI in zip(
            dy_LNO, x_LNI, weight_LOI, dx_LNI, dw_LOI, strict=True
        ):
            torch.mm(dy_NO.T, x_NI, out=dw_OI)
            torch.mm(dy_NO, weight_OI, out=dx_NI)
        return dx_LNI, None, *dw_LOI.split(ctx.rows, 1)


def _joined(weights_LOI: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """Return the matrices one below the other, as the factors of a product."""
    first = weights_LOI[0]
    if len(weights_LOI) == 1:
        return first.to(dtype)
    lanes, _, inputs = first.shape
    joined_LOI = first.new_empty(lanes, sum(w.shape[1] for w in weights_LOI), inputs, dtype=dtype)
    return torch.cat(weights_LOI, 1, out=joined_LOI)


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


class _Gated(torch.autograd.Function):
    """silu(gate) * up, of both side by side."""

    @staticmethod
    def forward(ctx: Any, both_LBTX: Tensor) -> Tensor:
        ctx.save_for_backward(both_LBTX)
        gate_LBTF, up_LBTF = both_LBTX.chunk(2, -1)
        return functional.silu(gate_LBTF).mul_(up_LBTF)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (both_LBTX,), d_LBTF = ctx.saved_tensors, gradients[0]
        gate_LBTF, up_LBTF = both_LBTX.chunk(2, -1)
        d_LBTX = torch.empty_like(both_LBTX)
        d_gate_LBTF, d_up_LBTF = d_LBTX.chunk(2, -1)
        torch.mul(functional.silu(gate_LBTF), d_LBTF, out=d_up_LBTF)
        torch.ops.aten.silu_backward.grad_input(d_LBTF * up_LBTF, gate_LBTF, grad_input=d_gate_LBTF)
        return d_LBTX


class _Turned(torch.autograd.Function):
    """Rotary positions: pairs of numbers as complex ones, turned; the gradient is turned back."""

    @staticmethod
    def forward(ctx: Any, x_LBThE: Tensor, turn_BT1e: Tensor) -> Tensor:
        ctx.save_for_backward(turn_BT1e)
        return _turn(x_LBThE, turn_BT1e)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (turn_BT1e,) = ctx.saved_tensors
        return _turn(gradients[0], turn_BT1e.conj()), None


def _turn(x_LBThE: Tensor, turn_BT1e: Tensor) -> Tensor:
    wide_LBThE = x_LBThE.to(turn_BT1e.real.dtype).contiguous()
    pairs_LBThe = torch.view_as_complex(wide_LBThE.unflatten(-1, (-1, 2))) * turn_BT1e
    return torch.view_as_real(pairs_LBThe).flatten(-2).to(x_LBThE.dtype)


def _products(x_LBTI: Tensor, dtype: torch.dtype, *linears: Any) -> Tensor:
    """Return the outputs of the matrices side by side, in ``dtype``."""
    weights = (linear.weight for linear in linears)
    y_LNO: Tensor = _Products.apply(x_LBTI.flatten(1, 2), dtype, *weights)
    return y_LNO.unflatten(1, x_LBTI.shape[1:3])


def _norm(module: Any, dtype: torch.dtype, x_LBTD: Tensor) -> Tensor:
    normed: Tensor = _Norm.apply(x_LBTD.flatten(1, 2), module.scale, module.eps)
    return normed.unflatten(1, x_LBTD.shape[1:3])


def _mlp(module: Any, dtype: torch.dtype, x_LBTD: Tensor) -> Tensor:
    both_LBTX = _products(x_LBTD, dtype, module.w1, module.w3)
    return _products(_Gated.apply(both_LBTX), dtype, module.w2).to(x_LBTD.dtype)


def _attention(
    module: Any,
    dtype: torch.dtype,
    x_LBTD: Tensor,
    rotary: tuple[Tensor, Tensor],
    mask: Tensor | None,
    past_key_values: Any,
    cache_position: Tensor,
) -> Tensor:
    if mask is not None or past_key_values is not None:  # padding, a window, or a cache
        arguments = rotary, mask, past_key_values, cache_position
        plain: Tensor = type(module).forward(module, x_LBTD, *arguments)
        return plain
    lanes, rows, tokens, _ = x_LBTD.shape
    width = module.config.head_dim
    keys = module.config.num_key_value_heads // lanes
    all_LBTX = _products(x_LBTD, dtype, module.wq, module.wk, module.wv)
    all_LBThE = all_LBTX.unflatten(-1, (-1, width))
    turned_LBThE, v_LBTkE = all_LBThE.split([all_LBThE.shape[3] - keys, keys], 3)
    turn_BT1e = torch.complex(*(part.to(x_LBTD.dtype) for part in rotary))
    turned_LBThE = _Turned.apply(turned_LBThE, turn_BT1e)
    q_LBThE, k_LBTkE = turned_LBThE.split([turned_LBThE.shape[3] - keys, keys], 3)
    # A lane's heads read its own keys, so lanes are further rows: nothing is moved.
    q_XhTE, k_XkTE, v_XkTE = (
        part.flatten(0, 1).transpose(1, 2) for part in (q_LBThE, k_LBTkE, v_LBTkE)
    )
    k_XhTE, v_XhTE = (
        part[:, :, None].expand(-1, -1, module.num_key_value_groups, -1, -1).flatten(1, 2)
        for part in (k_XkTE, v_XkTE)
    )
    y_XhTE = functional.scaled_dot_product_attention(
        q_XhTE, k_XhTE, v_XhTE, is_causal=True, scale=module.scaling
    )
    y_LBTX = y_XhTE.transpose(1, 2).reshape(lanes, rows, tokens, -1)
    return _products(y_LBTX, dtype, module.wo).to(x_LBTD.dtype)


def _reduce(module: Any, dtype: torch.dtype, o_LBTD: Tensor, late_LBTD: Tensor | None) -> Tensor:
    if late_LBTD is None:
        heard: Tensor = type(module).forward(module, o_LBTD, late_LBTD)
    else:
        heard = _Heard.apply(o_LBTD, late_LBTD)
    return heard


_INSTEAD: dict[type, Callable[..., Tensor]] = {
    LaneAttention: _attention,
    LaneRMSNorm: _norm,
    LaneMLP: _mlp,
    LaneReduce: _reduce,
}


def _narrow_products(decoder: nn.Module, dtype: torch.dtype) -> None:
    """Let a decoder multiply in ``dtype``: its streams, norms and weights stay as they are.

    The head is left out: logits are made of float32 numbers.
    """
    plain = decoder.forward
    device = next(decoder.parameters()).device.type

    def forward(*given: Any, **named: Any) -> Any:
        with torch.autocast(device, dtype):
            return plain(*given, **named)

    decoder.forward = forward


@contextmanager
def swift(model: LaneformerForCausalLM, dtype: torch.dtype = torch.float32) -> Iterator[None]:
    """Train ``model`` by these functions inside the block, where it is a float32 one on a CPU.

    ``dtype`` is that of the products: see ``products_dtype``. A GPU has batched products and fused
    norms, and the norms here do not widen what is narrower: there only the products change.
    """
    changed: list[nn.Module] = []
    if model.device.type != "cpu" and model.dtype == torch.float32 != dtype:
        _narrow_products(model.model, dtype)
        changed.append(model.model)
    wide = model.dtype in (torch.float32, torch.float64)
    dtype = dtype if model.dtype == torch.float32 else model.dtype
    for module in model.modules() if wide and model.device.type == "cpu" else ():
        instead = _INSTEAD.get(type(module))
        if instead is None or (isinstance(module, LaneRMSNorm) and not module.per_lane):
            continue
        module.forward = partial(instead, module, dtype)
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
