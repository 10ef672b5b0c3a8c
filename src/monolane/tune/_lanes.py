"""A dense decoder as a Laneformer: its config, and its weights tensor by tensor; NumPy only.

A Laneformer whose lanes exchange at once computes what a dense decoder computes. How the matrices
are cut is told in ``model/_lanes.py``. Two more things change. Where the dense model turns the
pairs (x_i, x_i+E/2) of a head, the rows of queries and keys are put in the order of a Laneformer's
pairs (x_2i, x_2i+1): the scores are sums of the same terms. And a norm's scale is given to each
lane.

Shape suffixes: D hidden, H query heads, E head width, X rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from monolane.errors import CheckpointError, ConfigError
from monolane.model import (
    NEVER,
    NOW,
    Head,
    ModelConfig,
    PendingTensor,
    Reduce,
    Role,
    TensorSpec,
    Weights,
    in_lanes,
    lane_cut,
    tensor_specs,
)

Array = npt.NDArray[Any]
HeadName = Literal["auto", "vocab_parallel", "replicate"]


def lane_config(
    dense: ModelConfig, *, lanes: int, delay: int, early: bool = False, head: HeadName = "auto"
) -> ModelConfig:
    """Return the Laneformer that a dense model becomes; ConfigError says what does not fit.

    ``delay`` is in layers; ``early`` lets the layers before it exchange at once. ``head`` is where
    the lanes meet for the logits (auto: vocab_parallel where the vocabulary divides).
    """
    if dense.num_lanes != 1 or any(
        rule != NOW for x in dense.layers for rule in (x.attention_reduce, x.mlp_reduce)
    ):
        raise ConfigError(
            f"num_lanes: expected a dense model, got {dense.num_lanes} lanes: it is a Laneformer "
            "already"
        )
    if dense.quantization is not None:
        raise ConfigError(
            "quantization_config: expected float weights, got quantised ones; convert the model "
            "that they were made from"
        )
    for name in dense.features:
        if name != "qkv_bias":  # which may be zero: see check_biases
            raise ConfigError(f"{name}: expected a model without, as Laneformers are")
    if not 0 <= delay < dense.num_layers:
        raise ConfigError(
            f"delay: expected 0 to {dense.num_layers - 1}, as the model has {dense.num_layers} "
            f"layers and one must hear the others, got {delay}; give a shorter delay"
        )
    if head == "auto":
        head = "vocab_parallel" if dense.vocab_size % max(lanes, 1) == 0 else "replicate"
    first, late = NOW if early else NEVER, Reduce(delay)
    rules = [first if i < delay else late for i in range(dense.num_layers)]
    return replace(
        in_lanes(dense, lanes),
        family="laneformer",
        layers=tuple(
            replace(layer, attention_reduce=rule, mlp_reduce=rule)
            for layer, rule in zip(dense.layers, rules, strict=True)
        ),
        head=Head.VOCAB_PARALLEL if head == "vocab_parallel" else Head.MEAN,
        rotary=replace(dense.rotary, style="interleaved"),
        norm_scale_per_lane=True,
        qkv_bias=False,
    )


def lane_tensors(dense: Weights, config: ModelConfig) -> Iterator[PendingTensor]:
    """Yield the tensors of the Laneformer ``config`` that ``dense`` becomes."""
    for spec in tensor_specs(config):
        array = (dense.outer if spec.layer is None else dense.layers[spec.layer])[spec.role]
        yield PendingTensor(spec.name, array.dtype, spec.shape, _maker(dense, config, spec, array))


def check_biases(dense: Weights, source: str) -> None:
    """Refuse biases, which a Laneformer lacks; those that are all zero are left out."""
    for spec in tensor_specs(dense.config):
        if spec.role not in (Role.Q_BIAS, Role.K_BIAS, Role.V_BIAS) or spec.layer is None:
            continue
        if np.any(dense.layers[spec.layer][spec.role]):
            raise CheckpointError(
                f"{source}: tensor {spec.name!r}: a Laneformer has no biases, and these are not "
                "zero; there is no exact conversion (Qwen2's queries, keys and values have biases)"
            )


def interleaved(rows_XD: Array, head_dim: int) -> Array:
    """Order each head's rows for pairs (0, 1), (2, 3), ..., given in pairs (i, i + E/2)."""
    rows_H2eD = rows_XD.reshape(-1, 2, head_dim // 2, rows_XD.shape[-1])
    return rows_H2eD.swapaxes(1, 2).reshape(rows_XD.shape)


def _maker(
    dense: Weights, config: ModelConfig, spec: TensorSpec, array: Array
) -> Callable[[], Array]:
    cut = lane_cut(dense.config, config, spec.role)

    def make() -> Array:
        if spec.role is Role.EMBEDDING:
            return array
        values = array[0]  # of the dense model's one lane
        if spec.role in (Role.Q, Role.K) and dense.config.rotary.style == "half":
            values = interleaved(values, config.head_dim)
        if values.ndim == 1:  # a scale for each lane
            return np.broadcast_to(values, spec.shape)
        return cut.of(values).reshape(spec.shape)

    return make
