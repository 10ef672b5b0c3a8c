"""config.json as each family spells it, for the tests of all families."""

from typing import Any

from monolane.model import ModelConfig, parse_config, render_config
from monolane.model.families import FAMILIES

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
LANES = {"num_lanes": 2, "broadcast_delay": 1}  # which dense families do not look at
KINDS = list(dict.fromkeys(kind for family in FAMILIES for kind in family.model_types))
DENSE = [kind for kind in KINDS if not kind.startswith("laneformer")]
NESTED = [
    "gemma3",
    "gemma4",
    "gemma4_unified",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_vl",
    "mistral3",
    "llama4",
    "gemma3n",
    "kimi_k25",
]  # with a tower
HYBRIDS = [kind for kind in DENSE if kind.startswith(("qwen3_next", "qwen3_5"))]
# Rotary pairs are neighbours.
PAIRED = ["ernie4_5", "ernie4_5_moe", "glm4", "cohere", "cohere2", "llama4_text", "llama4"]
PAIRED += ["deepseek_v4", "glm", "helium"]
LATENT = ["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "kimi_linear"]
LATENT += ["mistral4", "kimi_k25", "deepseek_v32", "glm_moe_dsa", "youtu"]
OWN_LAYERS = ["nemotron_h", "falcon_h1", "bamba"]  # whose layer_types are not read
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def spelled(kind: str, **fields: Any) -> dict[str, Any]:
    """Return a config.json of a family: ``SIZES`` and ``fields``, where the family has them."""
    if kind.startswith("gemma4"):  # whose default is embeddings of each layer
        fields = {"hidden_size_per_layer_input": 0} | fields
    if kind.startswith("gemma3n"):  # whose last layers read others' keys
        fields = {"num_kv_shared_layers": 0} | fields
    if kind in (*HYBRIDS, "glm", "glm4", "glm4_moe"):  # whose default is a part of a head
        fields = {"partial_rotary_factor": 1.0} | fields
    if kind in NESTED:
        return {"model_type": kind, "text_config": SIZES | fields}
    if kind == "nemotron_h":
        fields = {"hybrid_override_pattern": "M-*"} | fields
    if kind == "deepseek_v4":  # whose heads share one key, and turn a small part of it
        fields = {"num_key_value_heads": 1, "qk_rope_head_dim": 4} | fields
    if kind == "dots1":  # which has no defaults for them
        fields = {"n_routed_experts": 8, "num_experts_per_tok": 6, "n_shared_experts": 1} | fields
    if kind == "deepseek_v2":  # which has no default for it
        fields = {"num_experts_per_tok": 6} | fields
    return SIZES | {"model_type": kind} | (LANES if kind.startswith("laneformer") else {}) | fields


def round_trip(config: ModelConfig) -> ModelConfig:
    """Return what a config becomes that is written and read."""
    return parse_config(render_config(config))
