"""The weights of a model in the shape that executors read, lanes first, and still in the files."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from monolane.errors import CheckpointError
from monolane.model._checkpoint import Checkpoint
from monolane.model._config import ModelConfig
from monolane.model._quantized import Blocks, Quantized
from monolane.model._safetensors import DTYPE_NAMES, DTYPES, Array
from monolane.model._tensors import Part, Role, TensorSpec, lane_shape
from monolane.model.families import find_family, tensor_specs

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

    def dequantized(self) -> "Weights":
        """Return the weights with every matrix that is quantised widened to float32."""
        outer, layers = dict(self.outer), [dict(layer) for layer in self.layers]
        for (role, layer), matrix in self.quantized.items():
            (outer if layer is None else layers[layer])[role] = matrix.widened()
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


def _dtypes(config: ModelConfig, part: Part) -> tuple[str, ...]:
    if part is Part.CODES:
        assert config.quantization is not None
        return CODE_DTYPES[config.quantization.bits]
    return SCALE_DTYPES if part is Part.SCALES else WEIGHT_DTYPES


def _first(names: list[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
