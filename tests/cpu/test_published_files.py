"""Every tensor of two publishers' files of a 27B is read and planned, in each type it comes in.

The lists stand beside this test; qwen35_lists.py says how they were made, of no published file.
Data are a hole in the file: planned is what lies where, no number of a matrix is looked at.
"""

from collections import Counter
from math import prod
from pathlib import Path

import pytest
from qwen35_lists import LAYERS, LISTS, SETS, Listed, read_lists, write_header

from monolane.cpu._executor import find_isa
from monolane.cpu._native import Native, Setting
from monolane.errors import CheckpointError
from monolane.executor_api import Loading
from monolane.model import Blocks, GgufModel, Role, Weights
from monolane.plan import Plan

TAIL = f"blk.{LAYERS}."  # of the layer that predicts further ahead
# Two tensors that are put together by key heads, in one of their types or as floats.
GATES = ("ssm_alpha.weight", "ssm_beta.weight")
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

FILES = read_lists()


def planned(weights: Weights) -> Plan:
    """Hand a model over to the core, which checks each matrix, and return its plan."""
    loading = Loading(workers=2, ranks=1, context=512, max_sequences=1)
    return Native(weights, Setting(loading, find_isa())).plan


def numbers_by_type(weights: Weights) -> Counter[str]:
    """Return how many numbers are in each type, but for the gates."""
    found: Counter[str] = Counter()
    arrays = [*weights.outer.items(), *(x for layer in weights.layers for x in layer.items())]
    for role, array in arrays:
        if role is not Role.DELTA_GATES:
            found[DTYPES[array.dtype.name]] += array.size
    for (role, _), matrix in weights.coded():
        assert isinstance(matrix, Blocks)
        if role is not Role.DELTA_GATES:
            found[matrix.format.upper()] += prod(matrix.shape)
    return found


def test_the_sets_are_whole() -> None:
    assert Counter(file.set for file in FILES) == {"with UD mixes": 21, "with L variants": 26}
    assert [(file.set, file.name) for file in FILES] == [(x, y) for x in SETS for y in SETS[x]]
    assert {len(file.tensors) for file in FILES} == {866}
    assert LISTS.stat().st_size < 10_000
    types = {kind for file in FILES for *_, kind in file.tensors}
    assert {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"} < types
    assert {"IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "BF16"} < types


@pytest.mark.parametrize(
    "file", FILES, ids=lambda file: f"{file.set}-{file.name}".replace(" ", "-")
)
def test_every_tensor_is_read_and_planned(file: Listed, tmp_path: Path) -> None:
    """In its type, of the model itself and of the layer that predicts further ahead."""
    path = tmp_path / f"{file.name}.gguf"
    write_header(path, file.tensors)
    assert path.stat().st_blocks * 512 < 1 << 20  # of 7 to 55 GB
    model = GgufModel(path)
    assert {name: x.shape for part in model.parts for name, x in part.tensors.items()} == {
        name: shape for name, shape, _ in file.tensors
    }
    weights, ahead = Weights.of_gguf(model), Weights.ahead_of_gguf(model)
    expected: Counter[str] = Counter()
    tail: Counter[str] = Counter()
    for name, shape, kind in file.tensors:
        if name.startswith(TAIL):
            tail[kind] += prod(shape)
        elif not name.endswith(GATES):
            expected[kind] += prod(shape)
    assert numbers_by_type(weights) == expected
    assert planned(weights).config.num_layers == LAYERS
    assert ahead is not None
    shared = {"token_embd.weight", "output.weight"}
    for name, shape, kind in file.tensors:
        if name in shared:
            tail[kind] += prod(shape)
    assert numbers_by_type(ahead) == tail
    assert planned(ahead).config.num_layers == 2


def test_a_type_or_name_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """The test above can fail: of one tensor's other name, or other shape."""
    tensors = next(file for file in FILES if file.name == "Q4_K_M").tensors
    name, shape, kind = tensors[10]
    for other in ((f"{name}.more", shape, kind), (name, (*shape[:-1], shape[-1] + 256), kind)):
        path = tmp_path / "model.gguf"
        write_header(path, [*tensors[:10], other, *tensors[11:]])
        with pytest.raises(CheckpointError, match=name):
            Weights.of_gguf(GgufModel(path))
