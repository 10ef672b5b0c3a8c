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
COMMAND = {"logit_scale": 0.7, "sliding_window": 9}
ERNIE_MOE = {
    "moe_num_experts": 7,
    "moe_k": 3,
    "moe_intermediate_size": 12,
    "moe_num_shared_experts": 2,
}
LLAMA4: dict[str, Any] = {
    "intermediate_size_mlp": 90,
    "intermediate_size": 38,
    "num_local_experts": 7,
    "num_experts_per_tok": 3,
    "interleave_moe_layer_step": 2,
    "no_rope_layer_interval": 3,
    "attention_chunk_size": 9,
    "floor_scale": 8,
    "attn_scale": 0.3,
}
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
# Kimi's delta rule, beside latent attention that does not turn.
KIMI: dict[str, Any] = {
    **{name: x for name, x in MLA.items() if name not in ("n_routed_experts", "q_lora_rank")},
    "first_k_dense_replace": 1,
    "num_local_experts": 12,
    "rms_norm_eps": 1e-3,  # as above
    "linear_head_dim": 11,
    "linear_num_heads": 5,
    "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
# The same of Qwen3.5, whose dense models have no experts, and whose mixtures' weights add up to 1.
HYBRID = {name: x for name, x in DELTA.items() if name not in (*MIXTURE, "norm_topk_prob")}
HYBRID = {name: x for name, x in HYBRID.items() if name != "shared_expert_intermediate_size"}
HYBRID_MOE = {name: x for name, x in DELTA.items() if name != "norm_topk_prob"}
# Mamba-2: six heads in three groups, as wide as the stream.
MAMBA: dict[str, Any] = {
    **ODD,
    "rms_norm_eps": 1e-3,  # as above: what a state says is normed
    "mamba_n_heads": 6,
    "mamba_d_head": 10,
    "mamba_n_groups": 3,
    "mamba_d_state": 9,
    "mamba_expand": 1,
}
GRANITE4: dict[str, Any] = {
    **MAMBA,
    "layer_types": ["mamba", "attention", "mamba"],
    "shared_intermediate_size": 54,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
}
FALCON: dict[str, Any] = {
    **MAMBA,
    "mamba_d_ssm": 60,
    "embedding_multiplier": 2.7,
    "attention_in_multiplier": 0.9,
    "key_multiplier": 0.37,
    "attention_out_multiplier": 0.61,
    "ssm_in_multiplier": 1.3,
    "ssm_multipliers": [0.7, 1.2, 0.8, 1.1, 0.9],
    "ssm_out_multiplier": 0.43,
    "mlp_multipliers": [1.7, 0.57],
    "lm_head_multiplier": 0.81,
}
NEMOTRON: dict[str, Any] = {
    **ODD,
    "layer_norm_epsilon": 1e-3,
    "mamba_num_heads": 6,
    "mamba_head_dim": 10,
    "n_groups": 3,
    "ssm_state_size": 9,
    # Below it Transformers cuts steps off in prompts alone. The others are of random weights.
    "time_step_min": 1e-30,
    "time_step_floor": 0.01,
    "time_step_max": 1.0,
}
# Three positions of a token, of which text has one: two pairs of a head go by each.
SECTIONS: dict[str, Any] = {
    "head_dim": 24,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 100.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 2, 2],
        "mrope_interleaved": True,
    },
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.1, 1.3, 1.0, 2.0, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 4.0, 7.0, 9.0],
    "original_max_position_embeddings": 32,  # of 64, and of 40 tokens
}
LONG = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}
ALPHA = {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 30.0, "factor": 1.0}
GROWING = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
# Mistral 4: latents, queries that grow with their position, mixtures that are chosen out of all.
MISTRAL4: dict[str, Any] = MLA | {
    "n_group": 1,
    "topk_group": 1,
    "rope_parameters": GROWING | {"partial_rotary_factor": 6 / 16},
}
# An index that chooses a few of the keys. Of few heads the scores of several keys would tie, at 0.
INDEXED: dict[str, Any] = MLA | {
    "index_n_heads": 11,
    "index_head_dim": 10,
    "index_topk": 7,
}
DEEPSEEK4: dict[str, Any] = {
    "hidden_size": 60,
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
    "head_dim": 14,
    "vocab_size": 97,
    "num_hidden_layers": 4,
    "layer_types": [
        *("compressed_sparse_attention", "sliding_attention"),
        *("heavily_compressed_attention", "compressed_sparse_attention"),
    ],
    "compress_rates": {"compressed_sparse_attention": 3, "heavily_compressed_attention": 7},
    "mlp_layer_types": ["hash_moe", "moe", "moe", "hash_moe"],
    "sliding_window": 9,
    "q_lora_rank": 22,
    "partial_rotary_factor": 6 / 14,
    "o_groups": 3,
    "o_lora_rank": 11,
    "index_n_heads": 9,
    "index_head_dim": 10,
    "index_topk": 4,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
    "moe_intermediate_size": 38,
    "n_routed_experts": 7,
    "num_experts_per_tok": 3,
    "swiglu_limit": 0.7,
    "rope_theta": 100.0,
    "compress_rope_theta": 300.0,
}
EVEN = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 64}  # for codes
SHARP = {"mscale": 1.0, "mscale_all_dim": 0.5}
GEMMA3N: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 5,
    "num_kv_shared_layers": 1,
    "intermediate_size": [74, 74, 50],
    "activation_sparsity_pattern": [0.9, 0.0, 0.5],
    "laurel_rank": 9,
    "altup_num_inputs": 3,
    "hidden_size_per_layer_input": 10,
    "vocab_size_per_layer_input": 90,  # of 97: the others have the first one's numbers
    "final_logit_softcapping": 3.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 100.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    },
}
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
UNIFIED = {name: x for name, x in GEMMA4.items() if "per_layer" not in name}  # of Gemma 4, 12B
