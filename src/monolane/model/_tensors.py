"""What tensors a checkpoint must hold: name in the file, shape in the file, place in the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from math import prod

from monolane.errors import ConfigError
from monolane.model._config import Head, ModelConfig
from monolane.model._module import Module
from monolane.model._quant_config import Quantization
from monolane.ops import (
    EXPERT_ROLES,
    FILE_ROLES,
    JOINED,
    PARTED,
    Kind,
    Operation,
    Role,
    Shapes,
)

# Of a layer's modules, in their order: scales of the norms of what each reads, and of what the
# stream gains from it.
JOINING_NORMS = (
    (Role.ATTENTION_NORM, Role.POST_ATTENTION_NORM),
    (Role.MLP_NORM, Role.POST_MLP_NORM),
    (Role.THIRD_NORM, Role.POST_THIRD_NORM),
    (Role.FOURTH_NORM, Role.POST_FOURTH_NORM),
)


class Part(StrEnum):
    """What of a tensor one entry of a file holds; K are the tensor's columns."""

    WHOLE = "whole"  # floats [.., K]
    CODES = "codes"  # int8 [.., K], or uint8 [.., K/2] with two int4 in a byte
    SCALES = "scales"  # float16 [.., K/32]


def lane_shape(
    config: ModelConfig, role: Role, part: Part = Part.WHOLE, layer: int | None = None
) -> tuple[int, ...]:
    """Return the shape of a tensor as executors see it, lanes first (the embedding has none).

    K_UP and V_UP have the heads in the lanes' place: their products, too, are each one's own. Of
    experts' matrices it is that of one. ``part`` asks for the codes or the scales of a quantised
    tensor. Without ``layer`` it is that of the first layer that has one.
    """
    shapes = _outer_shapes(config)
    for i in range(config.num_layers) if layer is None else (layer,):
        if role in shapes:
            break  # outside the layers, or found
        shapes = _layer_shapes(config, i)
    shape = shapes[role]
    if part is Part.WHOLE:
        return shape
    assert config.quantization is not None
    return _part_shape(shape, part, config.quantization)


def layer_roles(config: ModelConfig, layer: int = 0) -> tuple[Role, ...]:
    """Return the roles that a layer fills, in the order in which a pass reads them."""
    return tuple(x for x in _layer_shapes(config, layer) if x not in FILE_ROLES)


def outer_roles(config: ModelConfig) -> tuple[Role, ...]:
    """Return the roles outside the layers, the head also where it is tied."""
    return tuple(x for x in _outer_shapes(config) if x not in FILE_ROLES)


def _outer_shapes(config: ModelConfig) -> Shapes:
    """Return the shapes of the tensors outside the layers, those of FILE_ROLES among them."""
    d, lanes = config.hidden_size, config.num_lanes
    head_lanes = lanes if config.head is Head.VOCAB_PARALLEL else 1
    return {
        Role.EMBEDDING: (config.vocab_size, d),
        **config.shared_shapes,
        **({} if config.altup is None else config.altup.joined(d)),
        Role.FINAL_NORM: (lanes if config.final_norm_per_lane else 1, d),
        Role.HEAD: (head_lanes, config.vocab_size // head_lanes, config.head_inputs),
    }


def _layer_shapes(config: ModelConfig, layer: int) -> Shapes:
    """Return the shapes of a layer's tensors in the order in which a pass reads them.

    With those that files have in the place of others, see FILE_ROLES.
    """
    d, lanes = config.hidden_size, config.num_lanes
    norm = (lanes if config.norm_scale_per_lane else 1, d)
    shapes: Shapes = {}
    for module, (before, after) in zip(config.modules[layer], JOINING_NORMS, strict=False):
        shapes |= {before: norm} if module.norm_before and not module.same_norm else {}
        shapes |= _module_shapes(module.operation, d, lanes)
        shapes |= {after: norm} if module.norm_after else {}
        shapes |= {Role.JOINT_NORM: norm} if module.joint_norm else {}
        shapes |= {Role.LAYER_SCALE: (1, 1)} if module.stream_scale else {}
    for streams in (config.altup, config.hyper):
        shapes = shapes if streams is None else streams.tensors(d) | shapes
    return shapes


@lru_cache(maxsize=256)
def _module_shapes(operation: Operation, d: int, lanes: int) -> Shapes:
    return operation.tensors(d, lanes)


def norm_read_by(modules: Sequence[Module], place: int) -> Role:
    """Return the norm by which a module of a layer reads; some read by that of the one before."""
    while modules[place].same_norm:
        place -= 1
    return JOINING_NORMS[place][0]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that a checkpoint must hold; ``shape`` is that in the file."""

    name: str
    shape: tuple[int, ...]
    role: Role
    layer: int | None = None  # None: outside the layers
    part: Part = Part.WHOLE
    expert: int | None = None  # whose matrix; None: no expert's, or all experts' in one tensor
    also: Role | None = None  # whose rows are in it too: in turn with ``role``'s, in GGUF behind
    halves: bool = False  # in folders, too, they are behind
    columns_first: bool = False  # it holds matrices [.., K, R]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def list_specs(
    config: ModelConfig,
    names: Mapping[Role, str],
    shared: frozenset[Role],
    columns_first: frozenset[Role] = frozenset(),
    most: int | None = None,
    halves: bool = False,
) -> tuple[TensorSpec, ...]:
    """Return a float checkpoint's tensors in the order in which a pass reads them.

    ``{i}`` in a name stands for the layer, ``{e}`` for the expert; without it all experts of a
    layer are one tensor, [E, ...]. Two roles of a layer with one name are in one tensor, whose rows
    are theirs in turn, or in ``halves``; where ``names`` has one of ``JOINED``, that is in its
    roles' place, and where it has parts of ``PARTED``, these are in the whole's. Files have no axis
    for the lanes in the tensors of ``shared``, nor in the embedding; they have the columns before
    the rows in those of ``columns_first``. ConfigError where there are more than ``most``, before
    more of them are made than that: a few words of a config ask for millions.
    """
    specs: list[TensorSpec] = []
    places: list[tuple[Role, int | None]] = [(Role.EMBEDDING, None)]
    places += [(role, None) for role in _joined(list(config.shared_shapes), names)]
    for i in range(config.num_layers):
        places += [(role, i) for role in _file_roles(config, i, names)]
    places += [(Role.FINAL_NORM, None)]
    places += [] if config.tie_embeddings else [(Role.HEAD, None)]
    for role, layer in places:
        if most is not None and len(specs) > most:
            raise ConfigError(
                f"expected a config.json of no more than {most} tensors, for there are fewer, got "
                f"{config.num_layers} layers{_of_experts(config)}; config.json and the weights are "
                "not of one model, or the download is incomplete"
            )
        shape = lane_shape(config, role, layer=layer)
        in_file = shape[1:] if role in shared and role.kind is not Kind.LOOKUP else shape
        if role not in EXPERT_ROLES:
            _add(specs, TensorSpec(names[role].format(i=layer), in_file, role, layer), halves)
            continue
        assert config.experts is not None
        count = config.experts.count
        if "{e}" not in names[role]:
            turned = role in columns_first
            in_file = in_file[::-1] if turned else in_file
            name = names[role].format(i=layer)
            spec = TensorSpec(name, (count, *in_file), role, layer, columns_first=turned)
            _add(specs, spec, halves)
            continue
        specs += [
            TensorSpec(names[role].format(i=layer, e=e), in_file, role, layer, expert=e)
            for e in range(count)
        ]
    return tuple(specs)


def _of_experts(config: ModelConfig) -> str:
    return "" if config.experts is None else f" and {config.experts.count} experts"


def _file_roles(config: ModelConfig, layer: int, names: Mapping[Role, str]) -> list[Role]:
    """Return the roles of a layer's tensors as files have them."""
    roles = _joined(list(layer_roles(config, layer)), names)
    for whole, parts in PARTED.items():
        if parts[0] in names and whole in roles:
            at = roles.index(whole)
            roles[at : at + 1] = parts
    return roles


def _joined(roles: list[Role], names: Mapping[Role, str]) -> list[Role]:
    """Return roles with those of JOINED that files have in the others' place."""
    for joined, (first, *others) in JOINED.items():
        if joined in names:
            roles = [joined if role is first else role for role in roles if role not in others]
    return roles


def _add(specs: list[TensorSpec], spec: TensorSpec, halves: bool) -> None:
    """Append a tensor, or its rows to those of the one before it, if that has its name."""
    if not specs or specs[-1].name != spec.name:
        specs.append(spec)
        return
    other, axis = specs[-1], -2 if spec.role.kind is Kind.MATRIX and not spec.columns_first else -1
    shape = list(other.shape)
    shape[axis] += spec.shape[axis]
    specs[-1] = replace(other, shape=tuple(shape), also=spec.role, halves=halves)


def quantized_specs(config: ModelConfig, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Return what a quantised checkpoint holds in place of the tensors of a float one.

    Of a packed one it is the floats' own list: only the files tell what they hold in their place.
    """
    assert config.quantization is not None
    if config.quantization.packing is not None:
        return specs
    if any(spec.also or spec.columns_first for spec in specs):
        raise ConfigError(
            f"quantization: expected a family whose experts have matrices of their own, got "
            f"{config.family}, whose files hold them merged; take a .gguf file of this model"
        )
    floats = {f"{name}.weight" for name in config.quantization.ignore}
    found: list[TensorSpec] = []
    for spec in specs:
        coded = spec.role.kind is Kind.MATRIX and spec.name not in floats
        found += _parts(spec, config.quantization) if coded else [spec]
    return tuple(found)


def _parts(spec: TensorSpec, quantization: Quantization | None) -> list[TensorSpec]:
    assert quantization is not None
    assert spec.name.endswith(".weight")
    names = {Part.CODES: spec.name, Part.SCALES: spec.name.removesuffix("weight") + "scales"}
    return [
        replace(spec, name=name, shape=_part_shape(spec.shape, part, quantization), part=part)
        for part, name in names.items()
    ]


def _part_shape(shape: tuple[int, ...], part: Part, quantization: Quantization) -> tuple[int, ...]:
    *outer, columns = shape
    if part is Part.CODES:
        return (*outer, quantization.code_bytes(columns))
    return (*outer, columns // quantization.group_size)
