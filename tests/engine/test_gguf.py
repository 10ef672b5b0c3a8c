"""GGUF files through the engine: what Transformers computes of the same weights, and the text."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.engine import _registry
from monolane.errors import BackendError, CheckpointError, ModelNotFoundError, TextError
from monolane.model import Blocks, GgufModel, PairScaling, Role, Weights
from monolane.model._gguf_types import GGML_TYPES

from .converted import metadata, tensors
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
    LONG,
    LONGROPE,
    MIXTURE,
    MLA,
    NEMOTRON,
    SECTIONS,
    UNIFIED,
    YARN,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, TOKENS = 96, 40
Write = Callable[..., Path]
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}
GEMMA = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
}
PART = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
SHARPENED = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}
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


def random_model(kind: str, **changes: Any) -> Any:
    """A small random model of Transformers, with norms and biases off one and zero."""
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "tie_word_embeddings": kind.startswith("Gemma"),
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = getattr(
        transformers, f"{kind.removesuffix('Text')}{'Text' * kind.endswith('Text')}Config"
    )
    # A copy: Transformers writes its defaults into the objects it is given, which cases share.
    config_of = config(**copy.deepcopy(fields | changes))
    config_of._experts_implementation = "eager"  # others want sizes that are multiples
    model_class = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")
    model = model_class(config_of).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith(("bias", "scale", ".D")):
                parameter += 0.3 * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar")):
                buffer += 0.3 * torch.randn_like(buffer)
    return model


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_logits_and_tokens_are_those_of_transformers(
    case: str, backend: str, write_gguf: Write, tmp_path: Path
) -> None:
    kind, architecture, changes = CASES[case]
    theirs = random_model(kind, **changes)
    path = write_gguf(
        tmp_path / "x.gguf", metadata(theirs.config, architecture), tensors(theirs, architecture)
    )
    ids = np.random.default_rng(0).integers(VOCAB, size=TOKENS)
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
        tokens = theirs.generate(
            torch.from_numpy(ids[:4])[None], max_new_tokens=20, min_new_tokens=20, do_sample=False
        )[0, 4:].tolist()
    with Engine.load(path, backend, "float32") as engine:
        found = engine.logits(ids.tolist())
        params = SamplingParams(max_tokens=20, logit_bias={2: -np.inf})
        answer = engine.generate(ids[:4].tolist(), params)
        if "Llama 3" in case:
            assert isinstance(engine.config.rotary.scaling, PairScaling)
    # As in tests/engine/test_dense.py, for at most 7 layers: products in a row whose sums have at
    # most 96 terms, in two evaluations; angles of up to 40 radians that are rounded differently.
    layers = theirs.config.num_hidden_layers
    products = 4 * layers + 1
    sums, angles = 6 * np.sqrt(2 * products * 96), 6 * layers * TOKENS * np.sqrt(3)
    assert np.abs(found - wanted).max() < (sums + angles) * 2.0**-24 * wanted.std()
    assert wanted.std() > 0.5  # logits near zero would agree whatever the model did
    assert list(answer.token_ids) == tokens


def blocks(kind: str, shape: tuple[int, int]) -> np.ndarray:
    """Random blocks of a type, with scales of some hundredths: bytes uint8 [rows, row's bytes]."""
    row = next(row for row in GGML_TYPES.values() if row.name == kind)
    rng = np.random.default_rng(0)
    count = shape[0] * shape[1] // row.block
    raw = rng.integers(256, size=(count, row.bytes), dtype=np.uint8)
    if kind == "MXFP4":  # no float16, but a power of two
        raw[:, 0] = rng.integers(118, 121, count)
        return raw.reshape(shape[0], -1)
    if kind == "NVFP4":  # four of 8 bits
        raw[:, :4] = rng.integers(8, 16, (count, 4))
        return raw.reshape(shape[0], -1)
    # Where the float16 numbers of a block lie (``ggml-common.h``): its scale, and what is added.
    super_block = row.block == 256
    starts = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)}
    with_minima = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
    for i, start in enumerate(starts.get(kind, (0, 2) if kind in with_minima else (0,))):
        size = 1e-3 if super_block else 1e-2
        if kind in ("Q8_0", "Q6_K", "IQ4_NL", "IQ4_XS"):
            size /= 40
        if kind.startswith("TQ"):
            size *= 40
        scales = (rng.uniform(0.5, 1, count) * size * (-4) ** i).astype(np.float16)
        if kind == "IQ1_M":  # in the upper halves of four bytes
            nibbles = scales[:, None].view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) & 15
            raw[:, 49::2] = raw[:, 49::2] & 15 | nibbles.astype(np.uint8) << 4
            continue
        raw[:, start : start + 2] = scales.view(np.uint8).reshape(-1, 2)
    return raw.reshape(shape[0], -1)


@pytest.mark.parametrize("kind", [row.name for row in GGML_TYPES.values() if row.dtype is None])
def test_blocks_compute_as_the_numbers_they_mean(
    kind: str, write_gguf: Write, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 32}
    model = random_model("Llama", num_hidden_layers=2, **sizes)
    stored: dict[str, Any] = tensors(model, "llama")
    plain = dict(stored)
    for name, array in stored.items():
        if array.ndim == 2:
            packed = blocks(kind, array.shape)
            stored[name] = (kind, packed)
            plain[name] = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[kind])
            assert 0.005 < plain[name].std() < 0.5
    said = metadata(model.config, "llama")
    ids = np.random.default_rng(0).integers(VOCAB, size=TOKENS).tolist()
    logits = {}
    for name, held in (("blocks", stored), ("plain", plain)):
        with Engine.load(write_gguf(tmp_path / f"{name}.gguf", said, held), "reference") as engine:
            logits[name] = engine.logits(ids)
    np.testing.assert_array_equal(logits["blocks"], logits["plain"])
    assert logits["plain"].std() > 0


def test_the_cpu_multiplies_by_blocks_as_they_are(
    tiny_llama: tuple[dict[str, Any], dict[str, Any]], write_gguf: Write, tmp_path: Path
) -> None:
    """The arithmetic is proved in tests/cpu; here, that tensors come into their places."""
    fields, arrays = tiny_llama
    kinds = {"attn": "Q5_1", "ffn_": "Q4_1", "toke": "Q8_0"}  # mixed, as llama.cpp mixes them
    stored: dict[str, Any] = dict(arrays)
    for name, array in arrays.items():
        if array.ndim == 2:
            kind = kinds[name.removeprefix("blk.0.").removeprefix("blk.1.")[:4]]
            packed = gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
            stored[name] = (kind, packed)
    path = write_gguf(tmp_path / "x.gguf", fields, stored)
    ids = list(range(3, 43))
    logits = {}
    for backend in ("reference", "cpu"):
        with Engine.load(path, backend) as engine:
            logits[backend] = engine.logits(ids)
    error = np.abs(logits["cpu"] - logits["reference"])
    # Activations of 8 bits in groups of 32 are off by at most half a 127th of the group's largest:
    # some hundredths of the spread behind two layers. A tensor in a wrong place gives all of it.
    assert 0 < error.mean() < 0.05 * logits["reference"].std()


@pytest.mark.parametrize("kind", [None, "Q8_0"])
def test_keys_and_values_of_a_latent_are_the_same_joined_and_split(
    kind: str | None, write_gguf: Write, tmp_path: Path
) -> None:
    """Older files have kv_b whole; of blocks, its keys turn over the blocks."""
    sizes = {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
    model = random_model("DeepseekV3", **LATENT | sizes)
    logits, weights = {}, {}
    for whole in (True, False):
        stored: dict[str, Any] = tensors(model, "deepseek2", whole)
        for name, array in stored.items():
            if kind is not None and ("attn_kv_b" in name or "attn_v_b" in name):
                stored[name] = (kind, gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind]))
            elif kind is not None and "attn_k_b" in name:  # the numbers that kv_b's blocks mean
                rows = np.ascontiguousarray(array.swapaxes(1, 2))
                place = gguf.GGMLQuantizationType[kind]
                meant = gguf.quants.dequantize(gguf.quants.quantize(rows, place), place)
                stored[name] = np.ascontiguousarray(meant.swapaxes(1, 2))
        said = metadata(model.config, "deepseek2", whole)
        path = write_gguf(tmp_path / f"{whole}.gguf", said, stored)
        weights[whole] = Weights.open(path).dequantized()
        with Engine.load(path, "cpu", **{} if kind else {"dtype": "float32"}) as engine:
            logits[whole] = engine.logits(list(range(3, 43)))
    for whole, split in zip(weights[True].layers, weights[False].layers, strict=True):
        for role in (Role.K_UP, Role.V_UP):
            np.testing.assert_array_equal(whole[role], split[role])
    np.testing.assert_array_equal(logits[True], logits[False])
    assert logits[True].std() > 0.5


def quantized(array: np.ndarray, kind: str | None) -> Any:
    """An array as ``write_gguf`` takes it, in blocks of a type or as it is."""
    if kind is None:
        return array
    return kind, gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize("kind", [None, "Q8_0"])
def test_keys_and_values_beside_their_joined_form_are_those_read(
    kind: str | None, write_gguf: Write, tmp_path: Path
) -> None:
    """ik_llama.cpp's converter writes both, and the heads of the split pair as one matrix."""
    sizes = {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
    model = random_model("DeepseekV3", **LATENT | sizes)
    split: dict[str, Any] = tensors(model, "deepseek2")
    beside = tensors(model, "deepseek2", whole=True)
    for name, array in split.items():
        if "attn_k_b" in name or "attn_v_b" in name:
            split[name] = quantized(array, kind)
            beside[name] = quantized(array.reshape(-1, array.shape[-1]), kind)
    for name, array in beside.items():
        if "attn_kv_b" in name:
            beside[name] = np.full_like(array, np.nan)
    logits = {}
    for both, stored in ((True, beside), (False, split)):
        said = metadata(model.config, "deepseek2", whole=both)
        path = write_gguf(tmp_path / f"{both}.gguf", said, stored)
        with Engine.load(path, "cpu", **{} if kind else {"dtype": "float32"}) as engine:
            logits[both] = engine.logits(list(range(3, 23)))
    np.testing.assert_array_equal(logits[True], logits[False])
    assert logits[True].std() > 0.5


def test_a_shared_expert_s_gate_is_a_vector_or_a_row(write_gguf: Write, tmp_path: Path) -> None:
    """Older converters drop the row's axis; older files do not say widths that others imply."""
    kind, architecture, changes = CASES["Qwen2-MoE"]
    implied = {"moe_intermediate_size": 96 // 3, "shared_expert_intermediate_size": 96}
    model = random_model(kind, **changes | implied)
    said, logits = metadata(model.config, architecture), {}
    for old in (False, True):
        stored = tensors(model, architecture)
        gate = stored["blk.1.ffn_gate_inp_shexp.weight"]
        assert gate.shape == (1, 64)
        if old:
            for name in [name for name in stored if "_inp_shexp" in name]:
                stored[name] = stored[name][0]
            said = {key: x for key, x in said.items() if "expert_" not in key or "count" in key}
        with Engine.load(write_gguf(tmp_path / f"{old}.gguf", said, stored), "cpu") as engine:
            logits[old] = engine.logits(list(range(3, 23)))
    np.testing.assert_array_equal(logits[True], logits[False])
    assert logits[True].std() > 0.5


@pytest.mark.parametrize("kind", [None, "Q8_0"])
@pytest.mark.parametrize("case", ["Qwen3-MoE", "DeepSeek-V3"])  # mixtures in all layers; not in all
def test_gates_and_ups_of_experts_are_the_same_fused_and_apart(
    case: str, kind: str | None, write_gguf: Write, tmp_path: Path
) -> None:
    family, architecture, changes = CASES[case]
    model = random_model(family, **changes | {"hidden_size": 64})  # whole blocks in a row
    apart: dict[str, Any] = tensors(model, architecture)
    fused = dict(apart)
    for name, gate in apart.items():
        if "ffn_gate_exps" in name:
            up = fused.pop(name.replace("gate", "up"))
            del fused[name]
            both = np.concatenate([gate, up], axis=1)
            fused[name.replace("gate", "gate_up")] = quantized(both, kind)
    for name, array in apart.items():
        if "ffn_gate_exps" in name or "ffn_up_exps" in name:
            apart[name] = quantized(array, kind)
    logits = {}
    for place, stored in (("fused", fused), ("apart", apart)):
        path = write_gguf(tmp_path / f"{place}.gguf", metadata(model.config, architecture), stored)
        with Engine.load(path, "cpu", **{} if kind else {"dtype": "float32"}) as engine:
            logits[place] = engine.logits(list(range(3, 23)))
    np.testing.assert_array_equal(logits["fused"], logits["apart"])
    assert logits["fused"].std() > 0.5
    file = GgufModel(tmp_path / "fused.gguf")
    whole = file["blk.2.ffn_gate_up_exps.weight"]
    for role in (Role.EXPERT_GATE, Role.EXPERT_UP):
        for matrix in Weights.of_gguf(file).experts[role, 2]:
            held = [x.data if isinstance(x, Blocks) else x for x in (matrix, whole)]
            assert np.shares_memory(*held)  # where it lies


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1"])
def test_the_cpu_multiplies_by_the_blocks_of_a_latent(
    kind: str, write_gguf: Write, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 96}
    sizes |= {"kv_lora_rank": 64, "q_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
    model = random_model("DeepseekV3", **LATENT | sizes)
    stored: dict[str, Any] = tensors(model, "deepseek2")
    for name, array in stored.items():
        if array.ndim > 1 and "ffn_gate_inp" not in name:
            stored[name] = (kind, gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind]))
    path = write_gguf(tmp_path / "x.gguf", metadata(model.config, "deepseek2"), stored)
    assert isinstance(Weights.open(path).quantized[Role.K_UP, 1], Blocks)
    logits = {}
    for backend in ("reference", "cpu"):
        with Engine.load(path, backend) as engine:
            logits[backend] = engine.logits(list(range(3, 23)))
    error = np.abs(logits["cpu"] - logits["reference"])
    # As above, but a rounded activation may choose another expert, which changes a token's logits:
    # so the median, of which few tokens are no part.
    assert 0 < np.median(error) < 0.05 * logits["reference"].std()


def test_a_gpu_is_left_alone_by_blocks(
    caplog: pytest.LogCaptureFixture,
    tiny_llama: tuple[dict[str, Any], dict[str, Any]],
    write_gguf: Write,
    tmp_path: Path,
) -> None:
    fields, arrays = tiny_llama
    array = arrays["blk.0.attn_q.weight"]
    packed = gguf.quants.quantize(array, gguf.GGMLQuantizationType.Q8_0)
    arrays["blk.0.attn_q.weight"] = ("Q8_0", packed)
    path = write_gguf(tmp_path / "x.gguf", fields, arrays)
    wanted = "cuda: expected a model of plain numbers, got blocks of Q8_0; use backend='cpu'"
    with pytest.raises(BackendError, match=wanted):
        Engine.load(path, "cuda")
    executor = _registry._open_best(Weights.open(path), "auto", context=8, slots=1)
    assert executor.name == "cpu"
    assert wanted in caplog.text
    executor.close()


def test_text_comes_from_the_files_own_tokenizer(llama_gguf: Path) -> None:
    with Engine.load(llama_gguf, "reference") as engine:
        assert engine.prompt_ids("aé") == (1, 3, 4 + 0x61, 4 + 0xC3, 4 + 0xA9)
        assert engine.eos_ids == {2}
        answer = engine.generate("a", SamplingParams(max_tokens=8, ignore_eos=True))
        assert len(answer.token_ids) == 8
        assert engine.tokenizer is not None
        assert answer.text == engine.tokenizer.decode(answer.token_ids)
        with pytest.raises(TextError, match="this model's files have no chat template"):
            engine.prompt_ids([{"role": "user", "content": "Hi"}])


def test_a_file_without_tokenizer_takes_ids(
    tiny_llama: tuple[dict[str, Any], dict[str, Any]], write_gguf: Write, tmp_path: Path
) -> None:
    fields, arrays = tiny_llama
    kept = {key: value for key, value in fields.items() if not key.startswith("tokenizer.")}
    with Engine.load(write_gguf(tmp_path / "x.gguf", kept, arrays), "reference") as engine:
        assert engine.tokenizer is None
        answer = engine.generate([5, 6], SamplingParams(max_tokens=4))
        assert len(answer.token_ids) == 4


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGML" + b"\0" * 99)
    with pytest.raises(CheckpointError, match="expected a GGUF file, which begins with b'GGUF'"):
        Engine.load(tmp_path / "x.gguf", "reference")
    (tmp_path / "y.bin").write_bytes(b"GGUF")  # known by its bytes
    with pytest.raises(CheckpointError, match="y.bin: the header: it is truncated"):
        Engine.load(tmp_path / "y.bin", "reference")
    (tmp_path / "x.bin").write_bytes(b"GGUX")
    with pytest.raises(ModelNotFoundError, match="or a GGUF file, got another file"):
        Engine.load(tmp_path / "x.bin", "reference")
    with pytest.raises(ModelNotFoundError, match="a folder or a .gguf file on this machine"):
        Engine.load(str(tmp_path / "none.gguf"), "reference")


def test_longrope_s_divisors_are_tensors(write_gguf: Write, tmp_path: Path) -> None:
    model = random_model("Phi3", hidden_size=96, head_dim=12, **LONG)
    stored = tensors(model, "phi3")
    for length in ("long", "short"):
        stored[f"rope_factors_{length}.weight"] = np.array(LONGROPE[f"{length}_factor"], "f4")
    said = metadata(model.config, "phi3")
    said["phi3.rope.scaling.original_context_length"] = 32
    said["phi3.rope.scaling.attn_factor"] = float(np.sqrt(1 + np.log(2) / np.log(32)))
    path = write_gguf(tmp_path / "x.gguf", said, stored)
    ids = np.random.default_rng(0).integers(VOCAB, size=TOKENS)
    for context, count in ((64, TOKENS), (32, 30)):
        with torch.no_grad():
            wanted = model(torch.from_numpy(ids[:count])[None]).logits[0].numpy()
        with Engine.load(path, "cpu", "float32", context=context) as engine:
            found = engine.logits(ids[:count].tolist())
        assert np.abs(found - wanted).max() < 1e-4 * wanted.std()  # derived above


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_rows_of_several_matrices_in_blocks(
    backend: str, write_gguf: Write, tmp_path: Path
) -> None:
    """Each matrix has its rows of a tensor's blocks, where these lie."""
    kind, architecture, changes = CASES["Phi-3"]
    model = random_model(kind, **changes)
    stored: dict[str, Any] = tensors(model, architecture)
    logits = {}
    for whole in (True, False):
        for name, array in stored.items():
            if "attn_qkv" in name or "ffn_up" in name:
                own, data = quantized(array, "Q8_0") if whole else ("Q8_0", array[1])
                plain = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[own])
                stored[name] = (own, data) if whole else plain
        path = write_gguf(
            tmp_path / f"{whole}.gguf", metadata(model.config, architecture), dict(stored)
        )
        with Engine.load(path, backend, "float32" if backend == "reference" else "auto") as engine:
            logits[whole] = engine.logits(list(range(3, 23)))
    error = np.abs(logits[True] - logits[False])
    if backend == "reference":
        np.testing.assert_array_equal(logits[True], logits[False])
    else:  # activations are rounded beside codes
        assert np.median(error) < 0.05 * logits[False].std()
