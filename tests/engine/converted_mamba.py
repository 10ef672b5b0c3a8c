"""What llama.cpp's converter makes of Granite 4, Falcon-H1 and Nemotron-H: see converted.py."""

from typing import Any

import numpy as np


def mamba_metadata(config: Any, architecture: str) -> dict[str, Any]:
    """What the converter says of Mamba-2, and of layers that have it or other modules."""
    heads, head = (
        (config.mamba_num_heads, config.mamba_head_dim)
        if architecture.startswith("nemotron")
        else (config.mamba_n_heads, config.mamba_d_head)
    )
    said: dict[str, Any] = {
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * head,
    }
    if architecture == "falcon-h1":
        return said | mamba_sizes(config)
    attends = [kind in ("full_attention", "attention") for kind in config.layer_types]
    said["attention.head_count_kv"] = [config.num_key_value_heads * x for x in attends]
    said["rope.scaling.finetuned"] = all(attends)
    if architecture.startswith("granite"):
        said["expert_count"] = config.num_local_experts
        said["expert_used_count"] = config.num_experts_per_tok
        said["expert_shared_feed_forward_length"] = config.shared_intermediate_size
        for key in ("attention.key_length", "attention.value_length"):
            said[key] = None  # it pops head_dim
        said["rope.dimension_count"] = config.hidden_size // config.num_attention_heads
        return said | mamba_sizes(config)
    said |= {
        "rope.dimension_count": config.head_dim,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.ssm_state_size,
        "ssm.group_count": config.n_groups,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
    }
    wide = config.intermediate_size
    if architecture == "nemotron_h":
        for key in ("expert_count", "expert_used_count"):
            said[key] = None
    else:
        wide = config.moe_intermediate_size
        said |= {
            "expert_feed_forward_length": wide,
            "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
            "expert_shared_count": config.n_shared_experts,
            "expert_weights_norm": config.norm_topk_prob,
            "expert_weights_scale": config.routed_scaling_factor,
            "expert_group_count": config.n_group,
            "expert_group_used_count": config.topk_group,
        }
    inner = [wide * (kind in ("mlp", "moe")) for kind in config.layers_block_type]
    return said | {"feed_forward_length": inner}


def mamba_sizes(config: Any) -> dict[str, Any]:
    """What Granite 4 and Falcon-H1 call alike."""
    return {
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.state_size": config.mamba_d_state,
        "ssm.group_count": config.mamba_n_groups,
    }


def mamba_tensor(name: str, array: np.ndarray, groups: int) -> tuple[str, np.ndarray]:
    """A tensor of Mamba-2, under the name that the package knows."""
    if name.endswith(("A_log", ".D")):
        column = array.reshape(-1, 1)
        return name, -np.exp(column) if name.endswith("A_log") else column
    if name.endswith("dt_bias"):
        return name.replace("dt_bias", "dt_proj.bias"), array
    if name.endswith("norm.weight"):
        return name, array.reshape(groups, -1)
    return name, array.squeeze() if name.endswith("conv1d.weight") else array


def granite_tensors(name: str, array: np.ndarray, config: Any) -> dict[str, np.ndarray]:
    """MLPs of Granite 4: gate and up, of experts and of what all tokens share, are parted."""
    block, of = f"blk.{name.split('.')[2]}", ""
    if name.endswith("router.weight"):
        return {f"{block}.ffn_gate_inp.weight": array}
    if ".experts." in name:
        of = "_exps"
    elif config.num_local_experts:
        of = "_shexp"
    if name.endswith(("down_proj", "output_linear.weight")):
        return {f"{block}.ffn_down{of}.weight": array}
    both = zip(("gate", "up"), np.split(array, 2, axis=-2), strict=True)
    return {f"{block}.ffn_{part}{of}.weight": np.ascontiguousarray(x) for part, x in both}


def falcon_scaled(name: str, array: np.ndarray, config: Any) -> np.ndarray:
    """Work Falcon-H1's multipliers into its weights."""
    taken = config.attention_in_multiplier
    scales = {
        "down_proj": config.mlp_multipliers[1],
        "gate_proj": config.mlp_multipliers[0],
        "k_proj": config.key_multiplier * taken,
        "q_proj": taken,
        "v_proj": taken,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    if "in_proj" in name:
        inner, shared = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
        parts = np.split(
            array * config.ssm_in_multiplier, np.cumsum([inner, inner, shared, shared])
        )
        scaled = (x * scale for x, scale in zip(parts, config.ssm_multipliers, strict=True))
        return np.concatenate(list(scaled))
    return array * next((x for part, x in scales.items() if part in name), 1.0)
