"""The instruction set: the variable MONOLANE_ISA, and what an executor is given beside it."""

from pathlib import Path
from typing import Any

import pytest

from monolane._core import kernels
from monolane.cpu import CpuExecutor
from monolane.errors import BackendError
from monolane.model import Checkpoint, Weights, read_config

MODEL = Path(__file__).parents[1] / "golden" / "released_shape"


def test_the_environment_names_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Weights.load(read_config(MODEL), Checkpoint.open(MODEL))
    options: dict[str, Any] = {"context": 9, "slots": 1}
    monkeypatch.setenv("MONOLANE_ISA", "portable")
    assert CpuExecutor(weights, **options).isa == "portable"
    assert CpuExecutor(weights, **options, isa=kernels.best()).isa == kernels.best()
    monkeypatch.setenv("MONOLANE_ISA", "auto")
    assert CpuExecutor(weights, **options).isa == kernels.best()
    monkeypatch.setenv("MONOLANE_ISA", "mmx")
    here = "MONOLANE_ISA: expected an instruction set that runs here, one of portable, .*'mmx'"
    with pytest.raises(BackendError, match=here):
        CpuExecutor(weights, **options)
