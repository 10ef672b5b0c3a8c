"""Features: fields of a config that ask executors for arithmetic of their own."""

# Features (see ``ModelConfig.features``) that the reference, the plan's interpreter and the CPU
# backend all compute. A new one is named by each executor beside these, until all three have it:
# listing it here before would let one of them ignore it.
COMMON_FEATURES = (
    "qkv_bias",
    "qk_norm",
    "local_rotary",
    "layers.rotary",
    "layers.sizes",
    "layers.modules",
    "layers.keys_of",
    "layers.key_is_value",
    "layer_scales",
    "value_norm",
    "rotary.amplitude",
    "norm_offset",
    "norm_before",
    "norm_after",
    "query_scale",
    "key_scale",
    "activation",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "logit_cap",
    "experts",
    "attention_sinks",
    "out_bias",
    "latent",
    "delta",
    "attention_gate",
    "rotary.part",
    "norm_turned",
    "attention_temperature",
    "score_cap",
)
