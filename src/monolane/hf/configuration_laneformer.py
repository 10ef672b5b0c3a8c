"""The Laneformer configuration for transformers: sizes, lanes, and how the lanes exchange.

This file and ``modeling_laneformer.py`` are copied as they are into every exported folder, so they
import nothing but torch, transformers and the standard library. Two spellings of config.json are
read, the released one and the earlier ``laneformer_tp``; only the released one is stored.
"""

from typing import Any, ClassVar, Literal

from transformers import PretrainedConfig

LmHeadType = Literal["vocab_parallel", "replicate", "lane"]
ReduceRule = Literal["now", "after", "never"]

LM_HEAD_TYPES = ("vocab_parallel", "replicate", "lane")
LLAMA3_FIELDS = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)


class LaneformerConfig(PretrainedConfig):
    """A Laneformer: ``num_lanes`` residual streams that exchange ``broadcast_delay`` layers late.

    The sizes default to the released 2B model; windows are given by ``sliding_window`` together
    with ``swa_layers`` (layer ids). ``use_comm``, ``sliding_window_n_layers`` (the first n layers,
    or the last if negative) and ``rms_norm_eps`` are earlier spellings, translated on reading, like
    ``unclamped_layers``: layers of full attention whatever other fields say.
    """

    model_type = "laneformer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache"]
    # transformers 5 has a deprecated property of this name that would divert the assignment below.
    rope_scaling = None

    def __init__(
        self,
        hidden_size: int = 3072,
        intermediate_size: int = 12288,
        num_hidden_layers: int = 15,
        num_attention_heads: int = 32,
        num_key_value_heads: int = 16,
        vocab_size: int = 32000,
        max_position_embeddings: int = 4096,
        num_lanes: int = 8,
        broadcast_delay: int = 2,
        use_attention_comm: bool | None = None,
        use_mlp_comm: bool | None = None,
        use_early_comm: bool = False,
        lm_head_type: LmHeadType = "vocab_parallel",
        pre_norm_lane_agg: bool = False,
        replicated_rmsn_scale: bool = False,
        sliding_window: int | None = None,
        swa_layers: list[int] | None = None,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        norm_eps: float | None = None,
        initializer_range: float = 0.02,
        use_cache: bool = True,
        tie_word_embeddings: bool = False,
        bos_token_id: int | None = 1,
        eos_token_id: int | list[int] | None = 2,
        pad_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.vocab_size = vocab_size
        self.max_position_embeddings = max_position_embeddings
        self.num_lanes = num_lanes
        self.broadcast_delay = broadcast_delay
        use_comm = kwargs.pop("use_comm", None)
        self.use_attention_comm = _either("use_attention_comm", use_attention_comm, use_comm)
        self.use_mlp_comm = _either("use_mlp_comm", use_mlp_comm, use_comm)
        self.use_early_comm = use_early_comm
        self.lm_head_type = lm_head_type
        self.pre_norm_lane_agg = pre_norm_lane_agg
        self.replicated_rmsn_scale = replicated_rmsn_scale
        self.sliding_window = sliding_window
        self.rope_theta, self.rope_scaling = _rotary(
            rope_theta, rope_scaling, kwargs.pop("rope_parameters", None)
        )
        self.norm_eps = _epsilon(norm_eps, kwargs.pop("rms_norm_eps", None))
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        self._check_sizes()
        self.swa_layers = self._windowed(
            swa_layers,
            kwargs.pop("sliding_window_n_layers", None),
            kwargs.pop("unclamped_layers", None),
        )
        self._check_options(tie_word_embeddings)
        self._check_fixed("head_dim", self.head_dim, kwargs.pop("head_dim", None))
        self._check_fixed("layer_types", self.layer_types, kwargs.pop("layer_types", None))
        self._check_fixed("hidden_act", "silu", kwargs.pop("hidden_act", None))
        self._check_fixed("attention_bias", False, kwargs.pop("attention_bias", None))
        self._check_fixed("mlp_bias", False, kwargs.pop("mlp_bias", None))
        scheme = kwargs.get("quantization_config")
        if isinstance(scheme, dict) and scheme.get("quant_method") == "monolane":
            # Transformers would warn, and then load the integer codes as if they were weights.
            raise _error(
                "quantization_config", "none: only monolane's engine reads its codes", scheme
            )
        if kwargs.get("architectures") == ["LaneformerTPForCausalLM"]:
            kwargs["architectures"] = ["LaneformerForCausalLM"]
        super().__init__(**kwargs)
        # After the base class, whose signature held these up to transformers 4 and drops them in 5.
        self.tie_word_embeddings = tie_word_embeddings
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.pad_token_id = pad_token_id

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read config.json; the earlier model type counts as this one, without a warning."""
        fields, unused = super().get_config_dict(*args, **kwargs)
        if fields.get("model_type") == "laneformer_tp":
            fields = {**fields, "model_type": cls.model_type}
        return fields, unused

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def layer_types(self) -> list[str]:
        """Kind of attention per layer, in the words of transformers' caches and masks."""
        windowed = set(self.swa_layers)
        return [
            "sliding_attention" if layer in windowed else "full_attention"
            for layer in range(self.num_hidden_layers)
        ]

    def reduce_rule(self, kind: Literal["attention", "mlp"], layer: int) -> ReduceRule:
        """Return how lanes combine the outputs of one module: at once, late, or not at all."""
        if layer < self.broadcast_delay:
            return "now" if self.use_early_comm else "never"
        if not (self.use_attention_comm if kind == "attention" else self.use_mlp_comm):
            return "never"
        return "after" if self.broadcast_delay else "now"

    def _check_sizes(self) -> None:
        for name, least in (
            ("hidden_size", 1),
            ("intermediate_size", 1),
            ("num_hidden_layers", 1),
            ("num_attention_heads", 1),
            ("num_key_value_heads", 1),
            ("vocab_size", 1),
            ("max_position_embeddings", 1),
            ("num_lanes", 1),
            ("broadcast_delay", 0),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise _error(name, f"an integer of at least {least}", value)
        self._check_multiple("hidden_size", "num_attention_heads")
        self._check_multiple("num_attention_heads", "num_key_value_heads")
        for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
            self._check_multiple(name, "num_lanes")
        if self.head_dim % 2:
            raise _error("hidden_size / num_attention_heads", "an even head width", self.head_dim)

    def _check_multiple(self, name: str, divisor: str) -> None:
        value, by = getattr(self, name), getattr(self, divisor)
        if value % by:
            raise _error(name, f"a multiple of {divisor} = {by}", value)

    def _check_options(self, tie_word_embeddings: bool) -> None:
        for name in (
            "use_attention_comm",
            "use_mlp_comm",
            "use_early_comm",
            "pre_norm_lane_agg",
            "replicated_rmsn_scale",
            "use_cache",
        ):
            if type(getattr(self, name)) is not bool:
                raise _error(name, "true or false", getattr(self, name))
        if type(tie_word_embeddings) is not bool:
            raise _error("tie_word_embeddings", "true or false", tie_word_embeddings)
        if self.lm_head_type not in LM_HEAD_TYPES:
            raise _error("lm_head_type", f"one of {', '.join(LM_HEAD_TYPES)}", self.lm_head_type)
        if self.lm_head_type == "vocab_parallel":
            self._check_multiple("vocab_size", "num_lanes")
        if self.pre_norm_lane_agg and self.lm_head_type != "replicate":
            raise _error(
                "lm_head_type", "'replicate', as pre_norm_lane_agg is true", self.lm_head_type
            )
        if tie_word_embeddings and self.lm_head_type == "lane":
            raise _error(
                "lm_head_type",
                "'vocab_parallel' or 'replicate', as tie_word_embeddings is true",
                self.lm_head_type,
            )

    def _windowed(self, swa_layers: Any, n_layers: Any, unclamped_layers: Any) -> list[int]:
        """Return the ids of the windowed layers, whichever spelling named them."""
        window, layers = self.sliding_window, self.num_hidden_layers
        if n_layers is not None and (type(n_layers) is not int or abs(n_layers) > layers):
            raise _error(
                "sliding_window_n_layers", f"an integer from -{layers} to {layers}", n_layers
            )
        unclamped = self._layer_ids("unclamped_layers", unclamped_layers) or set()
        named = self._layer_ids("swa_layers", swa_layers)
        if n_layers is not None:
            ids = range(layers)
            counted = set(ids[:n_layers] if n_layers >= 0 else ids[n_layers:])
            if named is not None and named - unclamped != counted - unclamped:
                expected = sorted(counted - unclamped)
                raise _error(
                    "swa_layers", f"{expected}, as sliding_window_n_layers says", swa_layers
                )
            named = counted
        if named is None:
            if window is not None:
                raise _error("swa_layers", f"layer ids for sliding_window = {window}", None)
            return []
        named -= unclamped
        # transformers' sliding cache keeps window - 1 keys, and with a window of 1 it keeps all.
        if named and (type(window) is not int or window < 2):
            raise _error("sliding_window", "an integer of at least 2, as layers use it", window)
        return sorted(named)

    def _layer_ids(self, name: str, ids: Any) -> set[int] | None:
        layers = self.num_hidden_layers
        if ids is None:
            return None
        if not isinstance(ids, list | tuple) or not all(
            type(layer) is int and 0 <= layer < layers for layer in ids
        ):
            raise _error(name, f"a list of layer ids from 0 to {layers - 1}", ids)
        return set(ids)

    def _check_fixed(self, name: str, value: Any, given: Any) -> None:
        """Refuse a field that the architecture, or the other fields, leave no choice in."""
        if given is not None and given != value:
            raise _error(name, repr(value), given)


def _error(field: str, expected: str, got: Any) -> ValueError:
    return ValueError(
        f"Laneformer config: {field}: expected {expected} but got {got!r}; "
        "mend this field, or the ones that it must agree with"
    )


def _either(name: str, given: Any, use_comm: Any) -> Any:
    """One field of the released spelling, or its earlier spelling ``use_comm``, or true."""
    if given is None:
        return True if use_comm is None else use_comm
    if use_comm is not None and use_comm != given:
        raise _error(name, f"{use_comm!r}, as use_comm says", given)
    return given


def _epsilon(norm_eps: Any, rms_norm_eps: Any) -> float:
    """``norm_eps`` or its other spelling; 1e-5 where neither is given."""
    if norm_eps is not None and rms_norm_eps is not None and norm_eps != rms_norm_eps:
        raise _error("norm_eps", f"{rms_norm_eps!r}, as rms_norm_eps says", norm_eps)
    value = norm_eps if norm_eps is not None else rms_norm_eps
    if value is None:
        return 1e-5
    if type(value) not in (int, float) or value <= 0:
        raise _error("norm_eps", "a number above 0", value)
    return float(value)


def _rotary(theta: Any, scaling: Any, parameters: Any) -> tuple[float, dict[str, Any] | None]:
    """Theta and the Llama 3 scaling, if any; ``parameters`` is how transformers 5 spells both."""
    if parameters is not None:
        theta = parameters.get("rope_theta", theta)
        scaling = parameters
    if type(theta) not in (int, float) or theta <= 0:
        raise _error("rope_theta", "a number above 0", theta)
    if scaling is None:
        return float(theta), None
    if not isinstance(scaling, dict):
        raise _error("rope_scaling", "an object or null", scaling)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return float(theta), None
    if kind != "llama3":
        raise _error("rope_scaling.rope_type", "'llama3' or 'default'", kind)
    for name in LLAMA3_FIELDS:
        if type(scaling.get(name)) not in (int, float) or scaling[name] <= 0:
            raise _error(f"rope_scaling.{name}", "a number above 0", scaling.get(name))
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    if high <= low:
        raise _error("rope_scaling.high_freq_factor", f"more than low_freq_factor = {low}", high)
    return float(theta), {"rope_type": "llama3", **{name: scaling[name] for name in LLAMA3_FIELDS}}
