"""A dense decoder as a Laneformer: its config, and its weights tensor by tensor; NumPy only.

A Laneformer whose lanes exchange at once computes what a dense decoder computes. How the matrices
are cut is told in ``model/_lanes.py``. Two more things change. Where the dense model turns the
pairs (x_i, x_i+E/2) of a head, the rows of queries and keys are put in the order of a Laneformer's
pairs (x_2i, x_2i+1): the scores are sums of the same terms. A norm's scale is given to each lane.
And where the MLP's inner units cannot be dealt out evenly, each lane gets some that are all zero.

Shape suffixes: D hidden, F inner units, L lanes, H query heads, E head width, X rows.
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

# Inner units of a lane are a multiple of it where they are padded at all: coded weights have a
# scale for so many columns.
INNER_STEP = 32


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
    if lanes < 1 or dense.num_heads % lanes:
        fitting = [str(n) for n in range(1, dense.num_heads + 1) if dense.num_heads % n == 0]
        raise ConfigError(
            f"lanes: expected a number that divides num_attention_heads ({dense.num_heads}), one "
            f"of {', '.join(fitting)}; got {lanes}"
        )
    if not 0 <= delay < dense.num_layers:
        raise ConfigError(
            f"delay: expected 0 to {dense.num_layers - 1}, as the model has {dense.num_layers} "
            f"layers and one must hear the others, got {delay}; give a shorter delay"
        )
    if head == "auto":
        head = "vocab_parallel" if dense.vocab_size % max(lanes, 1) == 0 else "replicate"
    inner = padded_inner(dense.intermediate_size, lanes)
    first, late = NOW if early else NEVER, Reduce(delay)
    rules = [first if i < delay else late for i in range(dense.num_layers)]
    return replace(
        in_lanes(replace(dense, intermediate_size=inner), lanes),
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


def padded_inner(inner: int, lanes: int) -> int:
    """Return how many inner units the MLP has in so many lanes.

    Those there are, or where they do not divide, as many more as make each lane's a multiple of
    INNER_STEP.
    """
    if inner % lanes == 0:
        return inner
    step = lanes * INNER_STEP
    return -(-inner // step) * step


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


def padded_rows(rows_FX: Array, lanes: int, inner: int) -> Array:
    """Return F rows dealt out as evenly as can be, with zeros behind each lane's: [inner, X].

    A unit of zeros is silu(0) * 0 = 0, and training leaves it there: all its gradients are zero.
    """
    padded_LFX = np.zeros((lanes, inner // lanes, rows_FX.shape[1]), rows_FX.dtype)
    for lane_FX, part_FX in zip(padded_LFX, np.array_split(rows_FX, lanes), strict=True):
        lane_FX[: len(part_FX)] = part_FX
    return padded_LFX.reshape(inner, -1)


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
        if config.intermediate_size != dense.config.intermediate_size:
            if spec.role in (Role.GATE, Role.UP):
                values = padded_rows(values, config.num_lanes, config.intermediate_size)
            elif spec.role is Role.DOWN:
                values = padded_rows(values.T, config.num_lanes, config.intermediate_size).T
        return cut.of(values).reshape(spec.shape)

    return make
