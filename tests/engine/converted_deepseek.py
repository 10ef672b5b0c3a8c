"""What the converter makes of DeepSeeks, and of what is built like them; see converted.py."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

# Architectures with latent attention and DeepSeek's mixtures.
LATENTS = ("deepseek2", "mistral4", "deepseek32", "glm-dsa")
_INDEXED = ("deepseek32", "glm-dsa")
_SIGMOIDS, _ROOTS = 2, 4  # of expert_gating_func
_RATIOS = {"sliding_attention": 0}  # tokens of an entry; of others the config says it
# Of DeepSeek-V4's own files: names in a layer, but for the index's and the experts'.
_PARTS = {"wkv.weight": "kv", "wgate.weight": "gate", "ape": "ape", "norm.weight": "norm"}
_LAYER = {
    "attn_norm.weight": "attn_norm",
    "ffn_norm.weight": "ffn_norm",
    "attn.attn_sink": "attn_sinks",
    "attn.wq_a.weight": "attn_q_a",
    "attn.wq_b.weight": "attn_q_b",
    "attn.q_norm.weight": "attn_q_a_norm",
    "attn.wkv.weight": "attn_kv",
    "attn.kv_norm.weight": "attn_kv_a_norm",
    "attn.wo_a.weight": "attn_output_a",
    "attn.wo_b.weight": "attn_output_b",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b",
    "attn.indexer.weights_proj.weight": "indexer.proj",
    **{f"attn.compressor.{part}": f"attn_compressor_{x}" for part, x in _PARTS.items()},
    **{f"attn.indexer.compressor.{part}": f"indexer_compressor_{x}" for part, x in _PARTS.items()},
    "ffn.gate.weight": "ffn_gate_inp",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid",
    "ffn.shared_experts.w1.weight": "ffn_gate_shexp",
    "ffn.shared_experts.w2.weight": "ffn_down_shexp",
    "ffn.shared_experts.w3.weight": "ffn_up_shexp",
}
_OUTER = {"embed.weight": "token_embd", "norm.weight": "output_norm", "head.weight": "output"}
_EXPERTS = {"w1": "gate", "w2": "down", "w3": "up"}


def _mixture_metadata(config: Any) -> dict[str, Any]:
    sigmoid = config.model_type not in ("deepseek_v2", "mistral4")
    kinds = getattr(config, "mlp_layer_types", None)
    dense = config.first_k_dense_replace if kinds is None else kinds.count("dense")
    said = {
        "leading_dense_block_count": dense,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_gating_func": _SIGMOIDS if sigmoid else 1,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
    }
    if config.model_type != "deepseek_v2" and config.norm_topk_prob:
        said["expert_weights_norm"] = True
    return said


def latent_metadata(config: Any, architecture: str, whole: bool) -> dict[str, Any]:
    """What it says of latent attention and of DeepSeek's mixtures."""
    head = config.qk_nope_head_dim + config.qk_rope_head_dim
    sizes = {"attention.key_length": head, "attention.value_length": config.v_head_dim}
    said: dict[str, Any] = {f"{key}_mla": size for key, size in sizes.items()} | {
        "attention.head_count_kv": 1,
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
    }
    if whole:
        said = {"attention.head_count_kv": config.num_attention_heads, **sizes}
    said |= {
        "vocab_size": config.vocab_size,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "rope.dimension_count": config.qk_rope_head_dim,
    }
    if config.model_type == "youtu":
        said["leading_dense_block_count"] = config.num_hidden_layers
        said["expert_feed_forward_length"] = config.intermediate_size
        said["expert_shared_count"] = 0
    else:
        said |= _mixture_metadata(config)
    if architecture == "mistral4":  # whose config says nothing of how experts are scored
        del said["expert_gating_func"]
    if config.q_lora_rank is not None:
        said["attention.q_lora_rank"] = config.q_lora_rank
    if "mscale_all_dim" in config.rope_parameters:
        sharpened = 0.1 * config.rope_parameters["mscale_all_dim"]
        said["rope.scaling.yarn_log_multiplier"] = sharpened
    if architecture in _INDEXED:
        said |= _index_metadata(config)
    if architecture == "glm-dsa":
        said["attention.indexer.types"] = [kind == "full" for kind in config.indexer_types]
    return said


def _index_metadata(config: Any) -> dict[str, Any]:
    return {
        "attention.indexer.head_count": config.index_n_heads,
        "attention.indexer.key_length": config.index_head_dim,
        "attention.indexer.top_k": config.index_topk,
    }


def deepseek4_metadata(config: Any) -> dict[str, Any]:
    """What it says of DeepSeek-V4, whose config is of another form."""
    layers, ratios = config.num_hidden_layers, _RATIOS | config.compress_rates
    main, stretched = (config.rope_parameters[x] for x in ("main", "compress"))
    said: dict[str, Any] = {
        "block_count": layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "embedding_length_out": config.hidden_size * config.hc_mult,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.sliding_window": config.sliding_window,
        "attention.output_group_count": config.o_groups,
        "attention.output_lora_rank": config.o_lora_rank,
        "attention.compress_ratios": [ratios[kind] for kind in config.layer_types],
        "attention.compress_rope_freq_base": config.compress_rope_theta,
        "rope.dimension_count": config.qk_rope_head_dim,
        "rope.freq_base": main["rope_theta"],
        "hyper_connection.count": config.hc_mult,
        "hyper_connection.sinkhorn_iterations": config.hc_sinkhorn_iters,
        "hyper_connection.epsilon": config.hc_eps,
        "hash_layer_count": config.mlp_layer_types.count("hash_moe"),
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_gating_func": _ROOTS,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": config.norm_topk_prob,
        "swiglu_clamp_exp": [config.swiglu_limit] * layers,
        "swiglu_clamp_shexp": [config.swiglu_limit] * layers,
        **_index_metadata(config),
    }
    if stretched["rope_type"] == "yarn":
        context = stretched["original_max_position_embeddings"]
        said |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": stretched["factor"],
            "rope.scaling.original_context_length": context,
        }
    ids = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    named = {f"deepseek4.{key}": x for key, x in said.items()}
    return {"general.architecture": "deepseek4", **named, **ids}


def deepseek4_tensors(stored: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of a DeepSeek-V4's own files, in floats, as it writes them.

    It writes experts in MXFP4 alone.
    """
    found: dict[str, np.ndarray] = {}
    experts: dict[str, dict[int, np.ndarray]] = {}
    hashed = {name.split(".")[1] for name in stored if name.endswith("tid2eid")}
    for name, tensor in stored.items():
        array = tensor.numpy()
        _, layer, *rest = (*name.split("."), "", "")
        part = ".".join(x for x in rest if x)
        if name in _OUTER:
            found[f"{_OUTER[name]}.weight"] = array
        elif name.startswith("hc_head_"):
            found[f"output_{name.replace('head_', '')}.weight"] = array
        elif match := re.fullmatch(r"ffn\.experts\.(\d+)\.(w\d)\.weight", part):
            stacked = f"blk.{layer}.ffn_{_EXPERTS[match[2]]}_exps.weight"
            experts.setdefault(stacked, {})[int(match[1])] = array
        elif part == "ffn.gate.bias":
            if layer not in hashed:
                found[f"blk.{layer}.exp_probs_b.bias"] = array
        elif part.startswith("hc_"):
            found[f"blk.{layer}.{part}.weight"] = array
        else:
            array = array.astype(np.int32) if part == "ffn.gate.tid2eid" else array
            found[f"blk.{layer}.{_LAYER[part]}.weight"] = array
    for name, each in experts.items():
        found[name] = np.stack([each[i] for i in range(len(each))])
    return found


def split_ups(name: str, array: np.ndarray, config: Any) -> dict[str, np.ndarray]:
    """What makes keys and values of a latent, of each head: that of keys is turned."""
    block, plain = f"blk.{name.split('.')[2]}", config.qk_nope_head_dim
    heads = array.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    keys = np.ascontiguousarray(heads[:, :plain].swapaxes(1, 2))
    values = np.ascontiguousarray(heads[:, plain:])
    return {f"{block}.attn_k_b.weight": keys, f"{block}.attn_v_b.weight": values}
