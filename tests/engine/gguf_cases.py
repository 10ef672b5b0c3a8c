"""Models of each family whose .gguf files are read, of sizes that hold in any of them."""

from typing import Any

from .mapped_cases import YOUTU
from .sizes import (
    ALPHA,
    COMMAND,
    CONVS,
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
    KIMI,
    LLAMA3,
    LLAMA4,
    MIXTURE,
    MLA,
    NEMOTRON,
    SECTIONS,
    UNIFIED,
    YARN,
)

VOCAB = 96
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}
GEMMA = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
}
PART = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
SHARPENED = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}
GRANITE3 = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
    "num_local_experts": 7,
    "num_experts_per_tok": 3,
}
LATENT = MLA | {"vocab_size": VOCAB}
# Case: class of Transformers, architecture in the file, changes of the config.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama 2": ("Llama", "llama", {"num_key_value_heads": 8}),
    "Llama 3": ("Llama", "llama", {"rope_parameters": LLAMA3}),
    "Llama 3.2, tied": ("Llama", "llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "Llama, biases": ("Llama", "llama", {"attention_bias": True}),
    "linear": ("Llama", "llama", {"rope_parameters": LINEAR}),
    "heads wider than hidden / heads": ("Llama", "llama", {"head_dim": 12}),
    "Mistral": ("Mistral", "llama", {"sliding_window": None}),
    "Qwen2": ("Qwen2", "qwen2", {}),
    "Qwen2.5, YaRN": ("Qwen2", "qwen2", {"rope_parameters": YARN}),
    "Qwen3": ("Qwen3", "qwen3", {"head_dim": 12}),
    "SmolLM3": ("SmolLM3", "smollm3", {"num_hidden_layers": 5, "use_sliding_window": False}),
    "Mixtral": ("Mixtral", "llama", {"num_local_experts": 5, "num_experts_per_tok": 3}),
    "Qwen2-MoE": (
        "Qwen2Moe",
        "qwen2moe",
        {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
        | {"shared_expert_intermediate_size": 80},
    ),
    "Qwen3-MoE": (
        "Qwen3Moe",
        "qwen3moe",
        {"head_dim": 12, "num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": True}
        | {"moe_intermediate_size": 48},
    ),
    "GPT-OSS": (
        "GptOss",
        "gpt-oss",
        {"head_dim": 12, "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 9}
        | {"rope_parameters": YARN | {"truncate": False}},
    ),
    "DeepSeek-V2": (
        "DeepseekV2",
        "deepseek2",
        LATENT | {"topk_method": "group_limited_greedy", "rope_parameters": SHARPENED},
    ),
    "DeepSeek-V2-Lite": (
        "DeepseekV2",
        "deepseek2",
        LATENT | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2},
    ),
    "DeepSeek-V3": (
        "DeepseekV3",
        "deepseek2",
        LATENT | {"rope_parameters": SHARPENED | {"mscale": 0.7, "mscale_all_dim": 0.7}},
    ),
    "Kimi-K2": (
        "DeepseekV3",
        "deepseek2",
        LATENT | {"n_group": 1, "topk_group": 1, "rope_parameters": SHARPENED},
    ),
    "Granite": (
        "Granite",
        "granite",
        {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.6}
        | {"logits_scaling": 2.0},
    ),
    "Seed-OSS": ("SeedOss", "seed_oss", {"head_dim": 12}),
    "Ernie 4.5": ("Ernie4_5", "ernie4_5", {"head_dim": 12}),
    "Ernie 4.5, mixtures": ("Ernie4_5_Moe", "ernie4_5-moe", ERNIE_MOE | {"head_dim": 12}),
    "Command-R": ("Cohere", "command-r", {"logit_scale": 0.7, "tie_word_embeddings": True}),
    "Command-R7B": (
        "Cohere2",
        "cohere2",
        COMMAND | {"num_hidden_layers": 5, "tie_word_embeddings": True},
    ),
    # Whose chunks, and what grows by position, begin beyond its 40 tokens: files say nothing of it.
    "Llama 4": (
        "Llama4Text",
        "llama4",
        LLAMA4
        | {"num_hidden_layers": 5, "head_dim": 12, "no_rope_layer_interval": 4}
        | {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}
        | {"rope_parameters": LLAMA3},
    ),
    "Phi-3": ("Phi3", "phi3", {"rope_parameters": PART, "sliding_window": None}),
    "GLM-4": ("Glm4", "glm4", {"head_dim": 12, "rope_parameters": PART, "attention_bias": True}),
    "GLM, the first": ("Glm", "chatglm", {"head_dim": 8, "rope_parameters": PART}),
    "GLM-4 without biases": (
        "Glm4",
        "glm4",
        {"head_dim": 12, "rope_parameters": PART, "attention_bias": False},
    ),
    "EXAONE 4": ("Exaone4", "exaone4", {"sliding_window": 9, "sliding_window_pattern": 2}),
    "EXAONE 4 without windows": (
        "Exaone4",
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3},
    ),
    "GLM-4.5": (
        "Glm4Moe",
        "glm4moe",
        GLM_MOE | {"head_dim": 12, "use_qk_norm": True, "rope_parameters": PART},
    ),
    "GLM-4.5, groups, biases": (
        "Glm4Moe",
        "glm4moe",
        GLM_MOE
        | {"head_dim": 12, "attention_bias": True, "rope_parameters": PART}
        | {"n_group": 3, "topk_group": 2, "norm_topk_prob": False},
    ),
    "MiniMax-M2": (
        "MiniMaxM2",
        "minimax-m2",
        {"num_local_experts": 7, "num_experts_per_tok": 3, "head_dim": 12}
        | {"rope_parameters": PART},
    ),
    "LFM2": ("Lfm2", "lfm2", CONVS | {"vocab_size": VOCAB, "tie_word_embeddings": True}),
    "LFM2-MoE": (
        "Lfm2Moe",
        "lfm2moe",
        CONVS | MIXTURE | {"vocab_size": VOCAB, "num_dense_layers": 1, "tie_word_embeddings": True},
    ),
    "Qwen3-Next": ("Qwen3Next", "qwen3next", DELTA | {"vocab_size": VOCAB}),
    "Qwen3.5": ("Qwen3_5Text", "qwen35", HYBRID | SECTIONS | {"vocab_size": VOCAB}),
    "Qwen3.5-MoE": ("Qwen3_5MoeText", "qwen35moe", HYBRID_MOE | {"vocab_size": VOCAB}),
    "Qwen3-VL": ("Qwen3", "qwen3vl", {"head_dim": 12}),  # whose text is a Qwen3's
    "Kimi Linear": (
        "KimiLinear",
        "kimi-linear",
        KIMI | {"vocab_size": VOCAB, "linear_num_heads": 6, "n_group": 1, "topk_group": 1},
    ),
    "GLM-4.7-Flash": ("Glm4MoeLite", "deepseek2", LATENT | {"n_group": 1, "topk_group": 1}),
    "K-EXAONE": (
        "ExaoneMoe",
        "exaone-moe",
        MIXTURE | {"sliding_window": 9, "sliding_window_pattern": 2, "num_shared_experts": 2},
    ),
    "Hunyuan": ("HunYuanDenseV1", "hunyuan-dense", {"head_dim": 12, "rope_parameters": ALPHA}),
    "Hunyuan-MoE": (
        "HunYuanMoEV1",
        "hunyuan-moe",
        {"head_dim": 12, "num_experts": 7, "moe_topk": 3},
    ),
    "Ministral 3": ("Ministral3", "mistral3", {"head_dim": 12, "rope_parameters": GROWING}),
    "OLMo 3": (
        "Olmo3",
        "olmo2",
        {"sliding_window": 9, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
        | {"rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_theta": 100.0}}},
    ),
    "Gemma 2": (
        "Gemma2",
        "gemma2",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9}
        | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
    ),
    "Granite 4": (
        "GraniteMoeHybrid",
        "granitehybrid",
        GRANITE4 | {"vocab_size": VOCAB, "head_dim": 10, "shared_intermediate_size": 74},
    ),
    "Granite 4, mixtures": (
        "GraniteMoeHybrid",
        "granitehybrid",
        GRANITE4
        | {"vocab_size": VOCAB, "head_dim": 10, "mamba_n_groups": 1}
        | {"num_local_experts": 7, "num_experts_per_tok": 3, "tie_word_embeddings": True},
    ),
    "Granite 4 without Mamba-2": (
        "GraniteMoeHybrid",
        "granite",
        GRANITE4
        | {"vocab_size": VOCAB, "head_dim": 10, "shared_intermediate_size": 74}
        | {"layer_types": ["attention"] * 3, "position_embedding_type": "rope"},
    ),
    "Nemotron-H": (
        "NemotronH",
        "nemotron_h",
        NEMOTRON
        | {"vocab_size": VOCAB}
        | {"layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba", "mlp"]},
    ),
    "Nemotron 3": (
        "NemotronH",
        "nemotron_h_moe",
        NEMOTRON
        | {"vocab_size": VOCAB, "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba"]}
        | {"n_routed_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 38}
        | {"moe_shared_expert_intermediate_size": 54, "routed_scaling_factor": 1.5},
    ),
    "Falcon-H1": ("FalconH1", "falcon-h1", FALCON | {"vocab_size": VOCAB}),
    "Falcon-H1, normed": (
        "FalconH1",
        "falcon-h1",
        FALCON | {"vocab_size": VOCAB, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "OLMo 2": ("Olmo2", "olmo2", {}),
    "Gemma 3": (
        "Gemma3Text",
        "gemma3",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9, "num_hidden_layers": 7}
        | GEMMA,
    ),
    "Gemma 3n": (
        "Gemma3nText",
        "gemma3n",
        GEMMA3N | {"vocab_size_per_layer_input": VOCAB, "head_dim": 12},
    ),
    "Gemma 3n, four streams, one width": (
        "Gemma3nText",
        "gemma3n",
        GEMMA3N
        | {"vocab_size_per_layer_input": VOCAB, "head_dim": 12, "intermediate_size": 74}
        | {"altup_num_inputs": 4, "num_kv_shared_layers": 0, "final_logit_softcapping": 30.0},
    ),
    "Gemma 4": (
        "Gemma4Text",
        "gemma4",
        GEMMA4 | {"attention_k_eq_v": True, "sliding_window": 9, "tie_word_embeddings": True},
    ),
    "Gemma": ("Gemma", "gemma", {"num_key_value_heads": 1, "head_dim": 12}),
    "EXAONE 3.5": (
        "Exaone",
        "exaone",
        {"num_key_value_heads": 2, "rope_parameters": LLAMA3, "tie_word_embeddings": True},
    ),
    "dots.llm1": (
        "Dots1",
        "dots1",
        GLM_MOE
        | {"n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True}
        | {"sliding_window": None},
    ),
    "Solar Open": (
        "SolarOpen",
        "glm4moe",
        GLM_MOE | {"head_dim": 12, "rope_parameters": PART | {"partial_rotary_factor": 1.0}},
    ),
    "Youtu": (
        "Youtu",
        "deepseek2",
        YOUTU | {"vocab_size": VOCAB, "rope_parameters": SHARPENED, "tie_word_embeddings": True},
    ),
    "IQuest-Coder": ("IQuestCoder", "llama", {"head_dim": 12}),
    "Granite 3, mixtures": ("GraniteMoe", "granitemoe", GRANITE3),
    "Granite 3, mixtures, shared": (
        "GraniteMoeShared",
        "granitemoe",
        GRANITE3 | {"shared_intermediate_size": 46, "tie_word_embeddings": True},
    ),
    "OLMoE": ("Olmoe", "olmoe", {"num_experts": 7, "num_experts_per_tok": 3}),
    "Arcee": ("Arcee", "arcee", {"num_key_value_heads": 2, "rope_parameters": YARN}),
    "Gemma 4 unified": (
        "Gemma4UnifiedText",
        "gemma4",
        UNIFIED
        | {"attention_k_eq_v": True, "sliding_window": 9, "tie_word_embeddings": True}
        | {"final_logit_softcapping": 3.0},
    ),
    "Gemma 4, mixtures": (
        "Gemma4Text",
        "gemma4",
        GEMMA4
        | {"enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "sliding_window": 9}
        | {"moe_intermediate_size": 40, "attention_k_eq_v": True, "tie_word_embeddings": True},
    ),
    "Gemma 4, shared keys": (
        "Gemma4Text",
        "gemma4",
        GEMMA4
        | {"num_hidden_layers": 6, "layer_types": GEMMA4["layer_types"] * 2, "sliding_window": 5}
        | {"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "tie_word_embeddings": True}
        | {
            "final_logit_softcapping": 3.0,
            "hidden_size_per_layer_input": 10,
            "vocab_size_per_layer_input": 96,
            "num_global_key_value_heads": None,
        },
    ),
}
