"""What llama.cpp's convert_hf_to_gguf.py makes of a model of Transformers: metadata and tensors."""

from typing import Any

import gguf
import numpy as np

from .converted_deepseek import LATENTS, latent_metadata, split_ups
from .converted_gemma import gemma3n_metadata, gemma4_metadata
from .converted_mamba import falcon_scaled, granite_tensors, mamba_metadata, mamba_tensor

TURNED = (
    "llama",
    "smollm3",
    "granite",
    "granitehybrid",
    "mistral3",
    "arcee",
    "granitemoe",
)  # whose queries and keys it reorders
MAMBAS = ("granitehybrid", "falcon-h1", "nemotron_h", "nemotron_h_moe")  # which have Mamba-2
OFFSET = ("gemma", "gemma2", "gemma3")  # to whose norms it adds 1
HYBRIDS = ("qwen3next", "qwen35", "qwen35moe")  # which have gated delta rules


def metadata(config: Any, architecture: str, whole: bool = False) -> dict[str, Any]:
    """What it writes of a config.

    ``whole``: as it did earlier, with kv_b in one tensor, and without what it now says of layers.
    """
    # Where layers differ, Transformers warns of a size that is said of all of them.
    config.allow_global_per_layer_attribute_access = True
    # Models that turn nothing have none, and their files say what Transformers has by default.
    rope = getattr(config, "rope_parameters", None) or {"rope_type": "default"}
    full = rope.get("full_attention", rope)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    said: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", None),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None)
        or getattr(config, "norm_eps", None),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.freq_base": full.get("rope_theta"),
    }
    if hasattr(config, "num_experts_per_tok"):
        sigmoids = (*LATENTS, "glm4moe", "dots1")
        routed = architecture in sigmoids or architecture.startswith("nemotron")
        named = architecture in ("llama4", "granitemoe")
        local = "num_local_experts" if named else "num_experts"
        said["expert_count"] = config.n_routed_experts if routed else getattr(config, local, None)
        said["expert_used_count"] = config.num_experts_per_tok
    if architecture in ("qwen2moe", "qwen3moe", "qwen3next", "qwen35moe", "exaone-moe"):
        said["expert_feed_forward_length"] = config.moe_intermediate_size
    if architecture in ("qwen2moe", "qwen3next", "qwen35moe"):
        shared = config.shared_expert_intermediate_size
        said["expert_shared_feed_forward_length"] = shared
    if architecture.startswith("granite"):
        said |= {
            "embedding_scale": config.embedding_multiplier,
            "attention.scale": config.attention_multiplier,
            "residual_scale": config.residual_multiplier,
            "logit_scale": config.logits_scaling,
        }
    if architecture == "granitemoe":
        shared = getattr(config, "shared_intermediate_size", None)
        said["expert_shared_feed_forward_length"] = shared
    if architecture in ("glm4moe", "dots1"):
        said |= {
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_shared_count": config.n_shared_experts,
            "leading_dense_block_count": getattr(config, "first_k_dense_replace", None),
            "expert_weights_scale": config.routed_scaling_factor,
            "expert_weights_norm": config.norm_topk_prob,
            "expert_group_count": config.n_group,
            "expert_group_used_count": config.topk_group,
        }
    if architecture == "glm4moe":
        said["expert_gating_func"] = 2
    if architecture == "minimax-m2":
        said["expert_feed_forward_length"] = config.intermediate_size
        said["expert_gating_func"] = 2
    if architecture == "chatglm":
        del said["attention.key_length"], said["attention.value_length"]
    if architecture in ("phi3", "chatglm", "glm4", "glm4moe", "minimax-m2"):
        said["rope.dimension_count"] = int(head_dim * rope["partial_rotary_factor"])
    if architecture == "phi3":
        said["attention.sliding_window"] = config.sliding_window or 0
    if architecture == "exaone-moe":
        shared = config.num_shared_experts
        said |= {
            "expert_shared_count": shared,
            "expert_shared_feed_forward_length": shared * config.moe_intermediate_size,
            "expert_gating_func": 2,
            "expert_weights_scale": config.routed_scaling_factor,
            "expert_weights_norm": config.norm_topk_prob,
            "leading_dense_block_count": config.first_k_dense_replace,
            "rope.scaling.type": "none",
        }
    if architecture in ("command-r", "cohere2"):
        said |= {
            "attention.layer_norm_epsilon": config.layer_norm_eps,
            "logit_scale": config.logit_scale,
            "rope.scaling.type": "none",
        }
    if architecture == "cohere2":
        said |= {"attention.sliding_window": config.sliding_window}
        said |= {"vocab_size": config.vocab_size, "rope.dimension_count": head_dim}
    if architecture == "ernie4_5-moe":
        said |= {
            "expert_feed_forward_length": config.moe_intermediate_size,
            "interleave_moe_layer_step": config.moe_layer_interval,
            "leading_dense_block_count": config.moe_layer_start_index,
            "expert_shared_count": config.moe_num_shared_experts,
            "expert_shared_feed_forward_length": config.intermediate_size
            // config.num_key_value_heads,
        }
    if architecture == "llama4":
        said |= {
            "feed_forward_length": config.intermediate_size_mlp,
            "expert_feed_forward_length": config.intermediate_size,
            "interleave_moe_layer_step": config.interleave_moe_layer_step,
            "rope.dimension_count": head_dim,
        }
    if architecture == "hunyuan-moe":
        said["expert_feed_forward_length"] = config.intermediate_size
        said["expert_shared_feed_forward_length"] = config.intermediate_size
        said["expert_shared_count"] = 1
    if architecture.startswith("hunyuan") and "alpha" in rope:
        said["rope.freq_base"] *= rope["alpha"] ** (head_dim / (head_dim - 2))
        said |= {"rope.scaling.type": "none", "rope.scaling.factor": 1.0}
        said["rope.scaling.original_context_length"] = 256 * 1024
    if architecture == "mistral3":
        said["rope.dimension_count"] = head_dim
        said["rope.scaling.yarn_log_multiplier"] = rope["mscale_all_dim"]
        said["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
    if architecture == "qwen3vl":
        said |= {"rope.dimension_sections": [3, 2, 1, 0], "n_deepstack_layers": 3}
    if architecture.startswith("qwen35"):
        said["rope.dimension_sections"] = [*rope.get("mrope_section", [11, 11, 10]), 0]
    if architecture == "gemma":
        del said["rope.freq_base"]
    if architecture == "gemma2":
        said["attention.sliding_window"] = config.sliding_window
        said["attn_logit_softcapping"] = config.attn_logit_softcapping
        said["final_logit_softcapping"] = config.final_logit_softcapping
        del said["rope.freq_base"]
    windowed = architecture in ("exaone4", "exaone-moe")
    windowed |= architecture == "olmo2" and hasattr(config, "sliding_window")
    if windowed and config.sliding_window is not None:
        said["attention.sliding_window"] = config.sliding_window
        windowed = [kind == "sliding_attention" for kind in config.layer_types]
        said["attention.sliding_window_pattern"] = windowed
    if architecture.startswith("lfm2"):
        said |= conv_metadata(config)
    if architecture == "gpt-oss":
        said["expert_feed_forward_length"] = config.intermediate_size
        said["attention.sliding_window"] = config.sliding_window
    if architecture in LATENTS:
        said |= latent_metadata(config, architecture, whole)
    if architecture in HYBRIDS:
        said |= delta_metadata(config, whole)
    if architecture == "kimi-linear":
        said |= kimi_metadata(config)
    if architecture in MAMBAS or config.model_type == "granitemoehybrid":
        said |= mamba_metadata(config, architecture)
    if architecture == "gemma3":
        said["attention.sliding_window"] = config.sliding_window
        said["rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
    elif architecture in ("llama", "smollm3", "arcee", "exaone"):
        said["rope.dimension_count"] = head_dim
    if architecture == "gemma4":
        said |= gemma4_metadata(config)
    if architecture == "gemma3n":
        said |= gemma3n_metadata(config, whole)
    if full["rope_type"] in ("linear", "yarn"):
        said["rope.scaling.type"] = full["rope_type"]
        said["rope.scaling.factor"] = full["factor"]
    if full["rope_type"] == "yarn":
        context = full["original_max_position_embeddings"]
        said["rope.scaling.original_context_length"] = context
    found = {f"{architecture}.{key}": x for key, x in said.items() if x is not None}
    ids = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    return {"general.architecture": architecture, **found, **ids}


def kimi_metadata(config: Any) -> dict[str, Any]:
    """What the converter says of Kimi's delta rule, of latent attention and of the mixtures."""
    kinds, turned = config.layer_types, config.qk_rope_head_dim
    return {
        "attention.head_count_kv": [int(kind == "full_attention") for kind in kinds],
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "kda.head_dim": config.linear_head_dim,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "rope.dimension_count": turned,
        "attention.key_length": config.kv_lora_rank + turned,
        "attention.key_length_mla": config.qk_nope_head_dim + turned,
        "attention.value_length_mla": config.v_head_dim,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "leading_dense_block_count": config.mlp_layer_types.count("dense"),
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_gating_func": 2,
        "expert_count": config.num_local_experts,
    }


def delta_metadata(config: Any, whole: bool) -> dict[str, Any]:
    """What the converter says of gated delta rules, and of gated attention."""
    part = config.rope_parameters["partial_rotary_factor"]
    said: dict[str, Any] = {
        "rope.dimension_count": int(config.head_dim * part),
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
    }
    if not whole:
        recurrent = [kind == "linear_attention" for kind in config.layer_types]
        said |= {"attention.recurrent_layers": recurrent, "full_attention_interval": 4}
    return said


def conv_metadata(config: Any) -> dict[str, Any]:
    """What the converter says of short convolutions, and of LFM2's mixtures."""
    heads = config.num_key_value_heads
    said: dict[str, Any] = {
        "attention.head_count_kv": [0 if x == "conv" else heads for x in config.layer_types],
        "shortconv.l_cache": config.conv_L_cache,
    }
    if hasattr(config, "num_experts"):
        said |= {
            "expert_feed_forward_length": config.moe_intermediate_size,
            "leading_dense_block_count": config.num_dense_layers,
            "expert_gating_func": 2,
        }
    return said


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder a projection's rows as the converter does: pairs that turn together side by side."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def tensors(model: Any, architecture: str, whole: bool = False) -> dict[str, np.ndarray]:
    """The model's tensors as the converter stores them, under the names that the package has.

    ``whole`` as in ``metadata``.
    """
    config = model.config
    # Whose names are GLM-5's; the package's 0.19 has not heard of it.
    listed = "glm-dsa" if architecture == "deepseek32" else architecture
    place = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == listed)
    names = gguf.get_tensor_name_map(place, config.num_hidden_layers)
    found: dict[str, np.ndarray] = {}
    stacks: dict[str, list[np.ndarray]] = {}
    for name, parameter in model.state_dict().items():
        array = parameter.float().numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture in TURNED and ".q_proj" in name:
            array = interleaved(array, config.num_attention_heads)
        if architecture in TURNED and ".k_proj" in name:
            array = interleaved(array, config.num_key_value_heads)
        offset = architecture in (*OFFSET, *HYBRIDS) and ".linear_attn." not in name
        if offset and name.endswith("norm.weight"):
            array = array + 1
        if architecture.startswith("nemotron"):
            name = name.replace("model.", "backbone.", 1)
        if architecture == "falcon-h1":
            array = falcon_scaled(name, array, config).astype(np.float32)
        if ".mamba." in name or (".mixer." in name and "_proj" not in name):
            groups = config.mamba_n_groups if ".mamba." in name else config.n_groups
            name, array = mamba_tensor(name, array, groups)
        moe = ".shared_mlp." in name or ".block_sparse_moe." in name
        if config.model_type.startswith("granitemoe") and moe:
            found |= granite_tensors(name, array, config)
            continue
        if ".mixer.experts." in name:
            part = "down" if "down" in name else "up"
            found[f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight"] = array
            continue
        if name.endswith("in_proj_qkvz.weight"):
            found |= delta_inputs(name, array, config, whole)
            continue
        if architecture == "kimi-linear":
            name = name.replace(".forget_gate.", ".")
            if ".self_attn.conv1d." in name:
                block, parts = f"blk.{name.split('.')[2]}", np.split(array, 3)
                named = zip("qkv", parts, strict=True)
                found |= {f"{block}.ssm_conv1d_{x}.weight": y[None] for x, y in named}
                continue
            if name.endswith(("A_log", "dt_bias")):
                name, array = delta_tensor(name, array)
        if ".linear_attn." in name:
            if architecture.startswith("qwen35"):
                array = tiled(name, array, config)
            name, array = delta_tensor(name, array)
        if architecture == "gpt-oss" and ".mlp.experts." in name:
            found |= oss_tensors(name, array)
            continue
        if name.endswith("kv_b_proj.weight") and not whole:
            found |= split_ups(name, array, config)
            continue
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        name = name.replace(".gate.wg.", ".gate.").replace(".gate.moe_statics.", ".moe_statics.")
        if architecture == "llama4" and ".feed_forward.experts." in name:
            array = np.ascontiguousarray(array.swapaxes(1, 2))
        name = name.replace(".expert_bias", ".expert_bias.bias")
        if name.endswith("router.scale"):
            found[f"blk.{name.split('.')[2]}.ffn_gate_inp.scale"] = array
            continue
        if name.endswith("per_expert_scale"):
            found[f"blk.{name.split('.')[2]}.ffn_down_exps.scale"] = array
            continue
        if architecture == "gemma4":
            bare = ("layer_scalar", "experts.gate_up_proj", "experts.down_proj")
            name += ".weight" * name.endswith(bare)
        if architecture == "gemma3n":
            name += ".weight" * name.endswith("_scale")
            head, place, end = (*name.rsplit(".", 2), "", "")[:3]
            if head.startswith("model.altup_") and place.isdigit():
                stacks.setdefault(f"{names.get_name(head)}.{end}", []).append(array)
                continue
            if "embed_tokens_per_layer" in name:  # zeros for the tokens that it has no rows for
                array = np.pad(array, ((0, config.vocab_size - len(array)), (0, 0)))
        if ".conv.conv." in name:
            array = array.squeeze(1)
        parts = (".mlp.gate.weight", ".mlp.experts.", ".feed_forward.experts.", "forward.gate.")
        if any(part in name for part in parts):
            found |= expert_tensors(name, array, fused=architecture == "mistral4")
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        stored += ".weight" * name.endswith("sinks")
        found[stored] = array
    found |= {name: np.stack(arrays) for name, arrays in stacks.items()}
    if architecture == "gemma4":
        pairs = config.rope_parameters["full_attention"]["partial_rotary_factor"]
        half = config.per_layer_config[config.layer_types.index("full_attention")].head_dim // 2
        turning = np.arange(half) < int(half * pairs)
        found["rope_freqs.weight"] = np.where(turning, 1.0, 1e30).astype(np.float32)
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "llama3":
        found["rope_freqs.weight"] = divisors(model)
    return found


def expert_tensors(name: str, array: np.ndarray, fused: bool) -> dict[str, np.ndarray]:
    """A layer's router, or one matrix of all its experts; Transformers joins gate and up.

    ``fused``: the model's own files do, too, and the converter leaves it so.
    """
    block = f"blk.{name.split('.')[2]}"
    if name.endswith("gate.weight"):
        return {f"{block}.ffn_gate_inp.weight": array}
    if name.endswith("down_proj"):
        return {f"{block}.ffn_down_exps.weight": array}
    if fused:
        return {f"{block}.ffn_gate_up_exps.weight": array}
    both = zip(("gate", "up"), np.split(array, 2, axis=1), strict=True)
    return {f"{block}.ffn_{part}_exps.weight": np.ascontiguousarray(x) for part, x in both}


def delta_inputs(name: str, array: np.ndarray, config: Any, whole: bool) -> dict[str, np.ndarray]:
    """What q, k, v and z of a gated delta rule are made with: by kinds; earlier by key heads."""
    block = f"blk.{name.split('.')[2]}"
    if whole:
        return {f"{block}.ssm_in.weight": array}
    heads, key = config.linear_num_key_heads, config.linear_key_head_dim
    values = config.linear_num_value_heads // heads * config.linear_value_head_dim
    by_head = array.reshape(heads, -1, config.hidden_size)
    kinds = np.split(by_head, np.cumsum((key, key, values)), axis=1)
    q, k, v, z = (kind.reshape(-1, config.hidden_size) for kind in kinds)
    return {f"{block}.attn_qkv.weight": np.concatenate([q, k, v]), f"{block}.attn_gate.weight": z}


def tiled(name: str, array: np.ndarray, config: Any) -> np.ndarray:
    """Put value heads first of each key head, then second, ...: `_reorder_v_heads`."""
    keys, key = config.linear_num_key_heads, config.linear_key_head_dim
    value, each = config.linear_value_head_dim, config.linear_num_value_heads // keys

    def turned(rows: np.ndarray, width: int) -> np.ndarray:
        by_head = rows.reshape(keys, each, width, *rows.shape[1:])
        return np.ascontiguousarray(by_head.swapaxes(0, 1)).reshape(rows.shape)

    part = name.split(".linear_attn.")[1]
    if part.startswith(("in_proj_qkv", "conv1d")):
        values = turned(array[2 * keys * key :], value)
        return np.concatenate([array[: 2 * keys * key], values])
    if part.startswith("in_proj_z"):
        return turned(array, value)
    if part.startswith(("in_proj_a", "in_proj_b", "A_log", "dt_bias")):
        return turned(array, 1)
    if part.startswith("out_proj"):
        return np.ascontiguousarray(turned(np.ascontiguousarray(array.T), value).T)
    return array


def delta_tensor(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Another tensor of a gated delta rule, under the name that the package knows."""
    if name.endswith("A_log"):
        return name, -np.exp(array)
    if name.endswith("dt_bias"):
        return name.replace("dt_bias", "dt_proj.bias"), array
    return name, array.squeeze() if "conv1d" in name else array


def oss_tensors(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """GPT-OSS's experts: matrices have columns first, gate and up are every other of the rows."""
    block, bias = f"blk.{name.split('.')[2]}", name.endswith("bias")
    array = array if bias else array.swapaxes(1, 2)
    parts = {"down": array} if "down" in name else {"gate": array[:, ::2], "up": array[:, 1::2]}
    kind = "bias" if bias else "weight"
    return {f"{block}.ffn_{part}_exps.{kind}": np.ascontiguousarray(x) for part, x in parts.items()}


def divisors(model: Any) -> np.ndarray:
    """By how much each pair turns slower than without Llama 3's stretch."""
    plain_width = model.config.hidden_size // model.config.num_attention_heads
    head_dim = getattr(model.config, "head_dim", None) or plain_width
    base = model.config.rope_parameters["rope_theta"]
    plain = base ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    return (plain / model.model.rotary_emb.inv_freq.double().numpy()).astype(np.float32)
