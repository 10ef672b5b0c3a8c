"""The one description of a decoder that every executor reads.

A model family (Laneformer, Llama, Qwen2, ...) is a way to spell these fields in config.json and to
name its tensors; it never brings a class of its own, so an executor that handles the fields handles
every family. An ordinary dense model is one lane whose modules reduce ``NOW``.
"""

import math
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal, TypeVar

from monolane.errors import BackendError, ConfigError
from monolane.model._altup import PLACES, AltUp
from monolane.model._hyper import HYPER, Hyper
from monolane.model._layer_config import LayerConfig, layer_features
from monolane.model._matrix_columns import matrix_columns
from monolane.model._module import Module
from monolane.model._quant_config import Quantization
from monolane.model._rotary import LongRopeScaling, Rotary, YarnScaling
from monolane.ops import (
    MAX_SIZE,
    Activation,
    Attention,
    Delta,
    Experts,
    Index,
    Latent,
    LayerRotary,
    Mlp,
    Operation,
    QkNorm,
    Shapes,
    Temperature,
    operations,
)

# Deeper than any published decoder; bounds what a hostile config.json can make us allocate.
MAX_LAYERS = 1024

_FLAGS = ("qkv_bias", "attention_gate")
Found = TypeVar("Found", bound=Operation)
WeightDtype = Literal["bfloat16", "float16", "float32"]
WEIGHT_DTYPES: tuple[WeightDtype, ...] = ("bfloat16", "float16", "float32")


def feature(default: Any) -> Any:
    """Declare a field that asks executors for arithmetic of its own if it has another value."""
    return field(default=default, metadata={"feature": True})


class Head(StrEnum):
    """How the lanes' streams become logits."""

    VOCAB_PARALLEL = (
        "vocab_parallel"  # lane l: rows l*V/L .. (l+1)*V/L - 1 of its own normed stream
    )
    MEAN = "mean"  # one head on the mean over lanes of the normed streams
    SUM = "sum"  # one head on the norm of the sum of the lanes' streams
    CONCAT = "concat"  # one head [V, L*D] on the concatenated normed streams


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of L lanes; sizes count over all lanes. ConfigError if they do not fit together."""

    family: str
    hidden_size: int  # D
    intermediate_size: int  # F, of the MLPs that are no mixtures
    num_heads: int  # H, query heads
    num_kv_heads: int  # K
    head_dim: int  # h, of a query and a key
    vocab_size: int  # V
    max_positions: int  # trained context, in tokens
    num_lanes: int  # L
    layers: tuple[LayerConfig, ...]
    head: Head
    rotary: Rotary = field(default_factory=Rotary)
    local_rotary: Rotary | None = feature(None)  # of the layers whose rotary is "local"
    norm_eps: float = 1e-5
    norm_offset: float = feature(0.0)  # added to every norm's scale, also of queries and keys
    norm_centred: bool = feature(False)  # norms of streams take off the mean first (LayerNorm)
    norm_before: bool = feature(True)  # what a module reads is normed
    norm_after: bool = feature(False)  # what the stream gains from a module, reduced, is normed
    norm_scale_per_lane: bool = True  # RMSNorm scale [L, D]; otherwise [D], shared by the lanes
    qkv_bias: bool = feature(False)
    out_bias: bool = feature(False)  # of the product behind attention
    # Each query head has a score of its own in the softmax's denominator, which has no value.
    attention_sinks: bool = feature(False)
    qk_norm: QkNorm | None = feature(None)
    # Heads are normed behind the rotary embedding, not before; in layers without one not at all.
    norm_turned: bool = feature(False)
    qk_unscaled: bool = feature(False)  # the norm of queries and keys has no scales
    attention_temperature: Temperature | None = feature(None)  # grows with a query's position
    # What each head gives is multiplied by sigmoids of a gate, which Q has rows for: of each head
    # those of the query, then as many of the gate.
    attention_gate: bool = feature(False)
    index: Index | None = feature(None)  # what chooses the keys that attention sees
    latent: Latent | None = feature(None)  # what keys and values are made of, in place of K and V
    delta: Delta | None = feature(None)  # of the layers that have it in place of attention
    score_cap: float | None = feature(None)  # c: scores, scaled, become c tanh(score / c)
    query_scale: float | None = feature(None)  # of the scores; None: 1 / sqrt(head_dim)
    key_scale: float = feature(1.0)  # of keys, beside the scale of the scores
    value_norm: bool = feature(False)  # each head's values are normed, without scales
    # Of the gate; "gelu_tanh": by GELU's tanh formula. "clamped_swiglu" is of gate and up both:
    # g * sigmoid(1.702 g) * (u + 1), g at most 7 and u from -7 to 7 (GPT-OSS).
    activation: Activation = feature("silu")
    experts: Experts | None = feature(None)  # of the layers that are mixtures of experts
    embedding_scale: float = feature(1.0)  # of embedded tokens; a tied head reads rows unscaled
    residual_scale: float = feature(1.0)  # of what a stream gains from a module
    altup: AltUp | None = feature(None)  # several streams, of which layers work on the first
    hyper: Hyper | None = feature(None)  # several streams that each module reads and writes
    layer_scales: bool = feature(False)  # behind each layer the streams have a scale of its own
    logit_scale: float = feature(1.0)
    logit_cap: float | None = feature(None)  # c: logits, scaled, become c tanh(logit / c)
    tie_embeddings: bool = False  # the head's rows are the embedding's
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    dtype: WeightDtype = "bfloat16"
    quantization: Quantization | None = None  # of the matrices; dtype is that of all else
    # Of layers that predict further ahead, by themselves: how many there are of the model before
    # them, whose states they read and which they draft for (families/_ahead.py).
    behind: int | None = None
    # Of each layer, in the order in which they join the streams. What executors read.
    modules: tuple[tuple[Module, ...], ...] = field(init=False, repr=False, compare=False)
    # Of weights outside the layers that layers' operations share.
    shared_shapes: Shapes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_own_sizes()
        for i, layer in enumerate(self.layers):
            layer.check_modules(i, self.num_lanes)
        object.__setattr__(self, "modules", tuple(self._modules(x) for x in self.layers))
        shared: Shapes = {}
        for operation in self.operations:
            shared |= operation.outer(self.hidden_size)
        for streams in (self.altup, self.hyper):
            shared |= {} if streams is None else streams.outer(self.hidden_size)
        object.__setattr__(self, "shared_shapes", shared)
        self._check_latent()
        self._check_index()
        self._check_delta()
        self._check_lanes()
        self._check_layers()
        self._check_experts()
        self._check_token_ids()
        self._check_quantization()

    @property
    def num_layers(self) -> int:
        """Number of layers, N."""
        return len(self.layers)

    @property
    def longest_context(self) -> int:
        """Tokens that a sequence may hold at most: what YaRN stretches the trained context to.

        To switch YaRN on, cards add it to config.json and leave max_position_embeddings alone.
        """
        scaling = self.rotary.scaling
        if not isinstance(scaling, YarnScaling):
            return self.max_positions
        stretched = min(scaling.factor * scaling.original_context, MAX_SIZE)
        return max(self.max_positions, int(stretched))

    def for_context(self, context: int) -> "ModelConfig":
        """Return the config of the model as it is loaded for sequences of so many tokens."""
        scaling = self.rotary.scaling
        if not isinstance(scaling, LongRopeScaling):
            return self
        return replace(self, rotary=replace(self.rotary, scaling=replace(scaling, context=context)))

    def rotary_dim(self, which: LayerRotary) -> int:
        """Return how many numbers of a head's query and key a rotary embedding turns.

        The first ones, where attention is latent the last; of all layers that it turns as many.
        """
        rotary = self.local_rotary if which == "local" else self.rotary
        assert rotary is not None
        widths = (x.turned_width for x in self.attentions.values() if x.rotary == which)
        usual = self.head_dim if self.latent is None else self.latent.turned
        return rotary.turned(next(widths, usual))

    def attention(self, layer: int) -> Attention:
        """Return a layer's attention; of a model whose layers are alike any layer's will do."""
        return self.operation(layer, Attention)

    @property
    def attentions(self) -> dict[int, Attention]:
        """The layers that have attention."""
        found = ((i, self.find(i, Attention)) for i in range(self.num_layers))
        return {i: attention for i, attention in found if attention is not None}

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations of all layers, each of those that are alike once."""
        return tuple(dict.fromkeys(x.operation for layer in self.modules for x in layer))

    @property
    def layers_with_states(self) -> int:
        """How many layers keep something of a sequence in a fixed size, which goes forward only."""
        return sum(
            any(module.operation.state() is not None for module in layer) for layer in self.modules
        )

    def find(self, layer: int, kind: type[Found]) -> Found | None:
        """Return a layer's operation of that kind, if it has one."""
        found = (module.operation for module in self.modules[layer])
        return next((x for x in found if isinstance(x, kind)), None)

    def operation(self, layer: int, kind: type[Found]) -> Found:
        """Return a layer's operation of that kind, which it must have."""
        found = self.find(layer, kind)
        assert found is not None, f"layer {layer} has no {kind.__name__}"
        return found

    def _modules(self, layer: LayerConfig) -> tuple[Module, ...]:
        head_dim = layer.head_dim or self.head_dim
        unturned, temperature = layer.rotary == "none", self.attention_temperature
        read_scale = next((x.read_scale for x in layer.listed if x.operation == "attention"), 1.0)
        scale = 1 / math.sqrt(head_dim) if self.query_scale is None else self.query_scale
        attention = Attention(
            heads=layer.num_heads or self.num_heads,
            kv_heads=layer.num_kv_heads or self.num_kv_heads,
            head_dim=head_dim,
            window=layer.window,
            chunked=layer.chunked,
            rotary=layer.rotary,
            qk_norm=None if self.norm_turned and unturned else self.qk_norm,
            qk_unscaled=self.qk_unscaled,
            bias=self.qkv_bias,
            out_bias=self.out_bias,
            sinks=self.attention_sinks,
            gate=self.attention_gate,
            scale=scale * self.key_scale * read_scale**2,
            latent=self.latent,
            index=self.index,
            index_of=layer.index_of,
            keys_of=layer.keys_of,
            value_norm=self.value_norm,
            key_is_value=layer.key_is_value,
            cap=self.score_cap,
            norm_turned=self.norm_turned,
            temperature=temperature if temperature and temperature.meets(unturned) else None,
        )
        inner = layer.intermediate_size or self.intermediate_size
        activation, experts = self.activation, self.experts
        if experts is not None and layer.hashed:
            experts = replace(experts, corrected=False, table=self.vocab_size)
        named: dict[str, Operation | None] = {
            "attention": attention,
            "delta": self.delta,
            "mlp": Mlp(inner=inner, activation=activation),
            "experts": None if experts is None else replace(experts, activation=activation),
        }
        found = []
        for place, x in enumerate(layer.listed):
            operation = named[x.operation] if isinstance(x.operation, str) else x.operation
            if operation is None:
                continue  # its sizes are asked for below
            module = Module(
                operation=operation,
                reduce=layer.mlp_reduce if place else layer.attention_reduce,
                scale=self.residual_scale * x.scale * x.read_scale,
                norm_before=self.norm_before if x.norm_before is None else x.norm_before,
                norm_after=self.norm_after if x.norm_after is None else x.norm_after,
                beside=x.beside,
                same_norm=x.same_norm and self.norm_before,
                joint_norm=x.joint_norm,
                held=place + 1 < len(layer.listed) and layer.listed[place + 1].joint_norm,
                stream_scale=self.layer_scales and place == len(layer.listed) - 1,
                replaces=x.replaces,
                stream_factor=1.0 if self.altup is None else AltUp.FACTORS.get(place, 1.0),
                aside=self.altup is not None and place == PLACES - 1,
            )
            found.append(module)
        return tuple(found)

    @property
    def num_streams(self) -> int:
        """Streams that a token has in each worker: several where there is ``altup``."""
        return 1 if self.altup is None else self.altup.streams

    @property
    def final_norm_per_lane(self) -> bool:
        """Whether the last norm has a scale per lane: the sum of lanes is one stream."""
        return self.norm_scale_per_lane and self.head is not Head.SUM

    @property
    def num_parameters(self) -> int:
        """Number of weights, norms and biases included, a tied head counted once."""
        d, lanes = self.hidden_size, self.num_lanes
        norm = d * (lanes if self.norm_scale_per_lane else 1)
        final_norm = d * (lanes if self.final_norm_per_lane else 1)
        modules = [module for layer in self.modules for module in layer]
        norms = norm * sum(x.norm_before + x.norm_after - x.same_norm for x in modules)
        norms += norm * sum(module.joint_norm for module in modules)
        norms += self.num_layers if self.layer_scales else 0
        for streams in (self.altup, self.hyper):
            each = () if streams is None else streams.tensors(d).values()
            norms += self.num_layers * sum(math.prod(shape) for shape in each)
        layers = norms + sum(module.operation.parameters(d) for module in modules)
        head = 0 if self.tie_embeddings else self.vocab_size * self.head_inputs
        layers += sum(math.prod(shape) for shape in self.shared_shapes.values())
        return self.vocab_size * d + layers + final_norm + head

    @property
    def stored_dtype(self) -> str:
        """How the matrices are stored: ``dtype``, or "int8" or "int4" where they are quantised."""
        return self.dtype if self.quantization is None else self.quantization.dtype

    @property
    def head_inputs(self) -> int:
        """Columns of the head's matrix: D, or L*D where it reads all lanes at once."""
        return self.hidden_size * (self.num_lanes if self.head is Head.CONCAT else 1)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the fields that ask for more arithmetic than every executor has."""
        return tuple(self._features())

    def check_features(self, executor: str, *computed: str) -> None:
        """Refuse a model with features that an executor does not compute.

        So executors that lack a new feature need no change, and none of them ignores it. What an
        executor computes is a field, ``"qk_norm"``, or one value of it, ``"qk_norm=head"``.
        """
        known = {f"operations.{x.__name__}" for x in operations() if executor in x.computed_by}
        for name, value in self._features().items():
            if name in known:
                continue
            if name not in computed and f"{name}={value}" not in computed:
                raise BackendError(
                    f"{name}: the {executor} backend does not compute it yet ({value}), and this "
                    f"{self.family} model needs it; choose another backend"
                )

    def _features(self) -> dict[str, Any]:
        """Return the features that are not as in every model, and their values."""
        marked = [x for x in fields(self) if x.metadata.get("feature")]
        found = {x.name: getattr(self, x.name) for x in marked}
        found = {x.name: found[x.name] for x in marked if found[x.name] != x.default}
        # Parts of fields that every executor knows.
        found |= layer_features(self.layers)
        rotaries = [x for x in (self.rotary, self.local_rotary) if x is not None]
        if self.experts is not None and self.experts.limit is not None:
            found["experts.limit"] = self.experts.limit
        if self.experts is not None and self.experts.scores == "sqrtsoftplus":
            found["experts.scores"] = self.experts.scores
        if amplitudes := [x.amplitude for x in rotaries if x.amplitude != 1]:
            found["rotary.amplitude"] = amplitudes[0]
        if parts := [x.part for x in rotaries if x.part != 1]:
            found["rotary.part"] = parts[0]
        return found

    def _check_sizes(self) -> None:
        names = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
        for name in (*names, "vocab_size", "max_positions", "num_lanes"):
            value = getattr(self, name)
            if not 1 <= value <= MAX_SIZE:
                raise ConfigError(f"{name}: expected 1 to {MAX_SIZE}, got {value}")
        if not 1 <= self.num_layers <= MAX_LAYERS:
            raise ConfigError(f"layers: expected 1 to {MAX_LAYERS} layers, got {self.num_layers}")
        if self.latent is None and self.head_dim % 2:
            raise ConfigError(
                f"head_dim: expected an even size, as rotary pairs need, got {self.head_dim}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads: expected a multiple of num_kv_heads ({self.num_kv_heads}), so that "
                f"each KV head serves as many query heads, got {self.num_heads}"
            )
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps: expected a number between 0 and 1, got {self.norm_eps}")
        scales = ("query_scale", "key_scale", "embedding_scale", "residual_scale", "logit_scale")
        for name in (*scales, "logit_cap", "score_cap"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}: expected a number above 0, got {value}")
        if self.attention_gate and (self.qk_norm is QkNorm.ALL or self.qkv_bias):
            raise ConfigError(
                "attention_gate: expected false with qkv_bias, or with a norm over all heads: no "
                "family has both"
            )
        scaled = any(x.read_scale != 1 for layer in self.layers for x in layer.listed)
        if scaled and (self.qk_norm or self.qkv_bias or self.out_bias or self.latent):
            raise ConfigError(
                "layers: modules: expected no read_scale with norms or biases of queries and keys, "
                "a bias behind attention, or latent attention: no family has both"
            )
        if self.value_norm and (self.qk_norm is QkNorm.ALL or self.latent is not None):
            raise ConfigError(
                "value_norm: expected false with a norm over all heads, or where attention is "
                "latent: no family has both"
            )
        for name in ("norm_turned", "qk_unscaled"):
            if getattr(self, name) and self.qk_norm is not QkNorm.HEAD:
                raise ConfigError(
                    f"{name}: expected false without a norm of each head, got {self.qk_norm}"
                )
        if not (self.norm_before or self.norm_after):
            raise ConfigError(
                "norm_after: expected true where norm_before is false: a module without any norm "
                "is in no family"
            )
        if self.dtype not in WEIGHT_DTYPES:
            raise ConfigError(
                f"dtype: expected one of {', '.join(WEIGHT_DTYPES)}, got {self.dtype!r}"
            )

    def _check_own_sizes(self) -> None:
        for i, layer in enumerate(self.layers):
            for name, value in layer.sizes.items():
                divisor = 2 if name == "head_dim" else self.num_lanes
                if self.latent is not None or not 1 <= value <= MAX_SIZE or value % divisor:
                    raise ConfigError(
                        f"layer {i}: {name}: expected none where attention is latent, else a "
                        f"multiple of {divisor} up to {MAX_SIZE}, got {value}"
                    )
            heads = layer.num_heads or self.num_heads
            kv_heads = layer.num_kv_heads or self.num_kv_heads
            if heads % kv_heads:
                raise ConfigError(
                    f"layer {i}: num_heads: expected a multiple of num_kv_heads ({kv_heads}), got "
                    f"{heads}"
                )

    def _check_latent(self) -> None:
        latent = self.latent
        if latent is None:
            return
        if (self.head_dim, self.num_kv_heads) != (latent.head, self.num_heads):
            raise ConfigError(
                f"latent: expected head_dim {latent.head} and num_kv_heads {self.num_heads}, which "
                f"its sizes say, got {self.head_dim} and {self.num_kv_heads}"
            )
        if self.num_lanes > 1:
            raise ConfigError(
                f"latent: expected one lane, got {self.num_lanes}: a latent is not dealt out to "
                "lanes yet"
            )
        for name in ("qkv_bias", "qk_norm", "attention_gate", "score_cap"):
            if getattr(self, name):
                raise ConfigError(
                    f"{name}: expected {False if name in _FLAGS else None} where attention is "
                    f"latent, got {getattr(self, name)}"
                )

    def _check_index(self) -> None:
        if self.index is None:
            return
        latent = self.latent
        if latent is None or latent.query_rank is None or self.index.width < latent.turned:
            raise ConfigError(
                f"index: expected latent attention whose queries have a latent, and a width from "
                f"the {None if latent is None else latent.turned} numbers that it turns on, got "
                f"{latent} and {self.index.width}"
            )

    def _check_delta(self) -> None:
        deltas = sum(layer.delta for layer in self.layers)
        if (deltas > 0) != (self.delta is not None):
            raise ConfigError(
                "delta: expected its sizes where a layer has a gated delta rule, and only there, "
                f"got {self.delta} and {deltas} such layers"
            )
        if self.delta is None:
            return
        if self.num_lanes > 1:
            raise ConfigError(
                f"delta: expected one lane, got {self.num_lanes}: states are not dealt out to "
                "lanes yet"
            )
        for i, layer in enumerate(self.layers):
            if layer.delta and layer.window is not None:
                raise ConfigError(
                    f"layer {i}: window: expected None in a layer with a gated delta rule, got "
                    f"{layer.window}"
                )

    def _check_lanes(self) -> None:
        shared = ["num_heads", "num_kv_heads", "intermediate_size"]
        if self.head is Head.VOCAB_PARALLEL:
            shared.append("vocab_size")
        for name in shared:
            value = getattr(self, name)
            if value % self.num_lanes:
                raise ConfigError(
                    f"{name}: expected a multiple of the number of lanes ({self.num_lanes}), so "
                    f"that each lane owns an equal slice, got {value}"
                )
        if self.out_bias and self.num_lanes > 1:
            raise ConfigError(
                f"out_bias: expected one lane, got {self.num_lanes}: each would add the bias"
            )
        if self.tie_embeddings and self.head is Head.CONCAT:
            raise ConfigError(
                f"tie_embeddings: expected false with a head over all lanes: the embedding has "
                f"{self.hidden_size} columns, that head {self.head_inputs}"
            )

    def _check_layers(self) -> None:
        for i, layer in enumerate(self.layers):
            for place, name in enumerate(("attention_reduce", "mlp_reduce")):
                delay = getattr(layer, name).delay
                if delay is not None and delay > i:
                    raise ConfigError(
                        f"layer {i}: {name}: expected a delay of at most {i} layers, since it "
                        f"reads the outputs of layer {i} - delay, got {delay}"
                    )
                if delay and place < len(self.modules[i]) and place >= len(self.modules[i - delay]):
                    raise ConfigError(
                        f"layer {i}: {name}: expected the delay of a layer with as many modules, "
                        f"got {delay}: layer {i - delay} has {len(self.modules[i - delay])}"
                    )
            if layer.window is not None and layer.window < 1:
                raise ConfigError(
                    f"layer {i}: window: expected None or 1 and more, got {layer.window}"
                )
            if layer.chunked and layer.window is None:
                raise ConfigError(f"layer {i}: chunked: expected false without a window, got true")

            if layer.keys_of is not None:
                earlier = self.find(layer.keys_of, Attention) if 0 <= layer.keys_of < i else None
                layer.check_keys_of(i, self.find(i, Attention), earlier)
            if layer.index_of is not None:
                earlier = self.find(layer.index_of, Attention) if 0 <= layer.index_of < i else None
                layer.check_index_of(i, self.find(i, Attention), earlier)
            if layer.rotary == "local" and self.local_rotary is None:
                raise ConfigError(f"layer {i}: rotary: expected local_rotary with a local layer")
        places = {len(modules) for modules in self.modules}
        if self.altup is not None and (places != {PLACES} or self.num_lanes > 1):
            raise ConfigError(
                f"altup: expected one lane, and layers of {PLACES} modules, got {self.num_lanes} "
                f"and {', '.join(map(str, sorted(places)))}"
            )
        if self.hyper is not None and (places != {len(HYPER)} or self.num_lanes > 1 or self.altup):
            raise ConfigError(
                f"hyper: expected one lane, layers of {len(HYPER)} modules and no altup, got "
                f"{self.num_lanes} and {', '.join(map(str, sorted(places)))}"
            )
        if self.local_rotary is not None and self.local_rotary.style != self.rotary.style:
            raise ConfigError(
                f"local_rotary: expected {self.rotary.style} pairs as in rotary, got "
                f"{self.local_rotary.style} ones"
            )
        self._check_turned("main")
        if self.local_rotary is not None:
            self._check_turned("local")

    def _check_turned(self, which: LayerRotary) -> None:
        found = {x.turned_width for x in self.attentions.values() if x.rotary == which}
        if len(found) > 1:
            raise ConfigError(
                f"head_dim: expected heads of one width in all layers of the {which} rotary, got "
                f"{', '.join(map(str, sorted(found)))}"
            )
        turned, width = self.rotary_dim(which), next(iter(found), self.head_dim)
        if turned < 2 or turned % 2:
            raise ConfigError(
                f"rotary: expected an even part of a head of {width} numbers, as rotary "
                f"pairs need, got {turned}"
            )

    def _check_experts(self) -> None:
        mixtures = any(layer.experts for layer in self.layers)
        if mixtures != (self.experts is not None):
            raise ConfigError(
                "experts: expected their sizes where a layer is a mixture, and only there, got "
                f"{self.experts} and {sum(x.experts for x in self.layers)} such layers"
            )
        if self.experts is None:
            return
        if not 1 <= self.experts.inner <= MAX_SIZE:
            raise ConfigError(
                f"experts: expected an inner width of 1 to {MAX_SIZE}, got {self.experts.inner}"
            )
        if self.num_lanes > 1:
            raise ConfigError(
                f"experts: expected one lane in a model with mixtures, got {self.num_lanes}: "
                "experts are not dealt out to lanes yet"
            )

    def _check_token_ids(self) -> None:
        single = (("bos_id", self.bos_id), ("pad_id", self.pad_id))
        named = [(name, i) for name, i in single if i is not None]
        for name, token in named + [("eos_ids", i) for i in self.eos_ids]:
            if not 0 <= token < self.vocab_size:
                raise ConfigError(
                    f"{name}: expected a token id below vocab_size ({self.vocab_size}), got {token}"
                )

    def _check_quantization(self) -> None:
        if self.quantization is None:
            return
        lanes, group = self.num_lanes, self.quantization.group_size
        if self.quantization.packing is not None and lanes > 1:
            raise ConfigError(
                f"quantization_config: expected a scheme of ours with {lanes} lanes, got "
                f"{self.quantization.packing.method}, whose files have no lanes; quantise the "
                "float weights with 'monolane quantize'"
            )
        columns = [("hidden_size", self.hidden_size)]
        columns += [y for x in self.operations for y in matrix_columns(x, self.hidden_size, lanes)]
        for name, value in columns:
            if value % group:
                raise ConfigError(
                    f"quantization: expected matrices whose columns are a multiple of {group}, "
                    f"which share a scale, got {name} = {value}; keep this model in {self.dtype}"
                )
