"""Dense families from their own folders: the logits and the tokens that Transformers computes."""

import copy
import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import BackendError, CheckpointError, ConfigError
from monolane.model import (
    Checkpoint,
    Quantization,
    parse_config,
    quantize_folder,
    read_config,
    render_config,
)

from .sizes import (
    ALPHA,
    COMMAND,
    CONVS,
    DEEPSEEK4,
    DELTA,
    ERNIE_MOE,
    EVEN,
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
    LONG,
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

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
load_file = pytest.importorskip("safetensors.torch").load_file
save_file = pytest.importorskip("safetensors.torch").save_file

TOKENS, PROMPT, DRAWN = 40, 12, 12  # longer than every window, and than YaRN's trained context
Make = Callable[..., Path]
ALL_FULL: dict[str, Any] = {"layer_types": ["full_attention"] * 3}
TWO_WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
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
    "Gemma 4 unified, shared keys, capped, tied": (
        "Gemma4Unified",
        ODD
        | UNIFIED
        | {"num_hidden_layers": 6, "layer_types": TWO_WINDOWS * 2, "sliding_window": 5}
        | {"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "tie_word_embeddings": True}
        | {"final_logit_softcapping": 3.0, "num_global_key_value_heads": None},
    ),
}


# What reference alone computes, and the field by which the others refuse it.
ALONE = {case: "hyper" for case in CASES if case.startswith("DeepSeek-V4")}
ALONE |= {case: "index" for case in CASES if case.startswith(("DeepSeek-V3.2", "GLM-5"))}
PLACES = [
    pytest.param(case, backend, id=f"{backend}-{case}")
    for backend in ("reference", "cpu")
    for case in CASES
    if backend == "reference" or case not in ALONE
]


@dataclass(frozen=True)
class Theirs:
    """A folder that Transformers wrote, and what it computes of it."""

    folder: Path
    ids: np.ndarray[Any, Any]  # [TOKENS]
    logits: np.ndarray[Any, Any]  # [TOKENS, V]
    tokens: list[int]  # greedily behind the first PROMPT ids
    rendered: np.ndarray[Any, Any]  # logits of the same weights behind the config that we write


def write(folder: Path, kind: str = "Llama", **changes: Any) -> Any:
    """Write a small random model as Transformers saves it; return it."""
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 96,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "initializer_range": 0.15,  # large enough for softmax and silu to bend
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    apart = ("Gemma3", "Gemma3n", "Gemma4", "Gemma4Unified", "Llama4", "Qwen3_5")
    apart += ("Qwen3_5Moe",)
    kinds = {kind: f"{kind}Text" for kind in apart}
    # A copy: Transformers writes its defaults into the objects it is given, which cases share.
    fields = copy.deepcopy(fields | changes)
    config = getattr(transformers, f"{kinds.get(kind, kind)}Config")(**fields)
    config._experts_implementation = "eager"  # others want sizes that are multiples
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith(
                ("bias", "scale", "base", "sinks", ".D")
            ):  # off one and zero, so that they show
                parameter += 0.3 * torch.randn_like(parameter)
            if name.endswith("gate_up_proj"):  # gates and ups beyond GPT-OSS's limit, 7
                parameter *= 4
        for name, correction in model.named_buffers():
            # It decides about as often as scores do.
            if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar")):
                correction += 0.3 * torch.randn_like(correction)
            if name.endswith("tid2eid"):  # of each token other experts
                count = config.n_routed_experts
                each = [torch.randperm(count)[: correction.shape[1]] for _ in correction]
                correction[:] = torch.stack(each)
    model.save_pretrained(folder)
    if kind == "DeepseekV4":  # of which Transformers 5.24 writes other names than it reads
        names = {"model.embed_tokens.": "embed.", "model.hc_head.hc_": "hc_head_", "model.": ""}
        names |= {".attn.norm.": ".attn.kv_norm."}
        stored = load_file(folder / "model.safetensors")
        for old, new in names.items():
            stored = {name.replace(old, new): array for name, array in stored.items()}
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
    if kind == "KimiLinear":  # published files have the first layer's MLP under a name of its own
        stored = load_file(folder / "model.safetensors")
        dense = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
        renamed = {
            name.replace("block_sparse_moe", "mlp")
            if name.endswith(dense) and ".shared_experts." not in name
            else name: array
            for name, array in stored.items()
        }
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    return model


def sees(folder: Path, kind: str, text: dict[str, Any], vision: Any) -> Any:
    """Write a small random model with a vision tower; return it."""
    torch.manual_seed(0)
    text = {"initializer_range": 0.15, "max_position_embeddings": 64, **text}
    tied = {name: text[name] for name in ("tie_word_embeddings",) if name in text}
    outer = tied | ({"audio_config": HEARING} if kind == "Gemma4Unified" else {})
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, **outer)
    config.text_config._experts_implementation = "eager"
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    model.save_pretrained(folder)
    if kind == "Kimi_K25":  # which Transformers 5.24 writes with a name of the tower in the text's
        stored = load_file(folder / "model.safetensors")
        old, new = "language_model.model.blocks.", "language_model.model.layers."
        renamed = {name.replace(old, new): array for name, array in stored.items()}
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    return model


def compute(model: Any, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return what Transformers computes: float32 [len(ids), V]."""
    with torch.no_grad():
        logits: np.ndarray[Any, Any] = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    return logits


@pytest.fixture
def dense(tmp_path: Path) -> Make:
    """Writes a small random model."""

    def make(kind: str = "Llama", **changes: Any) -> Path:
        write(tmp_path / "dense", kind, **changes)
        return tmp_path / "dense"

    return make


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Theirs]:
    """Computes a case with Transformers, once for all backends."""

    @functools.cache
    def make(case: str) -> Theirs:
        kind, changes = CASES[case]
        folder = tmp_path_factory.mktemp("dense")
        model = write(folder, kind, **changes)
        ids = np.random.default_rng(0).integers(model.config.vocab_size, size=TOKENS)
        logits = compute(model, ids)
        # ``min_new_tokens`` never chooses the end of the text, 2.
        length = {"max_new_tokens": DRAWN, "min_new_tokens": DRAWN}
        prompt = torch.from_numpy(ids[:PROMPT])[None]
        drawn = model.generate(prompt, **length, do_sample=False, pad_token_id=0)[0, PROMPT:]
        raw = render_config(read_config(folder))
        said = type(model.config).from_dict(raw)
        said._experts_implementation = "eager"
        again = type(model)(said).eval()
        again.load_state_dict(model.state_dict())
        return Theirs(folder, ids, logits, drawn.tolist(), compute(again, ids))

    return make


@pytest.mark.parametrize(("case", "backend"), PLACES)
def test_logits_and_tokens_are_those_of_transformers(
    case: str, backend: str, theirs: Callable[[str], Theirs]
) -> None:
    it = theirs(case)
    with Engine.load(it.folder, backend, "float32") as engine:
        at_once = engine.logits(it.ids.tolist())
        engine.backend.truncate(0, 0)
        begin = [engine.backend.logits(0, it.ids[:PROMPT].tolist())]
        by_token = [engine.backend.logits(0, [token]) for token in it.ids[PROMPT:].tolist()]
        params = SamplingParams(max_tokens=DRAWN, logit_bias={2: -np.inf})
        answer = engine.generate(it.ids[:PROMPT].tolist(), params)
    # As in tests/tune/test_retrofit.py: 13 products in a row whose sums have at most 96 terms, each
    # off by sqrt(96) 2^-24, in two evaluations, 6 times that for the largest of all logits; and
    # angles that are rounded differently, 3 units of up to 40 radians in each of 3 layers.
    sums, angles = 6 * np.sqrt(2 * 13 * 96), 6 * 3 * TOKENS * np.sqrt(3)
    bound = (sums + angles) * 2.0**-24 * it.logits.std()  # 9.2e-5 of the logits' size
    assert np.abs(at_once - it.logits).max() < bound
    assert np.abs(np.concatenate([*begin, *by_token]) - it.logits).max() < bound
    assert it.logits.std() > 0.5  # logits near zero would agree whatever the model did
    assert list(answer.token_ids) == it.tokens


@pytest.mark.parametrize("case", ALONE)
def test_what_reference_alone_computes_is_refused_by_its_name(
    case: str, theirs: Callable[[str], Theirs]
) -> None:
    with pytest.raises(BackendError, match=f"^{ALONE[case]}: the cpu backend does not compute it"):
        Engine.load(theirs(case).folder, "cpu", "float32")


def test_gemma3n_is_read_out_of_a_model_that_sees_and_hears(
    theirs: Callable[[str], Theirs], tmp_path: Path
) -> None:
    """Its towers ask for a library of pictures: here are the text's tensors under their names."""
    it = theirs("Gemma 3n")
    text = json.loads((it.folder / "config.json").read_text())
    whole = {"model_type": "gemma3n", "text_config": text, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    renamed = {
        name.replace("model.", "model.language_model.", 1): array
        for name, array in load_file(it.folder / "model.safetensors").items()
    }
    towers = {f"model.{x}.weight": torch.ones(2) for x in ("vision_tower", "embed_audio")}
    save_file(renamed | towers, tmp_path / "model.safetensors", {"format": "pt"})
    for backend in ("reference", "cpu"):
        with Engine.load(tmp_path, backend, "float32") as engine:
            found = engine.logits(it.ids.tolist())
        assert np.abs(found - it.logits).max() < 1e-4 * it.logits.std()  # derived above


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_says_the_same_to_transformers(
    case: str, theirs: Callable[[str], Theirs]
) -> None:
    np.testing.assert_array_equal(theirs(case).rendered, theirs(case).logits)


@pytest.mark.parametrize(
    "kind", ["Mixtral", "Qwen2Moe", "Qwen3Moe", "GptOss", "DeepseekV2", "DeepseekV3"]
)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_tied_experts_weigh_what_they_do_in_transformers(
    kind: str, backend: str, tmp_path: Path
) -> None:
    """Which of equals are chosen torch leaves open. So all experts tie, and all are alike."""
    if kind.startswith("Deepseek"):
        model = write(tmp_path, kind, **MLA)
    else:
        count = "num_experts" if kind.startswith("Qwen") else "num_local_experts"
        model = write(tmp_path, kind, **{count: 5, "num_experts_per_tok": 2}, num_hidden_layers=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".experts" in name:
                parameter[:] = parameter[:1].clone()
            if ".router." in name or ".mlp.gate.weight" in name:
                parameter[:] = 0
        for name, correction in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                correction[:] = 0
    model.save_pretrained(tmp_path)
    ids = np.arange(TOKENS)
    wanted = compute(model, ids)
    with Engine.load(tmp_path, backend, "float32") as engine:
        found = engine.logits(ids.tolist())
    assert np.abs(found - wanted).max() < 1e-4 * wanted.std()  # derived above
    assert wanted.std() > 0.5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_oracle_widens_16_bits_exactly(dtype: str, dense: Make, tmp_path: Path) -> None:
    source = dense("Qwen3", head_dim=12)
    tensors = {
        name: array.to(getattr(torch, dtype))
        for name, array in load_file(source / "model.safetensors").items()
    }
    logits = []
    for name, as_dtype in (("narrow", dtype), ("wide", "float32")):
        folder = tmp_path / name
        shutil.copytree(source, folder)
        stored = {key: value.to(getattr(torch, as_dtype)) for key, value in tensors.items()}
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        with Engine.load(folder, "reference") as engine:
            logits.append(engine.logits(range(TOKENS)))
    assert np.array_equal(logits[0], logits[1])


@pytest.mark.parametrize("kind", ["Mixtral", "Qwen3Moe", "Qwen3Next", "DeepseekV3"])
def test_mixtures_of_experts_are_quantised(kind: str, dense: Make, tmp_path: Path) -> None:
    sizes = {"head_dim": 16, "num_hidden_layers": 2, "num_experts_per_tok": 2}
    inner = {} if kind == "Mixtral" else {"moe_intermediate_size": 64, "mlp_only_layers": [1]}
    if kind == "DeepseekV3":  # whose kv_b_proj stays as it is
        ranks = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 16}
        groups = {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
        heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
        few = {k: x for k, x in sizes.items() if k != "head_dim"}
        source = dense(kind, **MLA | EVEN | few | heads | ranks | groups)
    else:
        few: dict[str, Any] = {"num_experts": 4}
        if kind == "Mixtral":
            few = {"num_local_experts": 4}
        if kind == "Qwen3Next":  # whose gates of states stay as they are
            few |= {"layer_types": ["linear_attention", "full_attention"]}
            few |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
            few |= {"linear_key_head_dim": 12, "linear_value_head_dim": 16}
            few |= {"shared_expert_intermediate_size": 32, "rms_norm_eps": 1e-3}
        source = dense(kind, **sizes, **few, **inner)
    quantize_folder(source, tmp_path / "int8", Quantization(8))
    before, after = read_config(source), read_config(tmp_path / "int8")
    assert replace(after, quantization=None) == before
    ids = list(range(TOKENS))
    logits = {}
    for name, folder, backend in (
        ("plain", source, "reference"),
        ("codes", tmp_path / "int8", "reference"),
        ("cpu", tmp_path / "int8", "cpu"),
    ):
        with Engine.load(folder, backend) as engine:
            logits[name] = engine.logits(ids)
    for name in ("codes", "cpu"):
        assert 0 < np.abs(logits[name] - logits["plain"]).mean() < 0.1 * logits["plain"].std()


def test_quantised_dense_models_run(dense: Make, tmp_path: Path) -> None:
    source = dense("Qwen2", head_dim=8)
    report = quantize_folder(source, tmp_path / "int8", Quantization(8))
    assert read_config(tmp_path / "int8").stored_dtype == "int8"
    assert max(matrix.relative_error for matrix in report.matrices) < 0.01
    ids = list(range(TOKENS))
    with Engine.load(source, "cpu", "float32") as engine:
        plain = engine.logits(ids)
    with Engine.load(tmp_path / "int8", "cpu") as engine:
        coarse = engine.logits(ids)
    assert 0 < np.abs(coarse - plain).mean() < 0.1 * plain.std()


@pytest.mark.parametrize("kind", ["SmolLM3", "Olmo2", "Gemma3"])
def test_new_families_are_quantised(kind: str, dense: Make, tmp_path: Path) -> None:
    source = dense(kind, head_dim=16, num_hidden_layers=2)
    quantize_folder(source, tmp_path / "int8", Quantization(8))
    before, after = read_config(source), read_config(tmp_path / "int8")
    assert replace(after, quantization=None) == before
    ids = list(range(TOKENS))
    with Engine.load(source, "reference") as engine:
        plain = engine.logits(ids)
    with Engine.load(tmp_path / "int8", "reference") as engine:
        coarse = engine.logits(ids)
    assert 0 < np.abs(coarse - plain).mean() < 0.1 * plain.std()


TOWER = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "patch_size": 14}
SIGLIP = TOWER | {"num_attention_heads": 1, "image_size": 28, "model_type": "siglip_vision_model"}
PIXTRAL = TOWER | {"num_attention_heads": 1, "image_size": 28, "model_type": "pixtral"}
LLAMA_VISION = TOWER | {
    **dict.fromkeys(("vision_output_dim", "projector_input_dim", "projector_output_dim"), 8),
    "num_attention_heads": 1,
    "image_size": 28,
    "model_type": "llama4_vision_model",
}
KIMI_VISION = TOWER | {"num_attention_heads": 1, "pos_emb_height": 2, "pos_emb_width": 2}
PATCHES = {"patch_size": 2, "mm_embed_dim": 10, "mm_posemb_size": 5, "output_proj_dims": 10}
HEARING = {"audio_embed_dim": 7}
QWEN_VL = {"hidden_size": 8, "intermediate_size": 8, "depth": 1, "num_heads": 1}
# Case: class of Transformers, its text and its tower.
SEEING: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Qwen3.5": ("Qwen3_5", HYBRID | {"model_type": "qwen3_5_text"}, QWEN_VL),
    "Qwen3.5-MoE": ("Qwen3_5Moe", HYBRID_MOE | {"model_type": "qwen3_5_moe_text"}, QWEN_VL),
    "Qwen3-VL": (
        "Qwen3VL",
        ODD
        | {"num_hidden_layers": 3, "model_type": "qwen3_vl_text"}
        | {"rope_parameters": {"rope_type": "default", "mrope_section": [3, 2, 2]}},
        QWEN_VL | {"deepstack_visual_indexes": [0]},
    ),
    "Gemma 4": (
        "Gemma4",
        ODD
        | GEMMA4
        | {"num_hidden_layers": 3, "model_type": "gemma4_text", "sliding_window": 9}
        | {"hidden_size_per_layer_input": 7, "vocab_size_per_layer_input": 97},
        TOWER | {"num_attention_heads": 1, "head_dim": 8, "model_type": "gemma4_vision"},
    ),
    "Gemma 4 unified": (
        "Gemma4Unified",
        ODD
        | UNIFIED
        | {"num_hidden_layers": 3, "model_type": "gemma4_unified_text", "sliding_window": 9}
        | {"attention_k_eq_v": True, "final_logit_softcapping": 3.0},
        PATCHES,
    ),
    "Llama 4": (
        "Llama4",
        ODD | LLAMA4 | {"num_hidden_layers": 3, "model_type": "llama4_text"},
        LLAMA_VISION,
    ),
    "Mistral 3": (
        "Mistral3",
        ODD | {"num_hidden_layers": 3, "model_type": "ministral3", "rope_parameters": GROWING},
        PIXTRAL,
    ),
    "Mistral Small 4": (
        "Mistral3",
        MISTRAL4 | {"num_hidden_layers": 3, "model_type": "mistral4"},
        PIXTRAL,
    ),
    "Kimi-K2.5": (
        "Kimi_K25",
        MLA | {"num_hidden_layers": 3, "model_type": "kimi_k2", "tie_word_embeddings": False},
        KIMI_VISION,
    ),
    "Mistral Small 3": (
        "Mistral3",
        ODD | {"num_hidden_layers": 3, "model_type": "mistral", "sliding_window": None},
        PIXTRAL,
    ),
}


@pytest.mark.parametrize("case", SEEING)
def test_the_text_is_read_out_of_a_model_that_sees(case: str, tmp_path: Path) -> None:
    kind, text, tower = SEEING[case]
    model = sees(tmp_path, kind, text, tower | {"out_hidden_size": 60})
    names, others = list(Checkpoint.open(tmp_path)), ["visual.", "vision_tower.", "vision_model."]
    others += ["vision_embedder."]
    assert any(name.removeprefix("model.").startswith(tuple(others)) for name in names)
    ids = np.random.default_rng(0).integers(97, size=TOKENS)
    # Transformers' whole Llama 4 asks its text for pictures, and fails where it was given none.
    wanted = compute(model.language_model if kind == "Llama4" else model, ids)
    for backend in ("reference", "cpu"):
        with Engine.load(tmp_path, backend, "float32") as engine:
            found = engine.logits(ids.tolist())
            engine.backend.truncate(0, 0)
            by_token = [engine.backend.logits(0, [token]) for token in ids.tolist()]
        for logits in (found, np.concatenate(by_token)):
            assert np.abs(logits - wanted).max() < 1e-4 * wanted.std()  # derived above
    assert wanted.std() > 0.5


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["longrope", "su"])
def test_longrope_is_chosen_by_the_context_that_a_model_is_loaded_for(
    backend: str, name: str, tmp_path: Path
) -> None:
    model = write(tmp_path, "Phi3", **ODD | {"hidden_size": 72, "head_dim": 12, **LONG})
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["rope_parameters"]["rope_type"] = name
    (tmp_path / "config.json").write_text(json.dumps(raw))
    ids = np.random.default_rng(0).integers(97, size=TOKENS)
    found = {}
    for context, count in ((64, TOKENS), (32, 30)):
        wanted = compute(model, ids[:count])
        with Engine.load(tmp_path, backend, "float32", context=context) as engine:
            found[context] = engine.logits(ids[:count].tolist())
            engine.backend.truncate(0, 0)
            by_token = [engine.backend.logits(0, [token]) for token in ids[:count].tolist()]
        for logits in (found[context], np.concatenate(by_token)):
            assert np.abs(logits - wanted).max() < 1e-4 * wanted.std()  # derived above
    assert np.abs(found[64][:30] - found[32]).max() > 0.1
    config = read_config(tmp_path)
    assert parse_config(render_config(config)) == config


def test_experts_of_a_layer_in_one_tensor_are_the_same(tmp_path: Path) -> None:
    """As Qwen3.5's mixtures are published; Transformers writes one for each."""
    model = write(tmp_path / "each", "Qwen3_5Moe", **HYBRID_MOE)
    shutil.copytree(tmp_path / "each", tmp_path / "merged")
    save_file(model.state_dict(), tmp_path / "merged" / "model.safetensors", {"format": "pt"})
    names = {name: set(Checkpoint.open(tmp_path / name)) for name in ("each", "merged")}
    assert len(names["each"]) > len(names["merged"])
    assert "model.layers.0.mlp.experts.gate_up_proj" in names["merged"]
    logits = []
    for name in names:
        with Engine.load(tmp_path / name, "reference", "float32") as engine:
            logits.append(engine.logits(range(TOKENS)))
    np.testing.assert_array_equal(*logits)
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    wrong = {
        "model.layers.1.mlp.experts.down_proj": merged["model.norm.weight"].clone()[None, None]
    }
    save_file(merged | wrong, tmp_path / "merged" / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1.mlp.experts.down_proj': expected shape \[7, 60"):
        Engine.load(tmp_path / "merged", "reference")


def test_experts_of_a_layer_in_one_tensor_are_quantised_one_by_one(tmp_path: Path) -> None:
    sizes = EVEN | {"head_dim": 16, "shared_expert_intermediate_size": 32}
    sizes |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 16}
    model = write(tmp_path / "each", "Qwen3_5Moe", **HYBRID_MOE | sizes)
    shutil.copytree(tmp_path / "each", tmp_path / "merged")
    save_file(model.state_dict(), tmp_path / "merged" / "model.safetensors", {"format": "pt"})
    for name in ("each", "merged"):
        quantize_folder(tmp_path / name, tmp_path / f"{name}-int8", Quantization(8))
    one, other = (Checkpoint.open(tmp_path / f"{name}-int8") for name in ("each", "merged"))
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    with Engine.load(tmp_path / "each", "reference") as plain:
        wanted = plain.logits(range(TOKENS))
    with Engine.load(tmp_path / "merged-int8", "cpu") as engine:
        found = engine.logits(range(TOKENS))
    assert 0 < np.abs(found - wanted).mean() < 0.1 * wanted.std()


def test_gemma3_is_read_out_of_a_model_that_sees(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = {"hidden_size": 96, "intermediate_size": 64, "num_attention_heads": 6, "head_dim": 16}
    text |= {"num_hidden_layers": 3, "num_key_value_heads": 2, "vocab_size": 97}
    text |= {"sliding_window": 9, "sliding_window_pattern": 2, "initializer_range": 0.15}
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    vision = small | {"num_attention_heads": 1, "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**text, max_position_embeddings=64),
        vision_config=transformers.SiglipVisionConfig(**vision),
        mm_tokens_per_image=1,
    )
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "sees")
    ids = np.arange(TOKENS)
    wanted = compute(model, ids)
    for backend in ("reference", "cpu"):
        with Engine.load(tmp_path / "sees", backend, "float32") as engine:
            found = engine.logits(ids.tolist())
        assert np.abs(found - wanted).max() < 1e-4 * wanted.std()  # derived in the test above
    assert wanted.std() > 0.5
    told: list[tuple[str, int, int]] = []
    quantize_folder(
        tmp_path / "sees",
        tmp_path / "int8",
        Quantization(8),
        progress=lambda *step: told.append(step),
    )
    assert told[-1][1] == told[-1][2]  # the tower is not counted
    with Engine.load(tmp_path / "int8", "reference") as engine:
        coarse = engine.logits(ids.tolist())
    assert 0 < np.abs(coarse - wanted).mean() < 0.1 * wanted.std()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: expected one"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: expected 1"),
        ({"mlp_bias": True}, "mlp_bias: expected false, got True"),
        ({"hidden_act": "gelu"}, "hidden_act: expected one of 'silu', got 'gelu'"),
    ],
)
def test_what_no_executor_computes_is_refused(
    edit: dict[str, Any], message: str, dense: Make
) -> None:
    folder = dense()
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | edit))
    with pytest.raises(ConfigError, match=message):
        Engine.load(folder, "reference")
