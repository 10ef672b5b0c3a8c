"""Gradients against finite differences, and with activations recomputed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from monolane.hf import LaneformerForCausalLM

OPTIONS: dict[str, dict[str, Any]] = {
    "as released": {},
    "delay 2": {"broadcast_delay": 2},
    "early exchange": {"broadcast_delay": 2, "use_early_comm": True},
    "no attention exchange": {"use_attention_comm": False},
    "no MLP exchange": {"use_mlp_comm": False},
    "blocking sums": {"broadcast_delay": 0},
    "replicated head, one scale": {"lm_head_type": "replicate", "replicated_rmsn_scale": True},
    "replicated head on the sum": {"lm_head_type": "replicate", "pre_norm_lane_agg": True},
    "head over lanes": {"lm_head_type": "lane"},
    "tied slices": {"tie_word_embeddings": True},
}


@pytest.fixture(params=["eager", "sdpa"])
def attention(request: pytest.FixtureRequest) -> str:
    return request.param


def _model(config: Any, attention: str) -> Any:
    config._attn_implementation = attention
    return LaneformerForCausalLM(config).train()


def _loss(model: Any, ids_BT: Tensor) -> Tensor:
    """The training loss in the model's own dtype; transformers' computes it in float32."""
    logits_BTV = model(ids_BT).logits[:, :-1]
    return functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten())


@pytest.mark.parametrize("name", OPTIONS)
def test_against_finite_differences(name: str, attention: str, tiny: Callable[..., Any]) -> None:
    model = _model(tiny(**OPTIONS[name]), attention).double()
    ids_BT = torch.randint(0, 22, (2, 9))
    _loss(model, ids_BT).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        direction = torch.randn_like(parameter)
        derived = (parameter.grad * direction).sum()
        # Central differences: error about step^2 = 1e-10 from curvature and 1e-16 / step = 1e-11
        # from rounding, on slopes of 1e-3 to 1.
        step = 1e-5
        with torch.no_grad():
            parameter += step * direction
            above = _loss(model, ids_BT)
            parameter -= 2 * step * direction
            below = _loss(model, ids_BT)
            parameter += step * direction
        torch.testing.assert_close(
            derived, (above - below) / (2 * step), atol=1e-8, rtol=1e-5, msg=parameter_name
        )


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_give_the_same_gradients(
    reentrant: bool, attention: str, tiny: Callable[..., Any]
) -> None:
    model = _model(tiny(broadcast_delay=2), attention)
    ids_BT = torch.randint(0, 22, (2, 9))
    plain = _gradients(model, ids_BT)
    calls = []
    for layer in model.model.layers:
        layer.attention.register_forward_pre_hook(lambda *_: calls.append(1))
    # Renamed in transformers 5, where the earlier name warns.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": reentrant})
    recomputed = _gradients(model, ids_BT)
    assert len(calls) == 2 * len(model.model.layers)  # forward, and once more in backward
    for name, gradient in plain.items():
        assert torch.equal(gradient, recomputed[name]), name
    # Recomputing would append every key twice; an empty cache would pass for a filled one.
    assert model(ids_BT, use_cache=True).past_key_values is None


def _gradients(model: Any, ids_BT: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(ids_BT, labels=ids_BT, use_cache=True).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_sixteen_bit_training_step_is_finite(attention: str, tiny: Callable[..., Any]) -> None:
    model = _model(tiny(), attention).to(torch.bfloat16)
    ids_BT = torch.randint(0, 22, (2, 9))
    gradients = _gradients(model, ids_BT)
    assert all(gradient.dtype == torch.bfloat16 for gradient in gradients.values())
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_a_few_steps_learn_a_sequence(tiny: Callable[..., Any]) -> None:
    model = _model(tiny(initializer_range=0.02), "sdpa")
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-2)
    ids_BT = torch.randint(0, 22, (2, 16))
    for _ in range(60):
        optimiser.zero_grad()
        loss = model(ids_BT, labels=ids_BT).loss
        loss.backward()
        optimiser.step()
    assert loss < 0.1  # from log(22) = 3.1
