"""What the converter says of Gemma 3n and 4; see converted.py."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def gemma3n_metadata(config: Any, whole: bool) -> dict[str, Any]:
    """What the converter says of several streams, sparse gates and keys that are read again."""
    patterns = torch.tensor(config.activation_sparsity_pattern, dtype=torch.float32)
    said: dict[str, Any] = {
        "attention.sliding_window": config.sliding_window,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "altup.active_idx": config.altup_active_idx,
        "altup.num_inputs": config.altup_num_inputs,
        "activation_sparsity_scale": torch.distributions.Normal(0, 1).icdf(patterns).tolist(),
        "attention.sliding_window_pattern": [x == "sliding_attention" for x in config.layer_types],
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
    }
    if not whole:
        said["final_logit_softcapping"] = config.final_logit_softcapping
    return said


def gemma4_metadata(config: Any) -> dict[str, Any]:
    """What the converter says of layers that differ in their heads, keys and MLPs."""
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    wide, local = config.per_layer_config[windowed.index(False)], config.head_dim
    shared, inner = config.num_kv_shared_layers, config.intermediate_size
    first = config.num_hidden_layers - shared
    said: dict[str, Any] = {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": windowed,
        "attention.shared_kv_layers": shared,
        "attention.key_length": wide.head_dim,
        "attention.value_length": wide.head_dim,
        "attention.key_length_swa": local,
        "attention.value_length_swa": local,
        "rope.dimension_count": wide.head_dim,
        "rope.dimension_count_swa": local,
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
        "embedding_length_per_layer_input": getattr(config, "hidden_size_per_layer_input", 0),
    }
    if getattr(config, "enable_moe_block", False):
        said |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.top_k_experts,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    if config.final_logit_softcapping:
        said["final_logit_softcapping"] = config.final_logit_softcapping
    if config.use_double_wide_mlp:
        layers = range(config.num_hidden_layers)
        said["feed_forward_length"] = [inner * (1 if i < first else 2) for i in layers]
    if wide.num_key_value_heads != config.num_key_value_heads:
        heads = config.num_key_value_heads, wide.num_key_value_heads
        said["attention.head_count_kv"] = [heads[0] if x else heads[1] for x in windowed]
    return said
