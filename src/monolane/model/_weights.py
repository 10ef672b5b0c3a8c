"""The weights of a model in the shape that executors read, lanes first, and still in the files."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from monolane.errors import CheckpointError
from monolane.model._checkpoint import Checkpoint
from monolane.model._config import ModelConfig
from monolane.model._gguf_model import GgufModel, is_gguf
from monolane.model._quantized import Blocks, Quantized
from monolane.model._safetensors import DTYPE_NAMES, DTYPES, Array
from monolane.model._tensors import MATRICES, Part, Role, TensorSpec, lane_shape
from monolane.model.families import find_family, gguf_specs, read_config, tensor_specs
from monolane.model.families._gguf import ROPE_DIVISORS

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
    quantized: Mapping[tuple[Role, int | None], Quantized | Blocks] = field(default_factory=dict)

    @classmethod
    def load(cls, config: ModelConfig, checkpoint: Checkpoint) -> "Weights":
        """View a checkpoint through its config; no weight is copied.

        CheckpointError names the tensor and the file if one is missing, surplus, of another shape
        or of a dtype that is no weight's.
        """
        specs = tensor_specs(config)
        _check_names(config, specs, checkpoint)
        arrays = {
            (spec.role, spec.layer, spec.part): _checked(config, spec, checkpoint) for spec in specs
        }
        if config.tie_embeddings:
            embedding = arrays[Role.EMBEDDING, None, Part.WHOLE]
            arrays[Role.HEAD, None, Part.WHOLE] = embedding.reshape(lane_shape(config, Role.HEAD))
        outer: dict[Role, Array] = {}
        layers: list[dict[Role, Array]] = [{} for _ in config.layers]
        quantized: dict[tuple[Role, int | None], Quantized | Blocks] = {}
        for (role, layer, part), array in arrays.items():
            if part is Part.WHOLE:
                (outer if layer is None else layers[layer])[role] = array
            elif part is Part.CODES and config.quantization is not None:
                scales = arrays[role, layer, Part.SCALES]
                quantized[role, layer] = Quantized(config.quantization.bits, array, scales)
        return cls(config, outer, tuple(layers), quantized)

    @classmethod
    def open(cls, path: Path) -> "Weights":
        """View the weights of a folder in Hub layout or of a .gguf file, with their config.

        ModelNotFoundError, ConfigError or CheckpointError.
        """
        if is_gguf(path):
            return cls.of_gguf(GgufModel(path))
        return cls.load(read_config(path), Checkpoint.open(path))

    @classmethod
    def of_gguf(cls, model: GgufModel) -> "Weights":
        """View the tensors of a GGUF file; no weight is copied. CheckpointError as ``load``.

        What is in blocks is in ``quantized``: matrices, and the embedding, whose rows are then
        looked up in it. A tied head has the embedding's blocks.
        """
        config = model.config
        specs = gguf_specs(config)
        _check_gguf_names(model, {spec.name for spec in specs})
        outer: dict[Role, Array] = {}
        layers: list[dict[Role, Array]] = [{} for _ in config.layers]
        quantized: dict[tuple[Role, int | None], Quantized | Blocks] = {}
        places = [(spec.role, spec) for spec in specs]
        if config.tie_embeddings:
            embedding = next(spec for spec in specs if spec.role is Role.EMBEDDING)
            places.append((Role.HEAD, embedding))
        for role, spec in places:
            found, shape = _checked_gguf(model, spec), lane_shape(config, role)
            if isinstance(found, Blocks):
                data = found.data.reshape(*shape[:-1], -1)
                quantized[role, spec.layer] = replace(found, data=data)
            else:
                (outer if spec.layer is None else layers[spec.layer])[role] = found.reshape(shape)
        return cls(config, outer, tuple(layers), quantized)

    def dequantized(self) -> "Weights":
        """Return the weights with every matrix that is quantised widened to float32."""
        outer, layers = dict(self.outer), [dict(layer) for layer in self.layers]
        tied = self.config.tie_embeddings
        for (role, layer), matrix in self.quantized.items():
            if not (tied and role is Role.HEAD):
                (outer if layer is None else layers[layer])[role] = matrix.widened()
        if tied:  # the same numbers, once in memory
            embedding = outer[Role.EMBEDDING]
            outer[Role.HEAD] = embedding.reshape(lane_shape(self.config, Role.HEAD))
        return Weights(self.config, outer, tuple(layers))


def _check_names(
    config: ModelConfig, specs: tuple[TensorSpec, ...], checkpoint: Checkpoint
) -> None:
    expected = {spec.name for spec in specs}
    if missing := sorted(expected - checkpoint.keys()):
        raise CheckpointError(
            f"{checkpoint.folder}: expected {len(expected)} tensors, {len(missing)} are missing: "
            f"{_first(missing)}; config.json and the weights are not of one model, or the "
            "download is incomplete"
        )
    family = find_family(config)
    if extra := sorted(x for x in checkpoint.keys() - expected if not family.surplus(config, x)):
        raise CheckpointError(
            f"{checkpoint.file_of(extra[0])}: expected {len(expected)} tensors, got {len(extra)} "
            f"more: {_first(extra)}; config.json and the weights are not of one model"
        )


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


def _check_gguf_names(model: GgufModel, expected: set[str]) -> None:
    if missing := sorted(expected - model.keys()):
        raise CheckpointError(
            f"{model.path}: expected {len(expected)} tensors, {len(missing)} are missing: "
            f"{_first(missing)}; the metadata and the tensors are not of one model"
        )
    if extra := sorted(model.keys() - expected - {ROPE_DIVISORS}):
        raise CheckpointError(
            f"{model.file_of(extra[0])}: expected {len(expected)} tensors, got {len(extra)} more: "
            f"{_first(extra)}; executors do not compute what these are for"
        )


def _checked_gguf(model: GgufModel, spec: TensorSpec) -> "Array | Blocks":
    found = model[spec.name]
    at = f"{model.file_of(spec.name)}: tensor {spec.name!r}"
    if found.shape != spec.shape:
        raise CheckpointError(
            f"{at}: expected shape {list(spec.shape)} from the metadata, got {list(found.shape)}"
        )
    if isinstance(found, Blocks) and spec.role not in MATRICES | {Role.EMBEDDING}:
        raise CheckpointError(
            f"{at}: expected one of {', '.join(WEIGHT_DTYPES)}, got {found.format.upper()}"
        )
    return found


def _dtypes(config: ModelConfig, part: Part) -> tuple[str, ...]:
    if part is Part.CODES:
        assert config.quantization is not None
        return CODE_DTYPES[config.quantization.bits]
    return SCALE_DTYPES if part is Part.SCALES else WEIGHT_DTYPES


def _first(names: list[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
