import shutil
from pathlib import Path

import numpy as np
import pytest

from monolane.errors import CheckpointError
from monolane.model import (
    Checkpoint,
    Role,
    SafetensorsFile,
    Weights,
    lane_shape,
    read_config,
    write_safetensors,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model folder that a test may damage."""
    source = Path(__file__).parents[1] / "golden" / "shared_norm_scale"
    shutil.copytree(source, tmp_path / "m")
    return tmp_path / "m"


def load(folder: Path) -> Weights:
    return Weights.load(read_config(folder), Checkpoint.open(folder))


def rewrite(folder: Path, **changes: np.ndarray | None) -> None:
    """Write the weights again, some replaced or added (an array) or dropped (None)."""
    path = folder / "model.safetensors"
    tensors = {name: np.array(array) for name, array in SafetensorsFile(path).items()}
    tensors |= {name: array for name, array in changes.items() if array is not None}
    write_safetensors(path, [(k, v) for k, v in tensors.items() if changes.get(k, v) is not None])


def test_weights_are_views_in_lane_shape(golden: Path) -> None:
    weights = load(golden)
    for role, array in [*weights.outer.items(), *weights.layers[-1].items()]:
        assert array.shape == lane_shape(weights.config, role)
        assert not array.flags.owndata
        assert not array.flags.writeable
    assert len(weights.layers) == weights.config.num_layers


def test_a_tied_head_is_the_embedding(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("{", '{"tie_word_embeddings": true,', 1))
    with pytest.raises(CheckpointError, match="got 1 more: 'lm_head.weight'"):
        load(folder)
    rewrite(folder, **{"lm_head.weight": None})
    weights = load(folder)
    tied = weights.outer[Role.HEAD]
    assert tied.shape == (4, 24, 64)
    np.testing.assert_array_equal(tied.reshape(96, 64), weights.outer[Role.EMBEDDING])


def test_missing_tensors_are_named(folder: Path) -> None:
    rewrite(folder, **{"model.norm.weight": None, "lm_head.weight": None})
    with pytest.raises(
        CheckpointError, match="2 are missing: 'lm_head.weight', 'model.norm.weight'"
    ):
        load(folder)


def test_surplus_tensors_are_named(folder: Path) -> None:
    rewrite(folder, more=np.ones(3, np.float32))
    with pytest.raises(CheckpointError, match="model.safetensors: .*got 1 more: 'more'"):
        load(folder)


def test_wrong_shapes_are_named(folder: Path) -> None:
    rewrite(folder, **{"model.norm.weight": np.ones(63, np.float32)})
    with pytest.raises(
        CheckpointError, match=r"'model.norm.weight': expected shape \[64\] from .* got \[63\]"
    ):
        load(folder)


def test_wrong_dtypes_are_named(folder: Path) -> None:
    rewrite(folder, **{"model.norm.weight": np.ones(64, np.int32)})
    with pytest.raises(
        CheckpointError, match="'model.norm.weight': expected one of BF16, .* got I32"
    ):
        load(folder)
