"""Hands the weights of a model to the core: floats in place if they fit, all else converted."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane._core import Executor, WeightTable
from monolane.cpu._arithmetic import Arithmetic
from monolane.cpu._pages import release_pages
from monolane.errors import BackendError, CheckpointError
from monolane.model import (
    COMMON_FEATURES,
    STORED,
    Blocks,
    Kind,
    LaneCut,
    ModelConfig,
    Quantized,
    Role,
    WeightFormat,
    Weights,
    find_format,
    lane_cut,
)
from monolane.ops import ROTARIES
from monolane.plan import Plan

ROLES = tuple(Role)
_FREQUENCIES = -1  # no tensor of the checkpoint: computed from the config
# Small matrices that the core reads whole in every worker, in float32.
_WHOLE = frozenset({Role.ALTUP_ROUTER, Role.ALTUP_PREDICT, Role.ALTUP_CORRECT})
OUTER = -1  # in a layer's place: outside the layers

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Handover:
    """The table that the core reads, and what is to be known of the matrices, by role and layer."""

    table: WeightTable
    sources: dict[tuple[Role, int], list[Array]]  # those that the core is to convert
    formats: dict[tuple[Role, int | None], str]  # what products read


def hand_over(weights: Weights, config: ModelConfig, arithmetic: Arithmetic) -> Handover:
    """Describe a model's weights to the core; BackendError if a format cannot hold a matrix.

    ``config`` is that of the weights, or of a dense model's in lanes.
    """
    found = Handover(WeightTable(config.num_layers), {}, {})
    wanted = None if keeps_floats(config) else arithmetic.weights
    places = [(role, OUTER, array) for role, array in weights.outer.items()]
    places += [(role, i, x) for i, layer in enumerate(weights.layers) for role, x in layer.items()]
    for role, index, array in places:
        if role.kind in (Kind.NORM, Kind.VECTOR) or role in _WHOLE:
            # The core knows no offset: it is in the float32 scales that it reads.
            offset = np.float32(config.norm_offset if role.kind is Kind.NORM else 0)
            cut = lane_cut(weights.config, config, role)
            if role is Role.DELTA_CONV:
                array = _taps(config, array)
            elif role is Role.MAMBA_CONV:
                array = array[0, :, 0].T  # [C, channels], as the core reads it
            _set_vector(found.table, role, index, cut.of(array.reshape(-1)), offset)
        else:
            matrix = array.reshape(-1, array.shape[-1])  # lanes one below the other
            _set(found, role, index, matrix, wanted, lane_cut(weights.config, config, role))
    for (role, place), coded in weights.quantized.items():
        _set_coded(found, role, place, coded, wanted, lane_cut(weights.config, config, role))
    for (role, layer), each in weights.experts.items():
        for expert, one in enumerate(each):
            if isinstance(one, np.ndarray):
                rows = one.reshape(-1, one.shape[-1])
                _set(found, role, layer, rows, wanted, LaneCut(), expert)
            else:
                _set_coded(found, role, layer, one, wanted, LaneCut(), expert)
    for i, which in enumerate(ROTARIES):
        rotary = config.local_rotary if which == "local" else config.rotary
        if rotary is not None:
            frequencies = rotary.frequencies(config.rotary_dim(which))
            found.table.set_vector(_FREQUENCIES, i, frequencies)
    return found


def _taps(config: ModelConfig, conv: Array) -> Array:
    """Order a convolution's weights [1, channels, 1, C] as the core reads them: [C, G, channels].

    The channels of a key head lie together there; files have them as DELTA_QKV has its rows.
    """
    delta = config.delta
    assert delta is not None
    heads = range(delta.key_heads)
    by_head = [conv[0, part, 0].T for head in heads for part in delta.channels_of(head)]
    return np.concatenate(by_head, axis=-1)


def convert(core: Executor, plan: Plan, sources: Mapping[tuple[Role, int], list[Array]]) -> None:
    """Have the workers convert what is not stored as it is used, a matrix after the other.

    The pages of each source are given back as soon as it is done, so that at most one matrix is
    resident twice. CheckpointError if a weight has no code.
    """
    for phase in plan.phases:
        for i, matrix in enumerate(phase.matrices):
            try:
                core.convert(phase.index, i)
            except ValueError as error:
                raise CheckpointError(f"{matrix.role.value}: {error}") from None
            for source in sources.get((matrix.role, phase.layer), ()):
                release_pages(source)


def keeps_floats(config: ModelConfig) -> bool:
    """Tell whether a model is quantised, and says which of its matrices are floats."""
    return config.quantization is not None and config.quantization.keeps_floats


def _set_vector(
    table: WeightTable, role: Role, layer: int, array: Array, offset: np.float32
) -> None:
    vector = np.ascontiguousarray(array, np.float32).reshape(-1)
    table.set_vector(ROLES.index(role), layer, vector + offset if offset else vector)


def _set(
    found: Handover,
    role: Role,
    layer: int,
    matrix: Array,
    wanted: WeightFormat | None,
    cut: LaneCut,
    expert: int = 0,
) -> None:
    rows, columns = matrix.shape
    stored = STORED[matrix.dtype]
    # Embedding rows are looked up, not multiplied: one row a token, whatever its format.
    if role.kind in (Kind.LOOKUP, Kind.KEPT) or wanted is None:
        wanted = stored
    lane_columns = columns // cut.column_parts
    if wanted.coded and lane_columns % wanted.group:
        raise BackendError(
            f"dtype: {wanted.short} needs rows of a multiple of {wanted.group} columns, got "
            f"{lane_columns} in {role.value}; use bfloat16 or float32 for this model"
        )
    found.table.set_matrix(
        role=ROLES.index(role),
        layer=layer,
        values=_bytes(matrix),
        scales=None,
        rows=rows,
        columns=columns,
        format=stored.code,
        wanted=wanted.multiplied.code,
        **asdict(cut),
        expert=expert,
    )
    if wanted is not stored or cut.copied:
        found.sources.setdefault((role, layer), []).append(matrix)
    if role.kind is not Kind.LOOKUP:
        found.formats[role, None if layer == OUTER else layer] = wanted.name


def _set_coded(
    found: Handover,
    role: Role,
    place: int | None,
    matrix: Quantized | Blocks,
    wanted: WeightFormat | None,
    cut: LaneCut,
    expert: int = 0,
) -> None:
    if isinstance(matrix, Blocks):
        _set_blocks(found, role, place, matrix, wanted, cut, expert)
    else:
        _set_quantized(found, role, OUTER if place is None else place, matrix, cut, expert)


def _set_blocks(
    found: Handover,
    role: Role,
    place: int | None,
    matrix: Blocks,
    wanted: WeightFormat | None,
    cut: LaneCut,
    expert: int,
) -> None:
    """Hand over blocks: embedding rows are looked up in them, of others the workers make panels.

    Panels of the blocks as they are, or of what is wanted instead.
    """
    stored = find_format(matrix.format)
    looked_up = role.kind is Kind.LOOKUP
    if looked_up and matrix.factor != 1.0:
        raise BackendError(
            f"{role.value}: expected blocks without a number beside them by which all are "
            "multiplied, got one; choose the backend reference, or another file of the model"
        )
    used = (wanted or stored).multiplied
    block = stored.super_block or stored.group
    if matrix.columns % (block * cut.column_parts):
        raise BackendError(
            f"ranks: expected {cut.column_parts} lanes with whole blocks of {block} columns each, "
            f"as {role.value} of layer {place} is stored in {matrix.format.upper()}, got "
            f"{matrix.columns} columns; use fewer ranks, or a file in Q8_0"
        )
    found.table.set_matrix(
        role=ROLES.index(role),
        layer=OUTER if place is None else place,
        values=_bytes(matrix.data),
        scales=None,
        rows=prod(matrix.shape[:-1]),
        columns=matrix.columns,
        format=stored.code,
        wanted=stored.code if looked_up else used.code,
        **asdict(cut),
        expert=expert,
        factor=matrix.factor,
    )
    if not looked_up:
        found.formats[role, place] = used.name
        found.sources.setdefault((role, OUTER if place is None else place), []).append(matrix.data)


def block_formats(weights: Weights) -> tuple[str, ...]:
    """Return the formats of the blocks that a model is stored in, that of the most bytes first."""
    sizes: Counter[str] = Counter()
    for _, matrix in weights.coded():
        if isinstance(matrix, Blocks):
            sizes[matrix.format] += matrix.data.nbytes
    return tuple(name for name, _ in sizes.most_common())


def _set_quantized(
    found: Handover, role: Role, layer: int, matrix: Quantized, cut: LaneCut, expert: int
) -> None:
    """Hand over codes and scales as they lie in memory: mapped, if they came from a file."""
    *outer, columns = matrix.shape
    stored = find_format(f"int{matrix.bits}")
    looked_up = role.kind is Kind.LOOKUP
    found.table.set_matrix(
        role=ROLES.index(role),
        layer=layer,
        values=_bytes(matrix.codes),
        scales=_bytes(matrix.scales),
        rows=prod(outer),
        columns=columns,
        format=stored.code,
        wanted=stored.code if looked_up else stored.multiplied.code,
        **asdict(cut),
        expert=expert,
    )
    if not looked_up:
        found.sources.setdefault((role, layer), []).append(matrix.codes)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def check_config(config: ModelConfig) -> None:
    """Refuse what the kernels do not hold."""
    config.check_features("cpu", *COMMON_FEATURES)
    for attention in config.attentions.values():
        if attention.cached_width > 1024:
            name = "head_dim" if attention.latent is None else "latent"
            raise BackendError(
                f"{name}: the CPU backend holds keys of at most 1024 numbers, got "
                f"{attention.cached_width}"
            )
