"""No field of Transformers' configs that says something of the arithmetic is passed over."""

import dataclasses
from typing import Any

import pytest

from monolane.model import parse_config
from monolane.model._fields import Fields

from .spelled_families import DENSE, NESTED, spelled

# Of training, of how Transformers computes and of what it returns, not of what comes out.
SILENT = {
    *("architectures", "transformers_version", "problem_type", "id2label", "label2id"),
    *("output_hidden_states", "output_router_logits", "return_dict", "is_encoder_decoder"),
    *("use_cache", "chunk_size_feed_forward", "pretraining_tp", "num_logits_to_keep"),
    *("initializer_range", "embedding_initializer_range", "rescale_prenorm_residual"),
    *("attention_dropout", "residual_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout"),
    *("router_aux_loss_coef", "router_jitter_noise", "z_loss_coefficient", "altup_coef_clip"),
    *("mamba_chunk_size", "chunk_size", "mamba_ssm_cache_dtype", "use_mamba_kernels"),
    *("time_step_floor", "time_step_min", "time_step_max", "residual_in_fp32"),
    *("moe_shared_expert_overlap", "eod_token_id", "sep_token_id"),
    # Of tensors that predict tokens further ahead.
    *("num_mtp_layers", "num_nextn_predict_layers", "mtp_layers_block_type"),
    *("mtp_layer_types", "mtp_mlp_layer_types"),
}
# Where keys are made of a latent each head has its own.
LATENT = {"num_key_value_heads", "head_dim"}
# Of mixtures and windows, which the models below have in no layer.
MIXTURES = {"moe_intermediate_size", "n_routed_experts", "n_shared_experts", "num_experts_per_tok"}
MIXTURES |= {"routed_scaling_factor"}
CHOICE = {"n_group", "topk_group", "norm_topk_prob"}
WINDOW = {"sliding_window"}
ABSENT: dict[str, set[str]] = {
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), WINDOW),
    "gemma4_text": {"moe_intermediate_size", "num_experts", "top_k_experts"}
    | {"vocab_size_per_layer_input"},
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm_moe_dsa"), LATENT | MIXTURES),
    **dict.fromkeys(("glm4_moe_lite", "mistral4", "youtu"), LATENT),
    "deepseek_v2": LATENT | {"n_group", "topk_group"},
    "kimi_linear": LATENT | {"num_local_experts"},
    "phi3": {"original_max_position_embeddings"},
    "nemotron_h": MIXTURES
    | CHOICE
    | {"layers_block_type", "expand", "moe_latent_size", "moe_shared_expert_intermediate_size"},
    "falcon_h1": {"mamba_expand", "mamba_norm_before_gate"},
}


class _Read(dict[str, Any]):
    """Fields that remember which of them were asked for."""

    def __init__(self, raw: dict[str, Any], names: set[str]) -> None:
        super().__init__(raw)
        self.names = names

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


@pytest.mark.parametrize("kind", [kind for kind in DENSE if kind not in (*NESTED, "kimi_k2")])
def test_each_field_is_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = pytest.importorskip("transformers").models.auto.configuration_auto.CONFIG_MAPPING
    names: set[str] = set()
    init = Fields.__init__

    def remember(self: Fields, raw: dict[str, Any], *rest: Any) -> None:
        init(self, _Read(raw, names), *rest)

    monkeypatch.setattr(Fields, "__init__", remember)
    parse_config(spelled(kind))
    there = {field.name for field in dataclasses.fields(mapping[kind])}
    assert there - names - SILENT == ABSENT.get(kind, set()) & there
