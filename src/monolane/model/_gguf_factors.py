"""Numbers beside the blocks of a GGUF file, by which all numbers of a tensor are multiplied.

llama.cpp's converter writes them beside NVFP4, whose scales of four exponent bits reach less far
than weights do: NAME.scale of NAME.weight, F32 [1], or [E] with one for each expert. It writes
NAME.input_scale, too, by which activations were rounded when the model was made; here executors
choose how they round, so that is not read.

Source: conversion/base.py and src/llama-model.cpp of github.com/ggml-org/llama.cpp.
"""

from collections.abc import Iterable

import numpy as np

from monolane.errors import CheckpointError
from monolane.model._gguf_model import GgufModel
from monolane.model._quant_matrix import Blocks

_FACTOR, _OF_INPUTS = "scale", "input_scale"


def find_factors(model: GgufModel, names: Iterable[str]) -> frozenset[str]:
    """Return which tensors are such numbers beside the blocks among ``names``."""
    expected = frozenset(names)
    beside = (
        _beside(name, ending)
        for name in expected
        if name in model and isinstance(model[name], Blocks)
        for ending in (_FACTOR, _OF_INPUTS)
    )
    return frozenset(name for name in beside if name in model and name not in expected)


def read_factors(model: GgufModel, name: str, count: int, factors: frozenset[str]) -> list[float]:
    """Return what each of ``count`` matrices of a tensor is multiplied with; 1 where none is said.

    ``factors``: what ``find_factors`` found. CheckpointError for another shape, type or number.
    """
    beside = _beside(name, _FACTOR)
    if beside not in factors:
        return [1.0] * count
    found = model[beside]
    plain = not isinstance(found, Blocks) and found.dtype == np.float32
    if isinstance(found, Blocks) or not plain or found.shape not in ((1,), (count,)):
        raise CheckpointError(
            f"{model.file_of(beside)}: tensor {beside!r}: expected F32 of shape "
            f"{'[1]' if count == 1 else f'[1] or [{count}]'}, got {list(found.shape)}; fetch the "
            "file again"
        )
    numbers: list[float] = np.broadcast_to(found, (count,)).tolist()
    check_factors(f"{model.file_of(beside)}: tensor {beside!r}", numbers)
    return numbers


def check_factors(at: str, numbers: Iterable[float]) -> None:
    """CheckpointError where a number by which weights are multiplied is no usual one."""
    for number in numbers:
        if not 0 < number <= float(np.finfo(np.float32).max):
            raise CheckpointError(
                f"{at}: expected a number above zero, got {number:.9g}; fetch the file again"
            )


def _beside(name: str, ending: str) -> str:
    return name.removesuffix("weight") + ending
