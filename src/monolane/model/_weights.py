"""The weights of a model in the shape that executors read, lanes first, and still in the files."""

from collections.abc import Mapping
from dataclasses import dataclass

from monolane.errors import CheckpointError
from monolane.model._checkpoint import Checkpoint
from monolane.model._config import ModelConfig
from monolane.model._families import tensor_specs
from monolane.model._safetensors import DTYPE_NAMES, DTYPES, Array
from monolane.model._tensors import Role, TensorSpec, lane_shape

# What a plain checkpoint may store; a quantised one says so in its config.
WEIGHT_DTYPES = tuple(DTYPES[name] for name in ("BF16", "F16", "F32"))


@dataclass(frozen=True, slots=True)
class Weights:
    """Arrays by role, shaped as ``Role`` says; ``layers[i]`` holds those of layer i."""

    config: ModelConfig
    outer: Mapping[Role, Array]
    layers: tuple[Mapping[Role, Array], ...]

    @classmethod
    def load(cls, config: ModelConfig, checkpoint: Checkpoint) -> "Weights":
        """View a checkpoint through its config; no weight is copied.

        CheckpointError names the tensor and the file if one is missing, surplus, of another shape
        or of a dtype that is no weight's.
        """
        specs = tensor_specs(config)
        _check_names(specs, checkpoint)
        outer: dict[Role, Array] = {}
        layers: list[dict[Role, Array]] = [{} for _ in config.layers]
        for spec in specs:
            array = _checked(spec, checkpoint).reshape(lane_shape(config, spec.role))
            (outer if spec.layer is None else layers[spec.layer])[spec.role] = array
        if config.tie_embeddings:
            outer[Role.HEAD] = outer[Role.EMBEDDING].reshape(lane_shape(config, Role.HEAD))
        return cls(config, outer, tuple(layers))


def _check_names(specs: tuple[TensorSpec, ...], checkpoint: Checkpoint) -> None:
    expected = {spec.name for spec in specs}
    if missing := sorted(expected - checkpoint.keys()):
        raise CheckpointError(
            f"{checkpoint.folder}: expected {len(expected)} tensors, {len(missing)} are missing: "
            f"{_first(missing)}; config.json and the weights are not of one model, or the "
            "download is incomplete"
        )
    if extra := sorted(checkpoint.keys() - expected):
        raise CheckpointError(
            f"{checkpoint.file_of(extra[0])}: expected {len(expected)} tensors, got {len(extra)} "
            f"more: {_first(extra)}; config.json and the weights are not of one model"
        )


def _checked(spec: TensorSpec, checkpoint: Checkpoint) -> Array:
    array = checkpoint[spec.name]
    at = f"{checkpoint.file_of(spec.name)}: tensor {spec.name!r}"
    if array.shape != spec.shape:
        raise CheckpointError(
            f"{at}: expected shape {list(spec.shape)} from config.json, got {list(array.shape)}"
        )
    if array.dtype not in WEIGHT_DTYPES:
        names = ", ".join(DTYPE_NAMES[dtype] for dtype in WEIGHT_DTYPES)
        raise CheckpointError(f"{at}: expected one of {names}, got {DTYPE_NAMES[array.dtype]}")
    return array


def _first(names: list[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
