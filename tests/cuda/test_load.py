"""The device packs as the specification does, whatever the format, and with small staging too."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from models import random_weights
from test_pack import layout_of
from test_pack import load as load_golden

from monolane.cuda import _load
from monolane.cuda._load import load
from monolane.cuda._pack import pack, pack_scales
from monolane.model import Role, Weights


def rounded(weights: Weights) -> Weights:
    """The same in float16, with a row of zeros and one whose scale would be no number."""
    layers = tuple({r: x.astype(np.float16) for r, x in y.items()} for y in weights.layers)
    layers[0][Role.DOWN][1, 3] = 0
    layers[0][Role.DOWN][1, 4] = np.linspace(-2e-7, 6e-8, layers[0][Role.DOWN].shape[-1])
    outer = {role: array.astype(np.float16) for role, array in weights.outer.items()}
    return replace(weights, outer=outer, layers=layers)


@pytest.mark.parametrize(
    ("name", "blocks", "dtype", "staging"),
    [
        ("delay1_8lanes", 3, "bfloat16", 5000),  # matrices in pieces, rows that do not divide
        ("replicate_head", 2, "float16", 1 << 20),
        ("odd", 2, "bfloat16", 1 << 20),
        ("delay1_8lanes", 3, "float8", 5000),
        ("half", 2, "float8", 1 << 20),  # stored in float16, a row of zeros, columns of any number
    ],
)
def test_runs_are_those_of_the_specification(
    make_gpu: Callable[..., EmulatedGpu],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    blocks: int,
    dtype: str,
    staging: int,
) -> None:
    monkeypatch.setattr(_load, "STAGING_BYTES", staging)
    monkeypatch.setattr(_load, "_SHARE_BYTES", 512)  # several threads read
    # The random model's DOWN has 33 columns: the last one has no neighbour.
    made = random_weights(intermediate_size=66)
    if name == "half":
        made = rounded(made)
    weights = made if name in ("odd", "half") else load_golden(name)
    layout = layout_of(weights, blocks, dtype, slot_bytes=8 << 10)
    gpu = make_gpu()
    loaded = load(gpu, layout, weights)
    wanted = pack(layout, weights)
    found = gpu.read(loaded.runs, wanted.size).reshape(wanted.shape)
    np.testing.assert_array_equal(found, wanted)
    scales = pack_scales(layout, weights)
    assert (scales.size > 0) == (dtype == "float8")
    if scales.size:
        got = gpu.read(loaded.row_scales, scales.nbytes).view(np.float32)
        np.testing.assert_array_equal(got.reshape(scales.shape), scales)
    assert gpu.allocations == 1 + (dtype == "float8"), "staging is given back"
