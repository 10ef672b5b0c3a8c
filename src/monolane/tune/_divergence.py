"""How far a student's next-token distribution is from its teacher's best tokens, in chunks.

The plain way holds logits, log-softmax and their gradients for all tokens of a step at once: at a
vocabulary of 49,152 that is 200 MB each for 1,024 tokens, read and written a dozen times. Here a
chunk of tokens at a time is taken through the head, the loss and back, in one buffer that a last
level of cache can hold, and only the gradients of head and hidden state are kept.

The teacher is given by its ``k`` best tokens; all others are one more outcome, "the rest". With p
the teacher's and q the student's probabilities,

    loss = sum over the k of p log(p / q)  +  p_rest log(p_rest / q_rest)

which is at most the full divergence (log-sum inequality), equal to it where k is the vocabulary,
and zero only where the student gives the k their probabilities. Its gradient by a logit is q - p
for one of the k, and q (1 - p_rest / q_rest) for each of the rest.

L lanes, N tokens, D hidden, V vocabulary, v = V / L, K the teacher's best.
"""

from typing import Any

import torch
from torch import Tensor

from monolane.hf import LaneformerForCausalLM

# Rows of logits at once: 50 MB for V = 49,152. Fewer add to the head's gradient more often.
_CHUNK = 256


class _Divergence(torch.autograd.Function):
    """Mean divergence in nats per token; both gradients are made on the way forward."""

    @staticmethod
    def forward(
        ctx: Any,
        x_LND: Tensor,
        weight_LvD: Tensor,
        ids_NK: Tensor,
        logs_NK: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        lanes, count, _ = x_LND.shape
        factor_LND, factor_LvD = x_LND.to(dtype), weight_LvD.to(dtype)
        rows = weight_LvD.shape[1]
        dx_LND, dw_LvD = torch.empty_like(x_LND), torch.zeros_like(weight_LvD)
        buffer_NV = x_LND.new_empty(min(_CHUNK, count), lanes * rows)
        total = x_LND.new_zeros(())
        for at in range(0, count, _CHUNK):
            end = min(at + _CHUNK, count)
            logits_NV = buffer_NV[: end - at]
            for lane, logits_Nv in enumerate(logits_NV.split(rows, 1)):
                torch.mm(x_LND[lane, at:end], weight_LvD[lane].T, out=logits_Nv)
            total += to_gradient(logits_NV, ids_NK[at:end], logs_NK[at:end])
            logits_NV /= count
            for lane, gradient_Nv in enumerate(logits_NV.split(rows, 1)):
                factor_Nv = gradient_Nv.to(dtype)
                dx_LND[lane, at:end] = factor_Nv @ factor_LvD[lane]
                if dtype == dw_LvD.dtype:
                    dw_LvD[lane].addmm_(factor_Nv.T, factor_LND[lane, at:end])
                else:  # the sum over chunks stays wide
                    dw_LvD[lane] += factor_Nv.T @ factor_LND[lane, at:end]
        ctx.save_for_backward(dx_LND, dw_LvD)
        return total / count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dx_LND, dw_LvD = ctx.saved_tensors
        if gradients[0] != 1:
            dx_LND, dw_LvD = dx_LND * gradients[0], dw_LvD * gradients[0]
        return dx_LND, dw_LvD, None, None, None


def to_gradient(logits_NV: Tensor, ids_NK: Tensor, logs_NK: Tensor) -> Tensor:
    """Turn logits, in place, into the gradient of the summed divergence; return that sum.

    ``logs_NK`` are the teacher's log-probabilities of the tokens ``ids_NK``.
    """
    logits_NV -= logits_NV.amax(1, keepdim=True)
    q_NV = logits_NV.exp_()
    q_NV /= q_NV.sum(1, keepdim=True)
    # The smallest normal number: a probability that underflows costs 87 nats, not infinitely many.
    least = torch.finfo(q_NV.dtype).tiny
    p_NK, q_NK = logs_NK.exp(), q_NV.gather(1, ids_NK)
    loss = (p_NK * (logs_NK - q_NK.clamp_min(least).log())).sum()
    if ids_NK.shape[1] < q_NV.shape[1]:
        q_NV.scatter_(1, ids_NK, 0)  # so that the rest is summed, not what is left of 1
        p_rest_N1 = (1 - p_NK.sum(1, keepdim=True)).clamp_min(least)
        q_rest_N1 = q_NV.sum(1, keepdim=True).clamp_min(least)
        loss = loss + (p_rest_N1 * (p_rest_N1.log() - q_rest_N1.log())).sum()
        q_NV *= 1 - p_rest_N1 / q_rest_N1
    q_NV.scatter_(1, ids_NK, q_NK - p_NK)
    return loss


def divergence(
    model: LaneformerForCausalLM,
    ids_BC: Tensor,
    best_BCK: Tensor,
    logs_BCK: Tensor,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the mean divergence of ``model`` on windows ``ids_BC``, in nats per token.

    ``best_BCK`` are the teacher's best tokens after each token, int64, with the log-probabilities
    ``logs_BCK``. ``dtype`` is that of the factors on the way back, where the model's own is not to
    be taken; logits are made of the model's numbers as they are.
    """
    x_LND = head_inputs(model, ids_BC)
    best_NK = best_BCK.flatten(0, 1).to(x_LND.device)
    logs_NK = logs_BCK.flatten(0, 1).to(x_LND)
    loss: Tensor = _Divergence.apply(
        x_LND, head_weight(model), best_NK, logs_NK, dtype or x_LND.dtype
    )
    return loss


def head_inputs(model: LaneformerForCausalLM, ids_BC: Tensor) -> Tensor:
    """Return what each slice of the head reads, [L, N, D]; L is 1 where the head is one matrix."""
    x_NX = model.model(input_ids=ids_BC, use_cache=False).last_hidden_state.flatten(0, 1)
    slices = head_weight(model).shape[0]
    return x_NX.unflatten(1, (slices, -1)).transpose(0, 1).contiguous()


def head_weight(model: LaneformerForCausalLM) -> Tensor:
    """Return the head as slices of the vocabulary [L, v, D]."""
    kind = model.config.lm_head_type
    if model.lm_head is None:
        weight_VD: Tensor = model.model.tok_embeddings.weight
        return weight_VD.unflatten(
            0, (model.config.num_lanes if kind == "vocab_parallel" else 1, -1)
        )
    head: Any = model.lm_head
    weight: Tensor = head.linear.weight if kind == "lane" else head.weight
    return weight if weight.dim() == 3 else weight[None]
