"""The weights of a model in the shape that executors read, lanes first, and still in the files.

But for matrices that another tool quantised: those are brought into our order, in memory.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from monolane.errors import CheckpointError
from monolane.model._checkpoint import Checkpoint
from monolane.model._config import ModelConfig
from monolane.model._quantized import Quantized
from monolane.model._repack import PackedMatrix
from monolane.model._safetensors import DTYPE_NAMES, DTYPES, Array
from monolane.model._tensors import MATRICES, Part, Role, TensorSpec, lane_shape
from monolane.model.families import find_family, tensor_specs

log = logging.getLogger("monolane.model")

# What a plain checkpoint may store; a quantised one says so in its config.
WEIGHT_DTYPES = ("BF16", "F16", "F32")
CODE_DTYPES = {8: ("I8",), 4: ("U8",)}  # by bits
SCALE_DTYPES = ("F16",)


@dataclass(frozen=True, slots=True)
class Weights:
    """Arrays by role, shaped as ``Role`` says; ``layers[i]`` holds those of layer i.

    Quantised matrices are apart, by role and layer (None: outside the layers), so that nobody
    takes codes for weights: ``dequantized`` puts their float32 values in the others' places.
    """

    config: ModelConfig
    outer: Mapping[Role, Array]
    layers: tuple[Mapping[Role, Array], ...]
    quantized: Mapping[tuple[Role, int | None], Quantized] = field(default_factory=dict)

    @classmethod
    def load(cls, config: ModelConfig, checkpoint: Checkpoint) -> "Weights":
        """View a checkpoint through its config; no weight is copied that is stored as we read it.

        CheckpointError names the tensor and the file if one is missing, surplus, of another shape
        or of a dtype that is no weight's.
        """
        packed = find_packed(config, checkpoint)
        arrays = view_arrays(config, packed, checkpoint)
        if config.tie_embeddings:
            embedding = arrays[Role.EMBEDDING, None, Part.WHOLE]
            arrays[Role.HEAD, None, Part.WHOLE] = embedding.reshape(lane_shape(config, Role.HEAD))
        outer: dict[Role, Array] = {}
        layers: list[dict[Role, Array]] = [{} for _ in config.layers]
        quantized: dict[tuple[Role, int | None], Quantized] = {}
        for (role, layer, part), array in arrays.items():
            if part is Part.WHOLE:
                (outer if layer is None else layers[layer])[role] = array
            elif part is Part.CODES and config.quantization is not None:
                scales = arrays[role, layer, Part.SCALES]
                quantized[role, layer] = Quantized(config.quantization.bits, array, scales)
        for matrix in packed.values():
            quantized[matrix.spec.role, matrix.spec.layer] = _repacked(config, matrix)
        return cls(config, outer, tuple(layers), quantized)

    def dequantized(self) -> "Weights":
        """Return the weights with every matrix that is quantised widened to float32."""
        outer, layers = dict(self.outer), [dict(layer) for layer in self.layers]
        for (role, layer), matrix in self.quantized.items():
            (outer if layer is None else layers[layer])[role] = matrix.widened()
        return Weights(self.config, outer, tuple(layers))


def find_packed(config: ModelConfig, checkpoint: Checkpoint) -> dict[str, PackedMatrix]:
    """Return the matrices that lie in the files as another tool packs them, by the float's name.

    The files tell, not the lists of patterns in config.json: a matrix is there in one of two ways.
    """
    packing = None if config.quantization is None else config.quantization.packing
    if packing is None:
        return {}
    if packing.bits < packing.kept_bits:
        log.warning(
            "%s: %d-bit codes with zero points are read as int%d: the same numbers, at about "
            "twice the bytes",
            checkpoint.folder,
            packing.bits,
            packing.kept_bits,
        )
    matrices = [
        PackedMatrix(packing, spec, checkpoint)
        for spec in tensor_specs(config)
        if spec.role in MATRICES
    ]
    found = {matrix.spec.name: matrix for matrix in matrices if matrix.is_there}
    if not found:
        raise CheckpointError(
            f"{checkpoint.folder}: expected matrices packed by {packing.method}, as config.json "
            "says, got none; config.json and the weights are not of one model"
        )
    return found


def view_arrays(
    config: ModelConfig, packed: Mapping[str, PackedMatrix], checkpoint: Checkpoint
) -> dict[tuple[Role, int | None, Part], Array]:
    """Return what is not packed, checked, in the shape that executors read; see ``Weights.load``.

    That everything is there, and nothing besides, is checked of the packed matrices too.
    """
    specs = tensor_specs(config)
    _check_names(config, specs, packed, checkpoint)
    return {
        (spec.role, spec.layer, spec.part): _checked(config, spec, checkpoint)
        for spec in specs
        if spec.name not in packed
    }


def _repacked(config: ModelConfig, matrix: PackedMatrix) -> Quantized:
    spec, found = matrix.spec, matrix.read()
    codes = found.codes.reshape(lane_shape(config, spec.role, Part.CODES))
    scales = found.scales.reshape(lane_shape(config, spec.role, Part.SCALES))
    return Quantized(found.bits, codes, scales)


def _check_names(
    config: ModelConfig,
    specs: tuple[TensorSpec, ...],
    packed: Mapping[str, PackedMatrix],
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
    if extra := sorted(
        x
        for x in checkpoint.keys() - expected
        if not family.surplus(config, x) and not _is_no_bias(packed, checkpoint, x)
    ):
        raise CheckpointError(
            f"{checkpoint.file_of(extra[0])}: expected {len(expected)} tensors, got {len(extra)} "
            f"more: {_first(extra)}; config.json and the weights are not of one model"
        )


def _is_no_bias(packed: Mapping[str, PackedMatrix], checkpoint: Checkpoint, name: str) -> bool:
    """Tell a bias of zeros, which the first GPTQ tools store with every matrix."""
    matrix = name.removesuffix("bias") + "weight"
    return name.endswith(".bias") and matrix in packed and not checkpoint[name].any()


def _checked(config: ModelConfig, spec: TensorSpec, checkpoint: Checkpoint) -> Array:
    array = checkpoint[spec.name]
    at = f"{checkpoint.file_of(spec.name)}: tensor {spec.name!r}"
    if array.shape != spec.shape:
        raise CheckpointError(
            f"{at}: expected shape {list(spec.shape)} from config.json, got {list(array.shape)}"
        )
    allowed = _dtypes(config, spec.part)
    if array.dtype not in [DTYPES[name] for name in allowed]:
        expected = allowed[0] if len(allowed) == 1 else f"one of {', '.join(allowed)}"
        raise CheckpointError(f"{at}: expected {expected}, got {DTYPE_NAMES[array.dtype]}")
    return array.reshape(lane_shape(config, spec.role, spec.part))


def _dtypes(config: ModelConfig, part: Part) -> tuple[str, ...]:
    if part is Part.CODES:
        assert config.quantization is not None
        return CODE_DTYPES[config.quantization.bits]
    return SCALE_DTYPES if part is Part.SCALES else WEIGHT_DTYPES


def _first(names: list[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
