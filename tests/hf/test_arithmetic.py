"""Every option of the architecture against plain loops over lanes, layers and heads.

The golden folders cover the released options only. These loops follow the published description
literally and share no code with the model; what they lack in speed is clarity.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from monolane.hf import LaneformerForCausalLM

SCALING = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "as released": {},
    "delay 0 is the blocking sum": {"broadcast_delay": 0},
    "delay 2": {"broadcast_delay": 2},
    "delay beyond the depth": {"broadcast_delay": 9},
    "early exchange": {"broadcast_delay": 2, "use_early_comm": True},
    "no attention exchange": {"use_attention_comm": False},
    "no MLP exchange": {"use_mlp_comm": False},
    "earlier spelling of none": {"use_comm": False},
    "early exchange only": {"use_comm": False, "use_early_comm": True, "broadcast_delay": 2},
    "one scale for all lanes": {"replicated_rmsn_scale": True},
    "replicated head": {"lm_head_type": "replicate"},
    "replicated head on the sum": {"lm_head_type": "replicate", "pre_norm_lane_agg": True},
    "head over lanes": {"lm_head_type": "lane"},
    "tied slices": {"tie_word_embeddings": True},
    "tied replicated head": {"tie_word_embeddings": True, "lm_head_type": "replicate"},
    "one lane": {"num_lanes": 1},
    "last layers windowed": {"swa_layers": None, "sliding_window_n_layers": -3},
    "no windows": {"swa_layers": None, "sliding_window": None},
    # Eight pairs: of 5.1 turns (kept), 2.9 and 1.6 (blended), 0.9 and less (stretched).
    "stretched rotary": {"rope_scaling": SCALING, "rope_theta": 100.0, "hidden_size": 64},
    "six query heads per KV head": {"num_attention_heads": 8, "num_key_value_heads": 2},
}


def reference(model: Any, ids_T: Tensor) -> Tensor:
    """The logits [T, V] of one sequence."""
    c = model.config
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
    lanes = range(c.num_lanes)
    x = [weights["model.tok_embeddings.weight"][ids_T] for _ in lanes]  # L times [T, D]
    outputs: dict[str, list[list[Tensor]]] = {"attention": [], "mlp": []}
    for i in range(c.num_hidden_layers):
        for kind in ("attention", "mlp"):
            o = [_module(weights, c, i, kind, lane, x[lane]) for lane in lanes]
            outputs[kind].append(o)
            for lane in lanes:
                x[lane] = x[lane] + _exchanged(c, i, kind, lane, o, outputs[kind])
    return _head(weights, c, x)


def _exchanged(
    c: Any, i: int, kind: str, lane: int, o: list[Tensor], sent: list[list[Tensor]]
) -> Tensor:
    communicates = c.use_attention_comm if kind == "attention" else c.use_mlp_comm
    if i < c.broadcast_delay and c.use_early_comm:
        return sum(o[1:], o[0])
    if i < c.broadcast_delay or not communicates:
        return math.sqrt(c.num_lanes) * o[lane]
    late = sent[i - c.broadcast_delay]
    return o[lane] + sum((late[j] for j in range(c.num_lanes) if j != lane), torch.zeros(1))


def _module(weights: dict[str, Tensor], c: Any, i: int, kind: str, lane: int, x: Tensor) -> Tensor:
    at = f"model.layers.{i}."
    x = _norm(weights, at + ("attention_norm" if kind == "attention" else "ffn_norm"), lane, x, c)
    if kind == "mlp":
        w1, w2, w3 = (weights[f"{at}feed_forward.w{n}.weight"][lane] for n in (1, 2, 3))
        gate = x @ w1.T
        return (gate * gate.sigmoid() * (x @ w3.T)) @ w2.T
    wq, wk, wv, wo = (weights[f"{at}attention.w{n}.weight"][lane] for n in "qkvo")
    heads, kv_heads = c.num_attention_heads // c.num_lanes, c.num_key_value_heads // c.num_lanes
    width = c.hidden_size // c.num_attention_heads
    results = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        shared = head * kv_heads // heads
        read = slice(shared * width, (shared + 1) * width)
        q, k = _turned(x @ wq[own].T, c), _turned(x @ wk[read].T, c)
        scores = q @ k.T / math.sqrt(width)
        query, key = torch.meshgrid(torch.arange(len(x)), torch.arange(len(x)), indexing="ij")
        visible = key <= query
        if i in c.swa_layers:
            visible &= key > query - c.sliding_window
        results.append(scores.masked_fill(~visible, -math.inf).softmax(-1) @ (x @ wv[read].T))
    return torch.cat(results, -1) @ wo.T


def _norm(weights: dict[str, Tensor], name: str, lane: int, x: Tensor, c: Any) -> Tensor:
    scale = (
        weights[f"{name}.weight"] if f"{name}.weight" in weights else weights[f"{name}.scale"][lane]
    )
    return x / (x.square().mean(-1, keepdim=True) + c.norm_eps).sqrt() * scale


def _turned(x: Tensor, c: Any) -> Tensor:
    result = x.clone()
    for position in range(len(x)):
        for pair in range(x.shape[1] // 2):
            angle = position * _frequency(pair, x.shape[1], c)
            a, b = x[position, 2 * pair], x[position, 2 * pair + 1]
            result[position, 2 * pair] = a * math.cos(angle) - b * math.sin(angle)
            result[position, 2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
    return result


def _frequency(pair: int, width: int, c: Any) -> float:
    frequency = float(c.rope_theta ** (-2 * pair / width))
    if c.rope_scaling is None:
        return frequency
    s = c.rope_scaling
    wavelength = 2 * math.pi / frequency
    if wavelength < s["original_max_position_embeddings"] / s["high_freq_factor"]:
        return frequency
    if wavelength > s["original_max_position_embeddings"] / s["low_freq_factor"]:
        return frequency / s["factor"]
    blend = (s["original_max_position_embeddings"] / wavelength - s["low_freq_factor"]) / (
        s["high_freq_factor"] - s["low_freq_factor"]
    )
    return (1 - blend) * frequency / s["factor"] + blend * frequency


def _head(weights: dict[str, Tensor], c: Any, x: list[Tensor]) -> Tensor:
    if c.pre_norm_lane_agg:
        normed = [_norm(weights, "model.norm", 0, sum(x[1:], x[0]), c)]
    else:
        normed = [_norm(weights, "model.norm", lane, x[lane], c) for lane in range(c.num_lanes)]
    if c.lm_head_type == "lane":
        return torch.cat(normed, -1) @ weights["lm_head.linear.weight"].T
    name = "model.tok_embeddings.weight" if c.tie_word_embeddings else "lm_head.weight"
    weight_VD = weights[name].reshape(c.vocab_size, c.hidden_size)
    if c.lm_head_type == "replicate":
        return sum(normed[1:], normed[0]) / len(normed) @ weight_VD.T
    rows = c.vocab_size // c.num_lanes
    slices = [normed[i] @ weight_VD[i * rows : (i + 1) * rows].T for i in range(c.num_lanes)]
    return torch.cat(slices, -1)


@torch.no_grad()
@pytest.mark.parametrize("name", OPTIONS)
def test_against_plain_loops(name: str, tiny: Callable[..., Any]) -> None:
    model = LaneformerForCausalLM(tiny(**OPTIONS[name])).eval()
    for parameter in model.parameters():  # norms off one, so that a wrong scale shows
        parameter += 0.1 * torch.randn_like(parameter)
    ids_T = torch.randint(0, 22, (13,))
    logits_TV = model(ids_T[None]).logits[0]
    expected_TV = reference(model, ids_T)
    # float32 against float64: some hundred roundings of 6e-8 on logits of up to about 20.
    torch.testing.assert_close(logits_TV.double(), expected_TV, atol=1e-4, rtol=0)
    assert expected_TV.abs().max() > 1  # logits near zero would agree whatever the model did
