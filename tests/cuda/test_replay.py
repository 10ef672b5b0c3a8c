"""The answer computed anew by a plain program has the bits of the kernel's."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from rig import Ask, MakeRig, random_weights, tiny_config

from monolane.cuda._replay import Replay
from monolane.cuda._warp_arithmetic import exp2
from monolane.model import NEVER, NOW, Head, LayerConfig, QkNorm, Reduce, Rotary, Temperature

LATE = Reduce(1)
PROMPT = (1, 5, 2, 7, 3, 9, 4, 11, 6, 13, 8, 15, 10, 17, 12, 19, 14, 21, 16)
# A model's own fields, and the wishes of its rig.
CASES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two lanes": ({}, {"workers": 4}),
    "one lane, three blocks": ({"num_lanes": 1, "num_kv_heads": 1}, {"workers": 3}),
    "outputs a layer late": (
        {"layers": (LayerConfig(NOW, NOW), *[LayerConfig(LATE, LATE)] * 2, LayerConfig(NOW, LATE))},
        {"workers": 4},
    ),
    "outputs never": ({"layers": (LayerConfig(NEVER, NEVER),) * 2}, {"workers": 4}),
    "a window": ({"layers": (LayerConfig(NOW, NOW, 6),) * 2}, {"workers": 4}),
    "a head on the mean": ({"head": Head.MEAN}, {"workers": 4}),
    "a head on the sum": ({"head": Head.SUM, "hidden_size": 40}, {"workers": 4}),
    "a head on all": ({"head": Head.CONCAT}, {"workers": 4}),
    "uneven rows": (
        {"hidden_size": 18, "intermediate_size": 22, "vocab_size": 46, "num_heads": 6,
         "num_kv_heads": 6},
        {"workers": 8},
    ),
    "groups of queries": (
        {"num_heads": 8, "hidden_size": 80, "head_dim": 20, "intermediate_size": 48},
        {"workers": 4, "warps": 4},
    ),
    "norms of heads": ({"qk_norm": QkNorm.HEAD, "num_heads": 4}, {"workers": 4}),
    "biases": ({"qkv_bias": True}, {"workers": 4}),
    "pairs side by side": ({"rotary": Rotary(10000.0, "interleaved")}, {"workers": 4}),
    "a part that turns": (
        {"head_dim": 12, "rotary": Rotary(100.0, "half", part=0.5), "qk_norm": QkNorm.HEAD,
         "norm_turned": True},
        {"workers": 4},
    ),
    "two rotaries": (
        {"layers": (LayerConfig(NOW, NOW, 6, rotary="local"), LayerConfig(NOW, NOW)),
         "local_rotary": Rotary(30.0, "half"), "rotary": Rotary(1000.0, "half")},
        {"workers": 4},
    ),
    "scales and caps": (
        {"embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 0.25, "logit_cap": 2.0,
         "score_cap": 1.5, "activation": "gelu_tanh", "norm_offset": 1.0,
         "attention_temperature": Temperature(0.5, 4)},
        {"workers": 4},
    ),
    "norms behind modules": (
        {"norm_before": False, "norm_after": True, "layers": (LayerConfig(NOW, NOW),) * 2},
        {"workers": 4},
    ),
    "norms on both sides": (
        {"norm_after": True, "residual_scale": 0.5, "norm_offset": 1.0,
         "layers": (LayerConfig(NEVER, NEVER), LayerConfig(LATE, LATE), LayerConfig(NOW, LATE))},
        {"workers": 6},
    ),
    "norms behind modules of a wide pass": (
        {"norm_before": False, "norm_after": True}, {"workers": 6, "widths": (8,), "wide": True}
    ),
    "a norm of all heads, and a bias behind attention": (
        {"qk_norm": QkNorm.ALL, "out_bias": True, "num_lanes": 1,
         "layers": (LayerConfig(NOW, NOW),) * 2},
        {"workers": 3},
    ),
    "tiles by turns": (
        {"num_lanes": 1, "num_kv_heads": 1, "hidden_size": 48, "num_heads": 3, "head_dim": 20,
         "intermediate_size": 40, "vocab_size": 311, "layers": (LayerConfig(NEVER, NEVER),) * 3},
        {"workers": 2, "folds": True},
    ),
    "float16": ({}, {"workers": 4, "dtype": "float16"}),
    "float8": ({"hidden_size": 32}, {"workers": 4, "dtype": "float8"}),
    "a wide pass": ({"hidden_size": 48}, {"workers": 4, "widths": (8,), "wide": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_logits_have_the_kernel_s_bits(make_rig: MakeRig, name: str) -> None:
    fields, wish = CASES[name]
    weights = random_weights(tiny_config(**fields), seed=3)
    rig = make_rig(weights, **({"widths": (4,)} | wish))
    outcome = rig.launch(Ask(tokens=PROMPT, all_logits=True))
    assert outcome.healthy, (outcome.error, outcome.fault)
    replay = Replay(rig.layout, weights)
    for token, expected in zip(PROMPT, outcome.logits, strict=True):
        np.testing.assert_array_equal(replay.feed(token).view(np.uint32), expected.view(np.uint32))


def test_powers_of_two_are_rounded_once_at_each_step() -> None:
    """Of arguments whose sums lie halfway between two floats, or nearly."""
    x = np.linspace(-0.5, 0.5, 200_001).astype(np.float32)
    found = exp2(x)
    error = np.abs(found - np.exp2(x.astype(np.float64))) / np.spacing(found)
    assert error.max() < 1
    special = exp2(np.array([-200, -126, 0, 1, 128, np.nan], np.float32))
    np.testing.assert_array_equal(special, [0, 2.0**-126, 1, 2, np.inf, np.nan])
