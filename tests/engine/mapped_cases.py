"""Models of families all of whose fields others have; a part of dense_cases.py."""

from typing import Any

from .sizes import GLM_MOE, MIXTURE, MLA, ODD, SHARP, YARN

DOTS = {"n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True}
NEAR = {"rope_type": "default", "rope_theta": 50.0}
# Latent attention without experts.
YOUTU = {name: MLA[name] for name in MLA if name in ODD or name.endswith(("rank", "head_dim"))}
ODD_HEADS = ODD | {"head_dim": 10}
TWO_WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"]
MAPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "dots.llm1": ("Dots1", ODD_HEADS | GLM_MOE | DOTS),
    "dots.llm1, groups, windows, biases": (
        "Dots1",
        ODD_HEADS
        | GLM_MOE
        | {"n_shared_experts": 2, "n_group": 3, "topk_group": 2, "attention_bias": True}
        | {"sliding_window": 9, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "Solar Open": ("SolarOpen", ODD | GLM_MOE | {"rope_parameters": YARN}),
    "Solar Open, groups, biases, tied": (
        "SolarOpen",
        ODD
        | GLM_MOE
        | {"head_dim": 12, "attention_bias": True, "n_group": 3, "topk_group": 2}
        | {"n_shared_experts": 2, "norm_topk_prob": False, "tie_word_embeddings": True},
    ),
    "Youtu": ("Youtu", YOUTU | {"rope_parameters": YARN | SHARP}),
    "Youtu, queries of the stream, halves, tied": (
        "Youtu",
        YOUTU | {"q_lora_rank": None, "rope_interleave": False, "tie_word_embeddings": True},
    ),
    "IQuest-Coder": ("IQuestCoder", ODD),
    "IQuest-Coder, biases, tied": (
        "IQuestCoder",
        ODD | {"attention_bias": True, "tie_word_embeddings": True},
    ),
    "HyperCLOVA X": (
        "HyperCLOVAX",
        ODD
        | {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.6}
        | {"logits_scaling": 0.7},
    ),
    "HyperCLOVA X, normed before modules alone, biases, tied": (
        "HyperCLOVAX",
        ODD | {"use_post_norm": False, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "Mellum 2": (
        "Mellum",
        ODD
        | MIXTURE
        | {"sliding_window": 9, "layer_types": TWO_WINDOWS}
        | {"mlp_layer_types": ["sparse", "dense", "sparse"]}
        | {"rope_parameters": {"full_attention": YARN, "sliding_attention": NEAR}},
    ),
    "Mellum 2, no windows, biases, tied": (
        "Mellum",
        ODD
        | MIXTURE
        | {"norm_topk_prob": False, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "VaultGemma": (
        "VaultGemma",
        ODD
        | {"sliding_window": 9, "query_pre_attn_scalar": 10}
        | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
    ),
    "VaultGemma, not capped, biases, tied": (
        "VaultGemma",
        ODD
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
        | {"attention_bias": True, "tie_word_embeddings": True, "layer_types": TWO_WINDOWS},
    ),
    "FlexOlmo": ("FlexOlmo", ODD_HEADS | {"num_experts": 7, "num_experts_per_tok": 3}),
    "FlexOlmo, normalised, biases, tied": (
        "FlexOlmo",
        ODD_HEADS
        | {"num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True}
        | {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 3},
    ),
}
