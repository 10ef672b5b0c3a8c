"""LoRA adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors.

    base_model.model.NAME.lora_A.weight    A [r, K] of the matrix that the model has as NAME.weight
    base_model.model.NAME.lora_B.weight    B [R, r]; what it adds is scale * B A

The scale is alpha / r, or with ``use_rslora`` alpha / sqrt(r); patterns give single matrices ranks
and alphas of their own. Which matrices there are, the tensors tell: whatever is in the file is
used, or refused by its name. Of a list of ``target_modules`` every matrix must be there; of a
regular expression that is not asked, for nobody knows how long one takes.

Shape legend: R rows, K columns, r rank; of a stack of lanes R and r are as PEFT lays them out.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.errors import CheckpointError, ConfigError
from monolane.model._config import ModelConfig
from monolane.model._fields import Fields, read_json_object
from monolane.model._safetensors import SafetensorsFile
from monolane.model._tensors import TensorSpec, lane_shape
from monolane.model.families import tensor_specs
from monolane.ops import JOINED, Attention, Mlp, Operation, Role
from monolane.ops.sparse_mlp.spec import SparseMlp

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_DTYPES = ("bfloat16", "float16", "float32")
# A module's name as a pattern spells it, whole or its end.
_NAME = re.compile(r"\^?((?:[\w-]|\\?\.)+)\$?")
_MERGE = "merge the adapter into the model with PEFT's merge_and_unload, and load what that saves"

# Of the matrices of these operations, in their order.
_REACHED: Mapping[type[Operation], tuple[Role, ...]] = {
    Attention: (Role.Q, Role.K, Role.V, Role.O),
    Mlp: (Role.GATE, Role.UP, Role.DOWN),
    SparseMlp: (Role.GATE, Role.UP, Role.DOWN),
}
_KINDS = "q, k, v, o, gate, up and down of attention and dense MLPs"
# What PEFT does where a field has another value. Of those with a list, what changes nothing.
_FIXED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "use_dora": ((False,), "DoRA also scales the matrices themselves"),
    "bias": (("none",), "biases of the model were trained"),
    "lora_bias": ((False,), "the updates have biases"),
    "modules_to_save": (([],), "whole modules of the model were trained"),
    "fan_in_fan_out": ((False,), "the matrices would lie with their columns first"),
    "trainable_token_indices": (([],), "rows of the embedding were trained"),
    "layer_replication": (([],), "layers of the model would be there several times"),
    "alora_invocation_tokens": (([],), "it would begin amid the prompt"),
    # Others begin with another matrix than the model's.
    "init_lora_weights": (
        (True, False, "gaussian", "eva", "orthogonal"),
        "the model's own matrices were changed when the training began",
    ),
}
# Fields that say where an adapter comes from, or how it was trained; and those that are read.
_HARMLESS = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode"),
        *("lora_dropout", "peft_version", "runtime_config", "megatron_core", "qalora_group_size"),
        *("ensure_weight_tying", "eva_config", "exclude_modules", "layers_to_transform"),
        *("layers_pattern", "target_modules", "target_parameters", "peft_type", "r", "lora_alpha"),
        *("use_rslora", "rank_pattern", "alpha_pattern"),
    )
)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A and B of one matrix as PEFT lays them out, float32, with the scale in ``up``."""

    down: Floats
    up: Floats


def read_peft(folder: Path, config: ModelConfig) -> dict[tuple[Role, int], Update]:
    """Return what an adapter adds, by role and layer; ConfigError or CheckpointError."""
    path = folder / CONFIG
    if not path.is_file():
        raise ConfigError(
            f"lora: expected a folder in PEFT's layout, with {CONFIG} and {WEIGHTS}, got "
            f"{folder}{_found_instead(folder)}"
        )
    scales = _Scales(Fields(read_json_object(path), str(path)))
    modules = {spec.name.removesuffix(".weight"): spec for spec in _specs(config)}
    file = SafetensorsFile(folder / WEIGHTS)
    pairs: dict[str, dict[str, str]] = {}
    for name in file:
        found = _TENSOR.fullmatch(name)
        spec = None if found is None else modules.get(found[1])
        if found is None or spec is None or not _roles(config, spec):
            raise CheckpointError(
                f"{file.path}: tensor {name!r}: expected A or B of {_KINDS}, such as "
                f"'{_PREFIX}{_example(config, modules)}.lora_A.weight', got another; {_MERGE}"
            )
        pairs.setdefault(found[1], {})[found[2]] = name
    scales.check_targets(file.path, pairs, [x for x, s in modules.items() if _roles(config, s)])
    updates: dict[tuple[Role, int], Update] = {}
    for name, names in pairs.items():
        updates |= _read(file, config, modules[name], names, scales)
    file.file.check_unchanged()  # all is copied by now
    if not updates:
        raise CheckpointError(f"{file.path}: expected A and B of some matrices, got no tensor")
    return updates


def _specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return the tensors of the model's folder as it would be in floats."""
    return tensor_specs(replace(config, quantization=None))


def _roles(config: ModelConfig, spec: TensorSpec) -> tuple[Role, ...]:
    """Return the matrices in a tensor, where all may have updates; none: they may not."""
    if spec.layer is None or spec.also is not None or spec.expert is not None:
        return ()
    roles = JOINED.get(spec.role, (spec.role,))
    for operation in (module.operation for module in config.modules[spec.layer]):
        if isinstance(operation, Attention) and operation.latent is not None:
            continue
        if set(roles) <= set(_REACHED.get(type(operation), ())):
            return roles
    return ()


def _example(config: ModelConfig, modules: Mapping[str, TensorSpec]) -> str:
    return next((name for name, spec in modules.items() if _roles(config, spec)), "NAME")


def _found_instead(folder: Path) -> str:
    if folder.suffix == ".gguf":
        return (
            ", a .gguf file; adapters in GGUF are not read: take the PEFT folder that it was made "
            "of, or merge it with llama.cpp's llama-export-lora"
        )
    if (folder / "config.json").is_file():
        return ", which holds a model; name it with --model"
    return ", which has no such file" if folder.is_dir() else ", which is no folder"


class _Scales:
    """What adapter_config.json says: the scale of each matrix, and which there must be."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        fields.choice("peft_type", ("LORA",))
        for name, (values, why) in _FIXED.items():
            if fields.has(name) and fields.raw[name] not in values:
                expected = " or ".join(map(repr, values))
                raise fields.fault(name, f"{expected}, or none", f": {why}; {_MERGE}")
        for name, value in fields.raw.items():
            if name not in _HARMLESS and name not in _FIXED and value not in (None, False, [], {}):
                raise fields.fault(name, "null, or a field that is known", f"; {_MERGE}")
        self._rank, self._alpha = fields.size("r"), fields.number("lora_alpha")
        self._by_root = fields.flag("use_rslora", False)
        self._ranks = self._pattern("rank_pattern")
        self._alphas = self._pattern("alpha_pattern")

    def _pattern(self, name: str) -> dict[str, float]:
        """Return a pattern by names of modules, whole or their ends."""
        nested = self._fields.nested(name)
        found: dict[str, float] = {}
        for key in {} if nested is None else nested.raw:
            assert nested is not None
            named = _NAME.fullmatch(key)
            if named is None:
                raise ConfigError(
                    f"{nested.source}: expected names of modules, whole or their ends, such as "
                    f"'q_proj', got {key!r:.80}; {_MERGE}"
                )
            found[named[1].replace("\\.", ".")] = nested.number(key)
        return found

    def rank(self, module: str) -> int:
        """Return r of a matrix."""
        return int(_matched(self._ranks, module, self._rank))

    def scale(self, module: str) -> float:
        """Return what B A is multiplied by."""
        alpha, rank = _matched(self._alphas, module, self._alpha), self.rank(module)
        return alpha / (math.sqrt(rank) if self._by_root else rank)

    def check_targets(self, path: Path, there: Mapping[str, Any], modules: list[str]) -> None:
        """CheckpointError where a listed module has no tensors."""
        targets = self._fields.raw.get("target_modules")
        some = any(self._fields.raw.get(x) for x in ("exclude_modules", "layers_to_transform"))
        if not isinstance(targets, list) or some:
            return
        for target in targets:
            for module in modules:
                if module not in there and f".{module}".endswith(f".{target}"):
                    raise CheckpointError(
                        f"{path}: expected A and B of {module!r}, as target_modules of {CONFIG} "
                        "says, got neither; download or save the adapter again"
                    )


def _matched(pattern: Mapping[str, float], module: str, default: float) -> float:
    """Return the first value whose name a module's is, or ends with, as PEFT looks it up."""
    return next((x for name, x in pattern.items() if f".{module}".endswith(f".{name}")), default)


def _read(
    file: SafetensorsFile,
    config: ModelConfig,
    spec: TensorSpec,
    names: Mapping[str, str],
    scales: _Scales,
) -> dict[tuple[Role, int], Update]:
    """Return the updates of a tensor's matrices: where several are joined, all have its A."""
    module = spec.name.removesuffix(".weight")
    if missing := {"A", "B"} - names.keys():
        raise CheckpointError(
            f"{file.path}: {module!r}: expected A and B, got no {missing.pop()}; download or save "
            "the adapter again"
        )
    lanes = math.prod(spec.shape[:-2])
    rows, columns, rank = spec.shape[-2], spec.shape[-1], scales.rank(module)
    shapes = {"A": (lanes * rank, columns), "B": (rows, rank * lanes)}
    arrays = {which: _floats(file, names[which], shape) for which, shape in shapes.items()}
    down, up = arrays["A"], arrays["B"] * np.float32(scales.scale(module))
    roles = _roles(config, spec)
    assert spec.layer is not None
    ends = np.cumsum([lane_shape(config, role, layer=spec.layer)[1] for role in roles])
    parts = [up] if len(roles) == 1 else np.split(up, ends[:-1])
    return {(role, spec.layer): Update(down, part) for role, part in zip(roles, parts, strict=True)}


def _floats(file: SafetensorsFile, name: str, shape: tuple[int, ...]) -> Floats:
    array = file[name]
    if array.shape != shape or array.dtype.name not in _DTYPES:
        raise CheckpointError(
            f"{file.path}: tensor {name!r}: expected {' or '.join(_DTYPES)} {list(shape)}, as the "
            f"model and {CONFIG} have it, got {array.dtype.name} {list(array.shape)}; use an "
            "adapter of this model"
        )
    found: Floats = array.astype(np.float32)
    if not np.isfinite(found).all():
        raise CheckpointError(f"{file.path}: tensor {name!r}: expected finite numbers, got others")
    return found
