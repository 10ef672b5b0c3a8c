"""Families with the shapes of a published model: as many weights as Transformers counts, planned
for a GPU, and timed."""

from typing import Any

import pytest

from monolane.model import parse_config
from monolane.sim import Scenario, find_machine, run_scenario

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Whose defaults in Transformers are the sizes of a published model, or near them.
KINDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {},
    "qwen3_5_moe_text": {},
    "glm4_moe_lite": {},
    "exaone_moe": {},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {  # Hunyuan-A13B
        "head_dim": 128,
        "intermediate_size": 3072,
        "num_experts": 64,
        "moe_topk": 8,
        "num_key_value_heads": 8,
        "vocab_size": 128167,
    },
    "ministral3": {},
    "gemma2": {},
    "granitemoehybrid": {"layer_types": ["mamba"] * 5 + ["attention"] + ["mamba"] * 4}
    | {"num_hidden_layers": 10},
    "nemotron_h": {},
    "falcon_h1": {},
    "bamba": {"attn_layer_indices": [9, 18, 27]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_published_shapes_are_planned_and_timed(kind: str) -> None:
    theirs = transformers.AutoConfig.for_model(kind, **KINDS[kind])
    config = parse_config({**theirs.to_dict(), "dtype": "bfloat16"})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(theirs)
    counted = {id(x): x.numel() for x in model.parameters()}
    # A router's correction is no parameter there.
    counted |= {id(x): x.numel() for name, x in model.named_buffers() if "correction" in name}
    assert config.num_parameters == sum(counted.values())
    found = run_scenario(
        Scenario(model=kind, config=config, machine=find_machine("h200"), dtype="bfloat16")
    )
    low, high = found.interval
    assert low < found.speed < high
    # A token reads every weight but the embedding's other rows, and those of experts not chosen.
    assert found.record()["bytes"] < 2 * config.num_parameters + 1e9
