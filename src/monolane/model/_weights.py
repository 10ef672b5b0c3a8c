"""The weights of a model in the shape that executors read, lanes first, and still in the files.

But for matrices that another tool quantised, and for rows that files have in an order of their own
(_fused_tensors.py): those are brought into our order, in memory.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from monolane._naming import naming
from monolane.errors import CheckpointError, ConfigError
from monolane.model._checkpoint import Checkpoint
from monolane.model._config import ModelConfig
from monolane.model._expert_table import check_table
from monolane.model._formats import STORED, find_format
from monolane.model._fused_tensors import join_parts, part_rows
from monolane.model._gguf_factors import find_factors, read_factors
from monolane.model._gguf_model import GgufModel, is_gguf
from monolane.model._gguf_tensors import read_gguf_tensor
from monolane.model._merged_experts import separate_experts
from monolane.model._mlx import MlxMatrix
from monolane.model._mxfp4 import Mxfp4Experts
from monolane.model._nvfp4 import Nvfp4Matrix
from monolane.model._quant_foreign_config import Packing
from monolane.model._quant_foreign_unpack import PackedMatrix
from monolane.model._quant_matrix import Blocks, Matrix, Quantized
from monolane.model._safetensors import DTYPE_NAMES, DTYPES, FLOATS, Array
from monolane.model._tensors import Part, TensorSpec, lane_shape
from monolane.model.families import (
    find_ahead,
    find_family,
    gguf_specs,
    gguf_unread,
    read_config,
    tensor_specs,
)
from monolane.ops import EXPERT_ROLES, JOINED, Kind, Role

log = logging.getLogger("monolane.model")

CODE_DTYPES = {8: ("I8",), 4: ("U8",)}  # by bits
SCALE_DTYPES = ("F16",)

_SPARE = 4096  # tensors that a config may ask for, however few there are
# What another tool quantised, by the name of the tensor of floats in whose place it is.
Packed = Mapping[str, PackedMatrix | MlxMatrix | Nvfp4Matrix | Mxfp4Experts]


@dataclass(frozen=True, slots=True)
class Weights:
    """Arrays by role, shaped as ``Role`` says; ``layers[i]`` holds those of layer i.

    Quantised matrices are apart, by role and layer (None: outside the layers), so that nobody
    takes codes for weights: ``dequantized`` puts their float32 values in the others' places.
    Experts' matrices are apart too, whatever they are stored in: by role and layer one for each
    expert, all of one kind.
    """

    config: ModelConfig
    outer: Mapping[Role, Array]
    layers: tuple[Mapping[Role, Array], ...]
    quantized: Mapping[tuple[Role, int | None], Quantized | Blocks] = field(default_factory=dict)
    source: Path | None = None  # what ``open`` reads them from, if they are as stored there
    experts: Mapping[tuple[Role, int], tuple[Matrix, ...]] = field(default_factory=dict)

    @classmethod
    def load(cls, config: ModelConfig, checkpoint: Checkpoint) -> "Weights":
        """View a checkpoint through its config; no weight is copied that is stored as we read it.

        CheckpointError names the tensor and the file if one is missing, surplus, of another shape
        or of a dtype that is no weight's.
        """
        checkpoint = separate_experts(config, checkpoint)
        packed = find_packed(config, checkpoint)
        arrays = view_arrays(config, packed, checkpoint)
        found = _Found(config)
        for (role, layer, expert, part), array in arrays.items():
            if part is Part.WHOLE:
                found.put(role, layer, expert, array)
                if role is Role.EMBEDDING and config.tie_embeddings:
                    head = array.reshape(lane_shape(config, Role.HEAD))
                    found.put(Role.HEAD, None, None, head)
            elif part is Part.CODES and config.quantization is not None:
                scales = arrays[role, layer, expert, Part.SCALES]
                coded = Quantized(config.quantization.bits, array, scales)
                found.put(role, layer, expert, coded)
        for matrix in packed.values():
            spec = matrix.spec
            if isinstance(matrix, Mxfp4Experts):
                for role, expert, blocks in matrix.read():
                    shape = lane_shape(config, role, layer=spec.layer)
                    found.put(role, spec.layer, expert, _shaped(blocks, shape))
                continue
            for role, own in part_rows(config, spec.role, matrix.read()):
                shape = lane_shape(config, role, layer=spec.layer)
                found.put(role, spec.layer, spec.expert, _shaped(own, shape))
                if role is Role.EMBEDDING and config.tie_embeddings:
                    shape = lane_shape(config, Role.HEAD)
                    found.put(Role.HEAD, None, None, _shaped(own, shape))
        return found.weights(checkpoint.folder)

    @classmethod
    def load_ahead(cls, config: ModelConfig, checkpoint: Checkpoint) -> "Weights | None":
        """View the layer that predicts further ahead; None where a model has none.

        CheckpointError as ``load``.
        """
        ahead = find_ahead(config, checkpoint)
        return None if ahead is None else cls.load(ahead, checkpoint)

    @classmethod
    def open(cls, path: Path) -> "Weights":
        """View the weights of a folder in Hub layout or of a .gguf file, with their config.

        ModelNotFoundError, ConfigError or CheckpointError.
        """
        with naming(path):
            if is_gguf(path):
                return cls.of_gguf(GgufModel(path))
            return cls.load(read_config(path), Checkpoint.open(path))

    @classmethod
    def ahead_of_gguf(cls, model: GgufModel) -> "Weights | None":
        """View the layer of a GGUF file that predicts further ahead, as ``load_ahead``."""
        ahead = find_ahead(model.config, model, gguf=True)
        return None if ahead is None else cls.of_gguf(model, ahead)

    @classmethod
    def of_gguf(cls, model: GgufModel, config: ModelConfig | None = None) -> "Weights":
        """View the tensors of a GGUF file; no weight is copied. CheckpointError as ``load``.

        What is in blocks is in ``quantized``: matrices, and the embedding, whose rows are then
        looked up in it. A tied head has the embedding's blocks. ``config``: the file's, or that of
        its layer that predicts further ahead.
        """
        config = config or model.config
        specs = gguf_specs(config, model)
        unread = gguf_unread(config, model.metadata, model)
        names = {spec.name for spec in specs}
        factors = find_factors(model, names)
        rest = unread if config.behind is None else frozenset(model)  # the model's own layers
        _check_gguf_names(model, names, rest | factors)
        gathered = _Found(config)
        places = [(spec.role, spec) for spec in specs]
        if config.tie_embeddings:
            embedding = next(spec for spec in specs if spec.role is Role.EMBEDDING)
            places.append((Role.HEAD, embedding))
        for role, spec in places:
            found = read_gguf_tensor(model, spec, factors)
            if role in EXPERT_ROLES:
                each = read_factors(model, spec.name, spec.shape[0], factors)
                for own, expert, matrix in _each_expert(spec, found, each):
                    gathered.put(
                        own,
                        spec.layer,
                        expert,
                        _shaped(matrix, lane_shape(config, own, layer=spec.layer)),
                    )
                continue
            for own, rows in part_rows(config, role, found):
                gathered.put(
                    own, spec.layer, None, _shaped(rows, lane_shape(config, own, layer=spec.layer))
                )
        return gathered.weights(model.path)

    @property
    def expert_bytes(self) -> int:
        """Bytes of all experts' matrices, as they are stored."""
        return sum(matrix.nbytes for each in self.experts.values() for matrix in each)

    def matrix(self, role: Role, layer: int | None) -> Matrix:
        """Return an array or a quantised matrix; ``layer`` None: one outside the layers."""
        coded = self.quantized.get((role, layer))
        if coded is not None:
            return coded
        return (self.outer if layer is None else self.layers[layer])[role]

    def coded(self) -> Iterator[tuple[tuple[Role, int | None], Quantized | Blocks]]:
        """Yield every matrix that is quantised, also each expert's, by role and layer."""
        yield from self.quantized.items()
        for place, each in self.experts.items():
            yield from ((place, matrix) for matrix in each if not isinstance(matrix, np.ndarray))

    def dequantized(self) -> "Weights":
        """Return the weights with every matrix that is quantised widened to float32."""
        outer, layers = dict(self.outer), [dict(layer) for layer in self.layers]
        # The embedding's blocks are the head's too.
        tied = self.config.tie_embeddings and (Role.EMBEDDING, None) in self.quantized
        for (role, layer), matrix in self.quantized.items():
            if not (tied and role is Role.HEAD):
                (outer if layer is None else layers[layer])[role] = matrix.widened()
        if tied:  # the same numbers, once in memory
            embedding = outer[Role.EMBEDDING]
            outer[Role.HEAD] = embedding.reshape(lane_shape(self.config, Role.HEAD))
        experts = {
            place: tuple(
                matrix if isinstance(matrix, np.ndarray) else matrix.widened() for matrix in each
            )
            for place, each in self.experts.items()
        }
        return Weights(self.config, outer, tuple(layers), experts=experts)


class _Found:
    """The tensors of a model as they are found, each in the place where ``Weights`` has it."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._outer: dict[Role, Array] = {}
        self._layers: list[dict[Role, Array]] = [{} for _ in config.layers]
        self._quantized: dict[tuple[Role, int | None], Quantized | Blocks] = {}
        self._experts: dict[tuple[Role, int], dict[int, Matrix]] = {}

    def put(self, role: Role, layer: int | None, expert: int | None, matrix: Matrix) -> None:
        if expert is not None and layer is not None:
            self._experts.setdefault((role, layer), {})[expert] = matrix
        elif isinstance(matrix, np.ndarray):
            (self._outer if layer is None else self._layers[layer])[role] = matrix
        else:
            self._quantized[role, layer] = matrix

    def weights(self, source: Path) -> Weights:
        """Return them; CheckpointError if experts of one layer are stored in several ways."""
        for found in self._layers:
            join_parts(self._config, found)
        experts: dict[tuple[Role, int], tuple[Matrix, ...]] = {}
        for (role, layer), each in self._experts.items():
            kinds = sorted({_kind(matrix) for matrix in each.values()})
            if len(kinds) > 1:
                raise CheckpointError(
                    f"{source}: layer {layer}: {role.value}: expected all experts in one format, "
                    f"got {' and '.join(kinds)}"
                )
            experts[role, layer] = tuple(each[i] for i in range(len(each)))
        return Weights(
            self._config, self._outer, tuple(self._layers), self._quantized, source, experts
        )


def _kind(matrix: Matrix) -> str:
    if isinstance(matrix, Blocks):
        return matrix.format
    return f"int{matrix.bits}" if isinstance(matrix, Quantized) else str(matrix.dtype)


def _shaped(matrix: Matrix, shape: tuple[int, ...]) -> Matrix:
    if isinstance(matrix, np.ndarray):
        return matrix.reshape(shape)
    outer = (*shape[:-1], -1)
    if isinstance(matrix, Blocks):
        return replace(matrix, data=matrix.data.reshape(outer))
    return replace(matrix, codes=matrix.codes.reshape(outer), scales=matrix.scales.reshape(outer))


def matrix_formats(
    config: ModelConfig, checkpoint: Checkpoint
) -> dict[tuple[Role, int | None], str]:
    """Return how each matrix of a quantised folder is multiplied, by its format's name.

    Those that are not quantised keep the dtype in which they lie; a tied head is the embedding.
    """
    assert config.quantization is not None
    packed = find_packed(config, checkpoint)
    coded = find_format(config.stored_dtype)
    coded = coded.multiplied if coded.in_blocks else coded

    def named(spec: TensorSpec) -> str:
        matrix = packed.get(spec.name)
        if isinstance(matrix, MlxMatrix):  # each may have bits of its own
            return find_format(matrix.packing.block_format).multiplied.name
        if spec.part is not Part.WHOLE or matrix is not None:
            return coded.name
        return STORED[checkpoint[spec.name].dtype].name

    found = {
        (role, spec.layer): named(spec)
        for spec in _specs(config, checkpoint)
        for role in (*JOINED.get(spec.role, (spec.role,)), spec.also)
        if role is not None and role.kind is Kind.MATRIX
    }
    if config.tie_embeddings:
        floats = config.quantization.keeps_floats
        name = find_family(config).names(config)[Role.EMBEDDING]
        if (head := packed.get(name)) is not None:
            own = head.packing.block_format if isinstance(head, MlxMatrix) else ""
            found[Role.HEAD, None] = find_format(own).multiplied.name if own else coded.name
        elif floats:
            found[Role.HEAD, None] = STORED[checkpoint[name].dtype].name
        else:
            found[Role.HEAD, None] = config.stored_dtype
    return found


def find_packed(config: ModelConfig, checkpoint: Checkpoint) -> Packed:
    """Return the matrices that lie in the files as another tool packs them, by the float's name.

    The files tell, not the lists of patterns in config.json: a matrix is there in one of two ways.
    """
    packing = None if config.quantization is None else config.quantization.packing
    if packing is None:
        return {}
    if packing.bits < packing.kept_bits and not packing.block_format:
        log.warning(
            "%s: %d-bit codes with zero points are read as int%d: the same numbers, at about "
            "twice the bytes",
            checkpoint.folder,
            packing.bits,
            packing.kept_bits,
        )
    matrices = [
        _packed(packing, spec, checkpoint)
        for spec in _specs(config, checkpoint)
        if (spec.role.of_each if packing.layout == "mxfp4" else spec.role.kind is Kind.MATRIX)
        or (packing.layout == "mlx" and spec.role.kind in (Kind.LOOKUP, Kind.KEPT))
    ]
    found = {matrix.spec.name: matrix for matrix in matrices if matrix.is_there}
    if not found and config.behind is None:  # layers that predict further ahead may be in floats
        raise CheckpointError(
            f"{checkpoint.folder}: expected matrices packed by {packing.method}, as config.json "
            "says, got none; config.json and the weights are not of one model"
        )
    return found


def _packed(
    packing: Packing, spec: TensorSpec, checkpoint: Checkpoint
) -> PackedMatrix | MlxMatrix | Nvfp4Matrix | Mxfp4Experts:
    if packing.layout == "mxfp4":
        return Mxfp4Experts(spec, checkpoint)
    if packing.layout == "mlx":
        return MlxMatrix(packing.of(spec.name), spec, checkpoint)
    if packing.layout == "nvfp4":
        return Nvfp4Matrix(packing, spec, checkpoint)
    return PackedMatrix(packing, spec, checkpoint)


def view_arrays(
    config: ModelConfig, packed: Packed, checkpoint: Checkpoint
) -> dict[tuple[Role, int | None, int | None, Part], Array]:
    """Return what is not packed, checked, in the shape that executors read; see ``Weights.load``.

    By role, layer, expert and part.

    That everything is there, and nothing besides, is checked of the packed matrices too.
    """
    specs = _specs(config, checkpoint)
    _check_names(config, specs, packed, checkpoint)
    return {
        (role, spec.layer, expert, spec.part): array
        for spec in specs
        if spec.name not in packed
        for role, expert, array in _placed(config, spec, _checked(config, spec, checkpoint))
    }


def _specs(config: ModelConfig, checkpoint: Checkpoint) -> tuple[TensorSpec, ...]:
    """Return what a checkpoint must hold, if that is not beyond all that it does.

    Of those that lack some a later check says which, so there is room for them here.
    """
    try:
        return tensor_specs(config, most=4 * len(checkpoint) + _SPARE)
    except ConfigError as error:
        raise ConfigError(f"{checkpoint.folder}: {error}") from None


def _placed(
    config: ModelConfig, spec: TensorSpec, array: Array
) -> Iterator[tuple[Role, int | None, Array]]:
    """Yield what a tensor holds, as executors read it: role, expert and array.

    No row is copied, but for those that ``part_rows`` says.
    """
    if spec.role in JOINED:
        parts = part_rows(config, spec.role, array)
        yield from ((role, None, own) for role, own in parts if isinstance(own, np.ndarray))
        return
    if spec.columns_first:
        array = array.swapaxes(-1, -2)
    each: list[tuple[Role, Array]] = [(spec.role, array)]
    if spec.also is not None:
        rows = array.ndim - (2 if spec.role.kind is Kind.MATRIX else 1)
        half = array.shape[rows] // 2
        cuts = [slice(0, None, 2), slice(1, None, 2)]
        if spec.halves:
            cuts = [slice(half), slice(half, None)]
        both = (array[(slice(None),) * rows + (cut,)] for cut in cuts)
        each = list(zip((spec.role, spec.also), both, strict=True))
    for role, own in each:
        shape = lane_shape(config, role, spec.part, spec.layer)
        if role not in EXPERT_ROLES or spec.expert is not None:
            yield role, spec.expert, own.reshape(shape)
        else:
            yield from ((role, e, own[e].reshape(shape)) for e in range(len(own)))


def _each_expert(
    spec: TensorSpec, found: "Array | Blocks", factors: list[float]
) -> Iterator[tuple[Role, int, "Array | Blocks"]]:
    """Yield role, expert and matrix of each that a tensor of a GGUF file holds, without a copy."""
    roles = [spec.role] if spec.also is None else [spec.role, spec.also]
    count = spec.shape[1] // len(roles)
    for expert in range(spec.shape[0]):
        for i, role in enumerate(roles):
            rows = slice(i * count, (i + 1) * count)
            if isinstance(found, Blocks):
                own = replace(found, data=found.data[expert, rows], factor=factors[expert])
                yield role, expert, own
            else:
                yield role, expert, found[expert, rows]


def _check_names(
    config: ModelConfig,
    specs: tuple[TensorSpec, ...],
    packed: Packed,
    checkpoint: Checkpoint,
) -> None:
    expected = {spec.name for spec in specs if spec.name not in packed}
    for matrix in packed.values():
        expected |= {*matrix.names, *matrix.extra_names}
    if missing := sorted(expected - checkpoint.keys()):
        raise CheckpointError(
            f"{checkpoint.folder}: expected {len(expected)} tensors, {len(missing)} are missing: "
            f"{_first(missing)}; config.json and the weights are not of one model, or the "
            "download is incomplete"
        )
    family = find_family(config)
    if config.behind is not None:
        return  # the other tensors are the model's, which checks them
    if extra := sorted(
        x
        for x in checkpoint.keys() - expected
        if not family.surplus(config, x) and not _is_no_bias(packed, checkpoint, x)
    ):
        raise CheckpointError(
            f"{checkpoint.file_of(extra[0])}: expected {len(expected)} tensors, got {len(extra)} "
            f"more: {_first(extra)}; config.json and the weights are not of one model"
        )


def _is_no_bias(packed: Packed, checkpoint: Checkpoint, name: str) -> bool:
    """Tell a bias of zeros, which the first GPTQ tools store with every matrix."""
    matrix = name.removesuffix("bias") + "weight"
    return name.endswith(".bias") and matrix in packed and not checkpoint[name].any()


def check_arrays(config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Check that a checkpoint of floats has every tensor, as it should be, and nothing besides.

    CheckpointError as ``Weights.load``; no tensor is read.
    """
    specs = _specs(config, checkpoint)
    _check_names(config, specs, {}, checkpoint)
    for spec in specs:
        _check(config, spec, checkpoint)


def _checked(config: ModelConfig, spec: TensorSpec, checkpoint: Checkpoint) -> Array:
    _check(config, spec, checkpoint)
    array = checkpoint[spec.name]
    if spec.role is Role.EXPERT_TABLE:
        check_table(array, config.experts, _where(checkpoint, spec))
    return array


def _where(checkpoint: Checkpoint, spec: TensorSpec) -> str:
    return f"{checkpoint.file_of(spec.name)}: tensor {spec.name!r}"


def _check(config: ModelConfig, spec: TensorSpec, checkpoint: Checkpoint) -> None:
    shape, dtype = checkpoint.shape_of(spec.name), checkpoint.dtype_of(spec.name)
    at = _where(checkpoint, spec)
    if shape != spec.shape:
        raise CheckpointError(
            f"{at}: expected shape {list(spec.shape)} from config.json, got {list(shape)}"
        )
    allowed = ("I32", "I64") if spec.role is Role.EXPERT_TABLE else _dtypes(config, spec.part)
    if dtype not in [DTYPES[name] for name in allowed]:
        expected = allowed[0] if len(allowed) == 1 else f"one of {', '.join(allowed)}"
        raise CheckpointError(f"{at}: expected {expected}, got {DTYPE_NAMES[dtype]}")


def _check_gguf_names(model: GgufModel, expected: set[str], unread: frozenset[str]) -> None:
    if missing := sorted(expected - model.keys()):
        raise CheckpointError(
            f"{model.path}: expected {len(expected)} tensors, {len(missing)} are missing: "
            f"{_first(missing)}; the metadata and the tensors are not of one model"
        )
    if extra := sorted(model.keys() - expected - unread):
        raise CheckpointError(
            f"{model.file_of(extra[0])}: expected {len(expected)} tensors, got {len(extra)} more: "
            f"{_first(extra)}; executors do not compute what these are for"
        )


def _dtypes(config: ModelConfig, part: Part) -> tuple[str, ...]:
    if part is Part.CODES:
        assert config.quantization is not None
        return CODE_DTYPES[config.quantization.bits]
    return SCALE_DTYPES if part is Part.SCALES else FLOATS


def _first(names: list[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
