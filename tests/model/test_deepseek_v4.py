"""DeepSeek-V4 as it is published: its layers, rotaries and experts, and what is refused."""

from typing import Any

import pytest

from monolane.errors import ConfigError
from monolane.model import Experts, Hyper, Rotary, YarnScaling, parse_config, tensor_specs
from monolane.ops.compressed.spec import Compressed, Compressor

from .spelled_families import round_trip

# config.json of deepseek-ai/DeepSeek-V4-Flash, but for its quantisation.
FLASH: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "attention_bias": False,
    "bos_token_id": 0,
    "compress_ratios": [0, 0, *(4, 128) * 20, 4, 0],  # the last one is of what predicts ahead
    "compress_rope_theta": 160000,
    "eos_token_id": 1,
    "hc_eps": 1e-06,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 512,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "max_position_embeddings": 1048576,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "num_hidden_layers": 43,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 128,
    "swiglu_limit": 10.0,
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "vocab_size": 129280,
}


def test_flash_is_read_as_it_is_published() -> None:
    config = parse_config(FLASH)
    found = [config.operation(i, Compressed).compressor for i in range(43)]
    chosen = Compressor(ratio=4, overlap=True, index_heads=64, index_width=128, chosen=512)
    assert found == [None, None, *(chosen, Compressor(ratio=128)) * 20, chosen]
    assert [layer.hashed for layer in config.layers] == [True] * 3 + [False] * 40
    assert config.rotary == Rotary(160000.0, "interleaved", YarnScaling(16.0, 65536, 1.0))
    assert config.local_rotary == Rotary(10000.0, "interleaved")
    assert config.hyper == Hyper(4, 20, 1e-6)
    assert config.experts == Experts(
        *(256, 6, 2048, True),
        scores="sqrtsoftplus",
        corrected=True,
        scale=1.5,
        shared=2048,
        limit=10.0,
    )
    assert round(config.num_parameters / 1e9) == 284  # as its card says
    assert round_trip(config) == config
    names = {spec.name for spec in tensor_specs(config)}
    assert {"layers.2.attn.indexer.wq_b.weight", "layers.0.ffn.gate.tid2eid"} < names
    assert not {"layers.3.attn.indexer.wq_b.weight", "layers.3.ffn.gate.tid2eid"} & names


def test_what_is_said_in_other_words() -> None:
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    few = {name: x for name, x in FLASH.items() if name not in ("compress_ratios", "rope_scaling")}
    few |= {"num_hidden_layers": 3}
    config = parse_config(few | {"layer_types": kinds})
    assert config.rotary.scaling is None
    assert parse_config(few | {"compress_ratios": [0, 4, 128]}) == config
    rates = {"compressed_sparse_attention": 3, "heavily_compressed_attention": 9}
    other = parse_config(few | {"layer_types": kinds, "compress_rates": rates})
    assert [
        x and x.ratio for x in (other.operation(i, Compressed).compressor for i in range(3))
    ] == [None, 3, 9]
    older = few | {"layer_types": kinds, "compress_rate_csa": 3, "compress_rate_hca": 9}
    assert parse_config(older) == other
    told = parse_config(few | {"layer_types": kinds, "mlp_layer_types": ["hash_moe"] * 3})
    assert told == config
    nested = {
        "main": {"rope_type": "default", "rope_theta": 5.0},
        "compress": FLASH["rope_scaling"] | {"rope_theta": 7.0},
    }
    found = parse_config(few | {"layer_types": kinds, "rope_parameters": nested})
    stretched = Rotary(7.0, "interleaved", YarnScaling(16.0, 65536, 1.0))
    assert (found.rotary, found.local_rotary) == (stretched, Rotary(5.0, "interleaved"))
    assert all(round_trip(x) == x for x in (config, other, found))
    plain = parse_config(few)  # without either
    assert [bool(plain.operation(i, Compressed).compressor) for i in range(3)] == [True] * 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"compress_ratios": [0, 4]}, "compress_ratios: expected a list of 43 kinds"),
        ({"compress_ratios": [0, 8] * 22}, "compress_ratios: .* 0, 4 or 128"),
        ({"layer_types": ["full_attention"] * 43}, "layer_types: expected a list of 43 kinds"),
        ({"mlp_layer_types": ["moe"] * 3}, "mlp_layer_types: expected a list of 43 kinds"),
        ({"num_key_value_heads": 2}, "num_key_value_heads: expected 1, got 2; all heads share"),
        ({"scoring_func": "sigmoid"}, "scoring_func: expected one of 'sqrtsoftplus'"),
        ({"n_shared_experts": 2}, "n_shared_experts: expected 1, got 2"),
        ({"o_groups": 7}, "compressed: expected groups that divide 64 heads, got 7"),
        ({"hc_mult": 65}, "hyper: expected 1 to 64 streams"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling: type: expected one of"),
        ({"swiglu_limit": 0}, "swiglu_limit: expected a number above zero"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(FLASH | fields)
