"""Models of each family that Transformers computes, of sizes that are multiples of little."""

from typing import Any

from .mapped_cases import MAPPED, ODD_HEADS, TWO_WINDOWS
from .sizes import (
    ALPHA,
    COMMAND,
    CONVS,
    DEEPSEEK4,
    DELTA,
    ERNIE_MOE,
    FALCON,
    GEMMA3N,
    GEMMA4,
    GLM_MOE,
    GRANITE4,
    GROWING,
    HYBRID,
    HYBRID_MOE,
    INDEXED,
    KIMI,
    LLAMA3,
    LLAMA4,
    MAMBA,
    MISTRAL4,
    MIXTURE,
    MLA,
    NEMOTRON,
    ODD,
    SECTIONS,
    SHARED,
    SHARP,
    UNIFIED,
    YARN,
)

ALL_FULL: dict[str, Any] = {"layer_types": ["full_attention"] * 3}
GRANITES = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
    "num_local_experts": 7,
    "num_experts_per_tok": 3,
}
# Case: class of Transformers, changes of the config.
CASES: dict[str, tuple[str, dict[str, Any]]] = MAPPED | {
    "Llama 2": ("Llama", {"num_key_value_heads": 8}),
    "Llama 3, grouped queries": ("Llama", {"rope_parameters": LLAMA3}),
    "Llama 3.2, tied": ("Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "heads wider than hidden / heads": ("Llama", {"head_dim": 12}),
    "Mistral": ("Mistral", {"sliding_window": 9}),
    "Mistral without windows": ("Mistral", {"sliding_window": None}),
    "Qwen2": ("Qwen2", {"rms_norm_eps": 1e-6}),
    "Qwen2, windows from layer 1": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "Qwen3": ("Qwen3", {"head_dim": 12}),
    "Qwen2.5, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "Llama, odd sizes": ("Llama", ODD),
    "Llama, biases": ("Llama", ODD | {"attention_bias": True}),
    "linear stretch": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "YaRN": ("Llama", ODD | {"rope_parameters": YARN}),
    "YaRN, all options": (
        "Qwen2",
        ODD
        | {
            "rope_parameters": YARN
            | {"beta_fast": 1.5, "beta_slow": 0.5, "truncate": False}
            | {"mscale": 2.0, "mscale_all_dim": 0.5}
        },
    ),
    "YaRN, amplitude given": (
        "Qwen3",
        ODD | {"rope_parameters": YARN | {"attention_factor": 0.75}},
    ),
    "Qwen3, biases": ("Qwen3", ODD | {"attention_bias": True}),
    "SmolLM3": ("SmolLM3", ODD | {"no_rope_layers": [1, 0, 1]}),
    "SmolLM3, biases": ("SmolLM3", {"attention_bias": True}),
    "SmolLM3, windows, YaRN": (
        "SmolLM3",
        ODD
        | {
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": 9,
            "rope_parameters": YARN,
        },
    ),
    "LFM2": (
        "Lfm2",
        CONVS
        | {"tie_word_embeddings": True, "block_auto_adjust_ff_dim": True, "block_multiple_of": 24},
    ),
    "LFM2, odd sizes": ("Lfm2", ODD | CONVS | {"conv_L_cache": 4}),
    "LFM2-MoE": (
        "Lfm2Moe",
        ODD | CONVS | MIXTURE | {"num_dense_layers": 1, "routed_scaling_factor": 1.5},
    ),
    "Granite": (
        "Granite",
        ODD
        | {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.6}
        | {"logits_scaling": 2.0},
    ),
    "Seed-OSS": ("SeedOss", ODD),
    "Seed-OSS, biases behind": ("SeedOss", ODD | {"attention_out_bias": True}),
    "Ernie 4.5": ("Ernie4_5", ODD),
    "Ernie 4.5, mixtures": ("Ernie4_5_Moe", ODD | ERNIE_MOE),
    "Ernie 4.5, some mixtures, nothing shared": (
        "Ernie4_5_Moe",
        ODD
        | ERNIE_MOE
        | {"moe_layer_start_index": 0, "moe_layer_end_index": 1, "moe_num_shared_experts": 0},
    ),
    "Command-R": ("Cohere", ODD | {"logit_scale": 0.7, "tie_word_embeddings": True}),
    "Command-R7B": ("Cohere2", ODD | COMMAND | {"sliding_window_pattern": 2}),
    "Command-R7B, biases": (
        "Cohere2",
        ODD | COMMAND | {"layer_types": TWO_WINDOWS, "attention_bias": True},
    ),
    "Llama 4": ("Llama4", ODD | LLAMA4),
    "Llama 4, all turned, biases, a step in the stretch": (
        "Llama4",
        ODD
        | LLAMA4
        | {"use_qk_norm": False, "no_rope_layers": [1, 1, 1], "moe_layers": [0, 2]}
        | {"attention_bias": True, "tie_word_embeddings": True, "attention_chunk_size": 16}
        | {"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}},
    ),
    "Llama 4, without experts or chunks": (
        "Llama4",
        ODD
        | LLAMA4
        | {"moe_layers": [], "attention_chunk_size": None, "no_rope_layers": [0, 1, 0]},
    ),
    "EXAONE 4": ("Exaone4", ODD | {"sliding_window": 9, "sliding_window_pattern": 2}),
    "EXAONE 4 without windows": ("Exaone4", ODD | ALL_FULL | {"sliding_window": None}),
    "OLMo 3": ("Olmo3", ODD | {"sliding_window": 9, "layer_types": TWO_WINDOWS}),
    "OLMo 3, stretched": (
        "Olmo3",
        ODD
        | {"sliding_window": 9, "layer_types": TWO_WINDOWS}
        | {"rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_theta": 50.0}}},
    ),
    "Phi-3": ("Phi3", ODD | {"sliding_window": None}),
    "Phi-4, part of a head, windows": (
        "Phi3",
        {"sliding_window": 9, "rope_parameters": {"partial_rotary_factor": 0.75}},
    ),
    "GLM-4": ("Glm4", ODD | {"head_dim": 12, "eos_token_id": 2}),
    "GLM-4.5": ("Glm4Moe", ODD | GLM_MOE | {"head_dim": 12, "use_qk_norm": True}),
    "GLM-4.5, groups, biases": (
        "Glm4Moe",
        ODD | GLM_MOE | {"head_dim": 12, "attention_bias": True, "n_group": 3, "topk_group": 2},
    ),
    "MiniMax-M2": (
        "MiniMaxM2",
        ODD
        | {"num_local_experts": 7, "num_experts_per_tok": 3, "head_dim": 12}
        | {"rope_parameters": {"partial_rotary_factor": 0.5}},
    ),
    "Mixtral": ("Mixtral", ODD | {"num_local_experts": 5, "num_experts_per_tok": 3}),
    "Mixtral, windows": ("Mixtral", {"num_local_experts": 4, "sliding_window": 9}),
    "Qwen2-MoE": ("Qwen2Moe", ODD | MIXTURE | SHARED),
    "Qwen2-MoE, dense layers, normalised": (
        "Qwen2Moe",
        ODD
        | MIXTURE
        | SHARED
        | {"num_hidden_layers": 4, "mlp_only_layers": [3], "decoder_sparse_step": 2}
        | {"norm_topk_prob": True, "qkv_bias": False},
    ),
    "Qwen2-MoE, windows": (
        "Qwen2Moe",
        ODD
        | MIXTURE
        | SHARED
        | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    ),
    "Qwen3-MoE": ("Qwen3Moe", ODD | MIXTURE | {"norm_topk_prob": True}),
    "Qwen3-MoE, biases": ("Qwen3Moe", ODD | MIXTURE | {"attention_bias": True}),
    "Qwen3-MoE, dense layers, not normalised": (
        "Qwen3Moe",
        ODD | MIXTURE | {"num_hidden_layers": 4, "mlp_only_layers": [3], "decoder_sparse_step": 2},
    ),
    "Qwen3-MoE, windows": (
        "Qwen3Moe",
        ODD | MIXTURE | {"use_sliding_window": True, "sliding_window": 9, "mlp_only_layers": [1]},
    ),
    "GPT-OSS": (
        "GptOss",
        ODD | {"num_local_experts": 7, "num_experts_per_tok": 3, "sliding_window": 9},
    ),
    "GPT-OSS, its stretch at an odd pair, no windows, no biases in attention": (
        "GptOss",
        ODD
        | {"num_local_experts": 5, "num_experts_per_tok": 1, "attention_bias": False}
        | {"layer_types": ["full_attention"] * 3, "num_key_value_heads": 6}
        | {"rope_parameters": YARN | {"truncate": False}},
    ),
    "GPT-OSS, not stretched": (
        "GptOss",
        {"num_local_experts": 3, "num_experts_per_tok": 3, "sliding_window": 4, "head_dim": 8}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    ),
    "DeepSeek-V3": ("DeepseekV3", MLA | {"rope_parameters": YARN | SHARP}),
    "DeepSeek-V3, halves, more experts shared": (
        "DeepseekV3",
        MLA
        | {"rope_interleave": False, "n_shared_experts": 2, "norm_topk_prob": False}
        | {"rope_parameters": YARN | {"attention_factor": 0.75}, "first_k_dense_replace": 0},
    ),
    "Kimi-K2": (
        "DeepseekV3",
        MLA | {"n_group": 1, "topk_group": 1, "rope_parameters": YARN | {"mscale_all_dim": 0.707}},
    ),
    "Mistral 4": ("Mistral4", MISTRAL4),
    "Mistral 4, queries of the stream, halves": (
        "Mistral4",
        MISTRAL4
        | {"q_lora_rank": None, "rope_interleave": False, "norm_topk_prob": False}
        | {"first_k_dense_replace": 0, "n_shared_experts": 2}
        | {"rope_parameters": GROWING | {"original_max_position_embeddings": 9, "factor": 8.0}},
    ),
    "DeepSeek-V3.2": ("DeepseekV32", INDEXED | {"rope_parameters": YARN | SHARP}),
    "DeepSeek-V3.2, more keys chosen than there are": (
        "DeepseekV32",
        INDEXED | {"index_topk": 64, "rope_parameters": YARN, "mlp_layer_types": ["sparse"] * 3},
    ),
    "GLM-5": (
        "GlmMoeDsa",
        INDEXED | {"n_group": 1, "topk_group": 1, "indexer_types": ["full", "shared", "full"]},
    ),
    "GLM-5, one index for all, YaRN, tied": (
        "GlmMoeDsa",
        INDEXED
        | {"indexer_types": ["full", "shared", "shared"], "tie_word_embeddings": True}
        | {"rope_parameters": YARN | SHARP, "norm_topk_prob": False, "n_shared_experts": 2},
    ),
    "DeepSeek-V4": ("DeepseekV4", DEEPSEEK4 | {"rope_parameters": YARN}),
    "DeepSeek-V4, all entries chosen, two streams, not stretched": (
        "DeepseekV4",
        DEEPSEEK4
        | {"index_topk": 50, "hc_mult": 2, "hc_sinkhorn_iters": 1, "sliding_window": 3}
        | {"mlp_layer_types": ["moe"] * 4, "tie_word_embeddings": True},
    ),
    "DeepSeek-V2": (
        "DeepseekV2",
        MLA | {"topk_method": "group_limited_greedy", "rope_parameters": YARN | SHARP},
    ),
    "DeepSeek-V2-Lite": ("DeepseekV2", MLA | {"q_lora_rank": None, "routed_scaling_factor": 1.0}),
    "Qwen3-Next": ("Qwen3Next", DELTA | {"mlp_only_layers": [1]}),
    "Qwen3-Next, dense, a short kernel, all of a head turned, YaRN": (
        "Qwen3Next",
        DELTA
        | {"mlp_only_layers": [0, 1, 2, 3], "linear_conv_kernel_dim": 2}
        | {"layer_types": ["full_attention", "linear_attention"] * 2}
        | {"linear_num_value_heads": 3, "head_dim": 12}
        | {"rope_parameters": YARN | {"partial_rotary_factor": 1.0}},
    ),
    "Qwen3.5": ("Qwen3_5", HYBRID),
    "Qwen3.5, three positions, as many value heads as key heads": (
        "Qwen3_5",
        HYBRID | SECTIONS | {"linear_num_value_heads": 3, "tie_word_embeddings": True},
    ),
    "Qwen3.5-MoE": ("Qwen3_5Moe", HYBRID_MOE),
    "Kimi Linear": ("KimiLinear", KIMI),
    "GLM-4.7-Flash": ("Glm4MoeLite", MLA | {"n_group": 1, "topk_group": 1}),
    "GLM-4.7-Flash, groups, halves": (
        "Glm4MoeLite",
        MLA
        | {"rope_interleave": False, "mlp_layer_types": ["sparse", "dense", "sparse"]}
        | {"q_lora_rank": None, "norm_topk_prob": False},
    ),
    "K-EXAONE": (
        "ExaoneMoe",
        ODD | MIXTURE | {"sliding_window": 9, "sliding_window_pattern": 2, "num_shared_experts": 2},
    ),
    "Hunyuan": ("HunYuanDenseV1", ODD | {"rope_parameters": ALPHA}),
    "Hunyuan, biases": ("HunYuanDenseV1", ODD | {"attention_bias": True}),
    "Hunyuan-MoE": ("HunYuanMoEV1", ODD | {"num_experts": 7, "moe_topk": 3}),
    "Ministral 3": ("Ministral3", ODD | {"rope_parameters": GROWING}),
    "Ministral 3, windows": (
        "Ministral3",
        {"rope_parameters": GROWING | {"attention_factor": 0.75}, "sliding_window": 9},
    ),
    "Gemma 2": (
        "Gemma2",
        ODD
        | {"sliding_window": 9, "query_pre_attn_scalar": 10}
        | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
    ),
    "Gemma 2, not capped": (
        "Gemma2",
        ODD | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "Granite 3, mixtures": ("GraniteMoe", ODD_HEADS | GRANITES),
    "Granite 3, mixtures, biases, tied": (
        "GraniteMoe",
        ODD_HEADS | GRANITES | {"attention_bias": True, "tie_word_embeddings": True},
    ),
    "Granite 3, mixtures, shared": (
        "GraniteMoeShared",
        ODD_HEADS | GRANITES | {"shared_intermediate_size": 46},
    ),
    "Granite 4": ("GraniteMoeHybrid", GRANITE4),
    "Granite 4, mixtures, one group": (
        "GraniteMoeHybrid",
        GRANITE4
        | {"num_local_experts": 7, "num_experts_per_tok": 3, "mamba_n_groups": 1}
        | {"position_embedding_type": "rope", "mamba_d_conv": 2, "mamba_conv_bias": False},
    ),
    "Granite 4 without Mamba-2, tied": (
        "GraniteMoeHybrid",
        GRANITE4
        | {"layer_types": ["attention"] * 3, "position_embedding_type": "rope"}
        | {"attention_bias": True, "tie_word_embeddings": True},
    ),
    "Nemotron-H": (
        "NemotronH",
        NEMOTRON | {"layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba", "mlp"]},
    ),
    "Nemotron 3": (
        "NemotronH",
        NEMOTRON
        | {"layers_block_type": ["mamba", "moe", "attention", "moe", "mamba", "mlp"]}
        | {"n_routed_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 38}
        | {"moe_shared_expert_intermediate_size": 54, "routed_scaling_factor": 1.5}
        | {"n_group": 3, "topk_group": 2, "use_conv_bias": False},
    ),
    "Falcon-H1": ("FalconH1", FALCON),
    "Falcon-H1, normed, as wide as the stream": (
        "FalconH1",
        FALCON
        | {"mamba_d_ssm": None, "mamba_rms_norm": True, "mamba_norm_before_gate": False}
        | {"mamba_d_head": "auto", "ssm_multipliers": None, "tie_word_embeddings": True},
    ),
    "Bamba": ("Bamba", MAMBA | {"head_dim": 12, "attn_layer_indices": [1]}),
    "OLMo 2": ("Olmo2", ODD),
    "OLMo 2, biases": ("Olmo2", ODD | {"attention_bias": True}),
    "OLMo 2, YaRN": ("Olmo2", ODD | {"rope_parameters": YARN, "num_key_value_heads": 3}),
    "Gemma 3": (
        "Gemma3",
        ODD | {"sliding_window": 9, "sliding_window_pattern": 2, "query_pre_attn_scalar": 10},
    ),
    "Gemma 3, biases": ("Gemma3", ODD | {"sliding_window": 9, "attention_bias": True}),
    "Gemma 3, stretched, tied": (
        "Gemma3",
        ODD
        | {
            "sliding_window": 7,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e3},
                "sliding_attention": YARN,
            },
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 14,
            "tie_word_embeddings": True,
        },
    ),
    "Gemma 3n": ("Gemma3n", ODD | GEMMA3N),
    "Gemma 3n, two streams, unscaled, tied": (
        "Gemma3n",
        ODD
        | GEMMA3N
        | {"altup_num_inputs": 2, "altup_correct_scale": False, "tie_word_embeddings": True}
        | {"num_kv_shared_layers": 0, "intermediate_size": 74},
    ),
    "Gemma 4": ("Gemma4", ODD | GEMMA4 | {"attention_k_eq_v": True, "sliding_window": 9}),
    "Gemma 4, mixtures": (
        "Gemma4",
        ODD
        | GEMMA4
        | {"enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "sliding_window": 9}
        | {"moe_intermediate_size": 40, "attention_k_eq_v": True, "tie_word_embeddings": True},
    ),
    "Gemma 4, shared keys, capped, tied": (
        "Gemma4",
        ODD
        | GEMMA4
        | {"num_hidden_layers": 6, "layer_types": TWO_WINDOWS * 2, "sliding_window": 5}
        | {"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "tie_word_embeddings": True}
        | {
            "final_logit_softcapping": 3.0,
            "hidden_size_per_layer_input": 10,
            "vocab_size_per_layer_input": 400,
            "num_global_key_value_heads": None,
        },
    ),
    "Gemma 4 unified": (
        "Gemma4Unified",
        ODD | UNIFIED | {"attention_k_eq_v": True, "sliding_window": 9},
    ),
    "Gemma": ("Gemma", ODD),
    "Gemma, biases, tied": (
        "Gemma",
        ODD | {"num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "EXAONE 3.5": ("Exaone", {"num_key_value_heads": 2, "rope_parameters": LLAMA3}),
    "EXAONE 3, tied": ("Exaone", ODD | {"head_dim": 10, "tie_word_embeddings": True}),
    "GLM, the first": ("Glm", ODD | {"head_dim": 12, "eos_token_id": 2}),
    "GLM, the first, no biases, tied": (
        "Glm",
        ODD
        | {"head_dim": 12, "eos_token_id": 2, "attention_bias": False, "tie_word_embeddings": True},
    ),
    "OLMoE": ("Olmoe", ODD | {"head_dim": 10, "num_experts": 7, "num_experts_per_tok": 3}),
    "OLMoE, normalised, tied": (
        "Olmoe",
        ODD
        | {"head_dim": 10, "num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True}
        | {"tie_word_embeddings": True, "num_key_value_heads": 3},
    ),
    "Arcee": ("Arcee", ODD),
    "Arcee, YaRN, biases, tied": (
        "Arcee",
        ODD | {"rope_parameters": YARN, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "Helium": ("Helium", ODD | {"head_dim": 10}),
    "Helium, tied": ("Helium", ODD | {"head_dim": 10, "tie_word_embeddings": True}),
    "Ministral": ("Ministral", ODD | {"sliding_window": 9, "layer_types": TWO_WINDOWS}),
    "Ministral, all windows": ("Ministral", ODD | {"sliding_window": 9}),
    "Code World Model": ("Cwm", ODD | {"sliding_window": 9, "rope_parameters": LLAMA3}),
    "Code World Model, no stretch": (
        "Cwm",
        ODD
        | {"sliding_window": 9, "layer_types": TWO_WINDOWS, "tie_word_embeddings": True}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    ),
    "Gemma 4 unified, shared keys, capped, tied": (
        "Gemma4Unified",
        ODD
        | UNIFIED
        | {"num_hidden_layers": 6, "layer_types": TWO_WINDOWS * 2, "sliding_window": 5}
        | {"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "tie_word_embeddings": True}
        | {"final_logit_softcapping": 3.0, "num_global_key_value_heads": None},
    ),
}
