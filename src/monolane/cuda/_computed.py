"""Which fields of a model's config the kernels compute; a model with others is refused by name."""

from monolane.errors import BackendError
from monolane.model import ModelConfig, QkNorm

# Beyond what every executor does.
_COMPUTED = (
    "qkv_bias", "out_bias", "qk_norm", "qk_unscaled", "norm_turned", "query_scale", "score_cap",
    "layers.rotary", "local_rotary", "rotary.amplitude", "rotary.part", "attention_temperature",
    "activation=gelu_tanh", "norm_before", "norm_after", "norm_offset", "embedding_scale",
    "residual_scale", "logit_scale", "logit_cap",
)  # fmt: skip


def check_computed(config: ModelConfig) -> None:
    """Refuse by its name a field that the kernels do not compute: BackendError."""
    config.check_features("cuda", *_COMPUTED)
    if config.qk_norm is QkNorm.ALL and config.num_lanes > 1:
        raise BackendError(
            "qk_norm: the cuda backend expects one lane, and so one device, where a norm goes over "
            f"all heads, got {config.num_lanes} lanes; choose another backend"
        )
    local = config.local_rotary
    if local is not None and local.part != config.rotary.part:
        raise BackendError(
            f"rotary.part: the cuda backend expects as much of a head to turn in all layers, got "
            f"{config.rotary.part} and {local.part}; choose another backend"
        )
