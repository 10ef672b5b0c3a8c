"""One tensor of a GGUF file, checked, as executors read it but for its shape.

What converters of several ages write otherwise than a model's own files is put right here: axes of
one, rates of decay, tables of whole numbers.
"""

import math
from dataclasses import replace

import numpy as np

from monolane.errors import CheckpointError
from monolane.model._expert_table import check_table
from monolane.model._gguf_factors import read_factors
from monolane.model._gguf_model import GgufModel
from monolane.model._quant_matrix import Blocks
from monolane.model._safetensors import FLOATS, Array
from monolane.model._tensors import TensorSpec
from monolane.ops import EXPERT_ROLES, Kind, Role

_CONVOLUTIONS = (Role.DELTA_CONV, Role.CONV_TAPS, Role.MAMBA_CONV)
_DECAYS = (Role.DELTA_DECAY, Role.KDA_DECAY, Role.MAMBA_DECAY)
# What may lie in blocks. DELTA_GATES stays float, so it is widened.
_IN_BLOCKS = frozenset(role for role in Role if role.kind not in (Kind.NORM, Kind.VECTOR)) - {
    Role.ROUTER
}


def read_gguf_tensor(
    model: GgufModel, spec: TensorSpec, factors: frozenset[str]
) -> "Array | Blocks":
    """Return a tensor; CheckpointError names it, and the file, where it is not as ``spec`` says.

    ``factors`` are the names of numbers beside blocks; see _gguf_factors.py.
    """
    found = model[spec.name]
    _check_shape(model, spec, found.shape)
    if isinstance(found, Blocks):
        if spec.role not in _IN_BLOCKS:
            raise _fault(model, spec, f"one of {', '.join(FLOATS)}", found.format.upper())
        if spec.role not in EXPERT_ROLES:
            found = replace(found, factor=read_factors(model, spec.name, 1, factors)[0])
        return found.widened() if spec.role.kind is Kind.KEPT else found
    whole = found.dtype == np.int32
    if spec.role is Role.EXPERT_TABLE:
        if not whole:
            raise _fault(model, spec, "I32, whole numbers", found.dtype.name)
        check_table(found, model.config.experts, _place(model, spec))
        return found
    if whole:
        raise _fault(model, spec, f"one of {', '.join(FLOATS)}", "I32")
    return _log_rates(model, spec, found) if spec.role in _DECAYS else found


def _log_rates(model: GgufModel, spec: TensorSpec, found: Array) -> Array:
    """Return A_log: the converter writes -exp of it. The logarithm is rounded once, to float32."""
    rates = -found.astype(np.float64)
    if wrong := [rate for rate in rates.ravel().tolist() if not 0 < rate < math.inf]:
        raise _fault(
            model,
            spec,
            "numbers below zero, -exp(A_log) as llama.cpp's converter writes it",
            f"{-wrong[0]:.9g}; take a file of that converter, or the model's folder",
        )
    return np.log(rates).astype(np.float32)


def _check_shape(model: GgufModel, spec: TensorSpec, found: tuple[int, ...]) -> None:
    shapes = [spec.shape]
    # ik_llama.cpp writes the heads' matrices as one, each below the one before.
    if spec.role in (Role.K_UP, Role.V_UP):
        shapes.append((spec.shape[0] * spec.shape[1], spec.shape[2]))
    # As a matrix of one row, or without its axis: llama.cpp's converters of several ages.
    if spec.role in (Role.SHARED_EXPERT_GATE, Role.ROUTER_CORRECTION):
        shapes.append((1, *spec.shape))
    if spec.role in (Role.KDA_Q_CONV, Role.KDA_K_CONV, Role.KDA_V_CONV):
        shapes.append((1, *spec.shape))  # as the converter has it; files of blocks lose the axis
    if spec.role is Role.KDA_DECAY:
        shapes.append(spec.shape[-2:])
    if spec.role in _CONVOLUTIONS:  # without the axis of one in the middle
        shapes = [(spec.shape[0], spec.shape[2])]
    if spec.role in (Role.ALTUP_IN, Role.ALTUP_OUT):  # the streams' matrices as experts' are
        shapes = [(spec.shape[0] // spec.shape[1], spec.shape[1], spec.shape[1])]
    if spec.role in (Role.MAMBA_DECAY, Role.MAMBA_SKIP):
        shapes = [(*spec.shape, 1)]
    # By groups, one below the other.
    if spec.role is Role.MAMBA_NORM and math.prod(found) == spec.size:
        shapes = [found]
    if found not in shapes:
        raise _fault(model, spec, f"shape {list(shapes[0])} from the metadata", str(list(found)))


def _place(model: GgufModel, spec: TensorSpec) -> str:
    return f"{model.file_of(spec.name)}: tensor {spec.name!r}"


def _fault(model: GgufModel, spec: TensorSpec, expected: str, got: str) -> CheckpointError:
    return CheckpointError(f"{_place(model, spec)}: expected {expected}, got {got}")
