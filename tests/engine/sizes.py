"""Sizes of small models, by the names that config.json has for them in each family."""

from typing import Any

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,  # eight-wide heads: pairs that are kept, blended and stretched
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,  # of 40 tokens
}
# Nothing is a multiple of what it need not be: heads apart from hidden / heads, an odd vocabulary.
ODD = {
    "hidden_size": 60,
    "intermediate_size": 74,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 14,
    "vocab_size": 97,
}
CONVS: dict[str, Any] = {
    "layer_types": ["conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
}
MIXTURE = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 38}
GLM_MOE = {
    "n_routed_experts": 12,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 38,
    "routed_scaling_factor": 1.5,
}
SHARED = {"shared_expert_intermediate_size": 54}
MLA: dict[str, Any] = {
    **ODD,
    "num_key_value_heads": 6,
    "q_lora_rank": 22,
    "kv_lora_rank": 18,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "first_k_dense_replace": 1,
    "n_routed_experts": 12,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 26,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}
del MLA["head_dim"]
# Gated delta rules: sizes that are no multiples, value heads three to a key head.
DELTA: dict[str, Any] = {
    **ODD,
    **MIXTURE,
    "norm_topk_prob": True,
    "shared_expert_intermediate_size": 22,
    "num_hidden_layers": 4,
    "partial_rotary_factor": 0.3,  # 4 of 14
    # Of 1e-6, the norm of what a state says magnifies the last bits of nearly nothing: an embedding
    # that is changed by 2e-7 then moves logits by 3.7e-5, and with this by 1.3e-5.
    "rms_norm_eps": 1e-3,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 13,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 9,
}
EVEN = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 64}  # for codes
SHARP = {"mscale": 1.0, "mscale_all_dim": 0.5}
GEMMA4: dict[str, Any] = {
    "head_dim": 12,
    "global_head_dim": 16,
    "num_global_key_value_heads": 2,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5}
        | {"rope_theta": 100.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    },
}
