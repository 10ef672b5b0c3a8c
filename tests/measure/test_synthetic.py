"""Random models: whole, of their config's shape, with logits that are numbers, and made once."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane.errors import BackendError
from monolane.measure import SYNTHETIC, synthetic, synthetic_config
from monolane.model import Checkpoint, Weights, read_config
from monolane.reference import ReferenceModel


def test_the_tiny_one_is_whole_and_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    told: list[str] = []
    folder = synthetic("laneformer-tiny", told.append)
    assert synthetic("laneformer-tiny", told.append) == folder
    (line,) = told
    assert "0.01 GB" in line
    assert str(folder) in line
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    weights = Weights.load(read_config(folder), Checkpoint.open(folder))
    assert weights.config == synthetic_config("laneformer-tiny")
    model = ReferenceModel(weights)
    logits = model.forward(np.arange(32), model.new_cache(32))
    assert 0.1 < logits.std() < 10
    rows = [
        array.reshape(-1)[:64].tobytes() for layer in weights.layers for array in layer.values()
    ]
    norms = 2 * len(weights.layers)  # all ones
    assert len(set(rows)) == len(rows) - norms + 1


@pytest.mark.parametrize("name", SYNTHETIC)
def test_shapes(name: str) -> None:
    config = synthetic_config(name)
    if name.endswith("2b"):
        assert config.num_parameters == pytest.approx(2.31e9, rel=0.01)
        assert config.num_lanes == (1 if name.startswith("dense") else 8)


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    usage: Any = shutil._ntuple_diskusage(10**10, 10**9, 9 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(
        BackendError, match=r"expected 9\.\d GB free, twice .* got 9\.0 GB; make room"
    ):
        synthetic("laneformer-2b", lambda text: None)
    assert list((tmp_path / "synthetic").iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "file"))
    with pytest.raises(BackendError, match="cannot be written: Not a directory; make room or let"):
        synthetic("laneformer-tiny", lambda text: None)


def test_nothing_is_left_of_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))

    def fail(*args: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("monolane.measure._synthetic.write_checkpoint", fail)
    with pytest.raises(BackendError, match="no space left"):
        synthetic("laneformer-tiny", lambda text: None)
    assert list((tmp_path / "synthetic").iterdir()) == []
