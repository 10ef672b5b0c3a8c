"""Dense families on the monokernel: each family's config, small and odd, against the oracle.

Of the kernel, in float16, whose limits are tight enough for greedy tokens to be certain; and of the
whole engine, in bfloat16, from folders in Hub layout.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from rig import Ask, Floats, MakeRig, Rig, random_weights
from test_monokernel import check_logits, check_widths, random_ids
from tolerance import limits, oracle

from monolane import Engine, SamplingParams
from monolane.cuda import CudaExecutor, check_fit
from monolane.cuda._device import GpuInfo
from monolane.engine import _engine
from monolane.errors import BackendError
from monolane.model import (
    NEVER,
    NOW,
    LayerConfig,
    ModelConfig,
    Reduce,
    Rotary,
    Weights,
    parse_config,
    render_config,
)
from monolane.model import write_safetensors

PROMPT, DRAWN, TOKENS = 7, 8, 30  # longer than every window, and than the trained context of YARN
BLOCKS = 3  # which no size below is a multiple of
# Nothing is a multiple of what it need not be: heads apart from hidden / heads, an odd vocabulary.
ODD: dict[str, Any] = {
    "hidden_size": 28,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 53,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,  # ten-wide heads: pairs that are kept, blended and stretched
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama 3": {"model_type": "llama", "rope_parameters": LLAMA3},
    "Mistral": {"model_type": "mistral", "sliding_window": 9, "num_key_value_heads": 1},
    "Qwen2.5, tied": {
        "model_type": "qwen2",
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    },
    "Qwen3": {"model_type": "qwen3", "rope_parameters": YARN},
}
MORE: dict[str, dict[str, Any]] = {
    "Llama 2, linear": {
        "model_type": "llama",
        "num_key_value_heads": 4,
        "rope_parameters": LINEAR,
    },
    "Llama, YaRN": {"model_type": "llama", "rope_parameters": YARN | {"attention_factor": 0.75}},
    "SmolLM2, tied": {"model_type": "llama", "tie_word_embeddings": True, "head_dim": 7 * 2},
    "Qwen2": {"model_type": "qwen2", "num_attention_heads": 6, "head_dim": 34},
    "Qwen3, tied, wide heads": {
        "model_type": "qwen3",
        "head_dim": 66,  # more than a warp has threads, twice
        "tie_word_embeddings": True,
        "num_hidden_layers": 2,
    },
    "SmolLM3": {"model_type": "smollm3", "no_rope_layers": [1, 0, 1], "rope_parameters": YARN},
}
"""Cases that differ from those above in sizes and stretches."""


def config_of(case: str) -> ModelConfig:
    return parse_config(ODD | (FAMILIES | MORE)[case])


def greedy(weights: Weights, prompt: list[int]) -> list[int]:
    """The oracle's tokens behind a prompt."""
    ids = list(prompt)
    while len(ids) < len(prompt) + DRAWN:
        ids.append(int(oracle(weights, ids)[-1].argmax()))
    return ids[len(prompt) :]


def check_greedy(rig: Rig) -> None:
    """That greedy tokens are the oracle's, where none of its choices is nearer than both may err.

    The prompt is one of a few whose choices are all that clear.
    """
    for seed in range(20):
        prompt = random_ids(rig.config, PROMPT, seed)
        wanted = greedy(rig.weights, prompt)
        ids = [*prompt, *wanted[:-1]]
        top = np.sort(oracle(rig.weights, ids)[PROMPT - 1 :], axis=1)
        limit = limits(rig.weights, ids, "float16")[PROMPT - 1 :]
        if (top[:, -1] - top[:, -2] > 2 * limit).all():
            break
    else:
        raise AssertionError("no prompt has clear answers")
    for width in rig.layouts:
        rig.forget()
        outcome = rig.launch(Ask(tokens=prompt, budget=DRAWN), width=width, seed=width)
        assert outcome.healthy, (outcome.error, outcome.fault)
        assert outcome.tokens() == wanted


def check(rig: Rig) -> None:
    check_widths(rig, "float16", random_ids(rig.config, TOKENS))
    check_greedy(rig)


@pytest.mark.parametrize("case", FAMILIES)
def test_families(make_rig: MakeRig, case: str) -> None:
    """Logits of a whole prompt, in pieces and token by token; greedy tokens."""
    weights = random_weights(config_of(case))
    check(make_rig(weights, workers=BLOCKS, widths=(3,), dtype="float16"))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*FAMILIES, *MORE])
def test_families_at_every_width(make_rig: MakeRig, case: str) -> None:
    weights = random_weights(config_of(case))
    check(make_rig(weights, workers=BLOCKS, widths=(8, 1), dtype="float16", warps=4))
    check(make_rig(weights, workers=1, widths=(20,), dtype="float16", warps=1))


# What lanes and families make of each other: norms of heads over lanes that meet late, pairs side
# by side, a layer without rotary, a scale of the scores.
LANES = replace(
    parse_config(ODD | FAMILIES["Qwen3"]),
    num_lanes=2,
    layers=(
        LayerConfig(NOW, NEVER, 9),
        LayerConfig(Reduce(1), NOW, rotary="none"),
        LayerConfig(NOW, Reduce(1)),
    ),
    intermediate_size=38,
    vocab_size=54,
    rotary=Rotary(theta=100.0),
    query_scale=0.5,
)


def test_fields_of_families_in_lanes(make_rig: MakeRig) -> None:
    check(make_rig(random_weights(LANES), workers=6, widths=(3,), dtype="float16"))
