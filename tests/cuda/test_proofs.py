"""Verdicts that are kept: what they depend on, and that an unsound program has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from models import TINY

from monolane.cuda import GpuInfo, _proofs
from monolane.cuda._plan_device import lay_out_widths
from monolane.cuda._program import Program
from monolane.model import parse_config
from monolane.plan import PlanError

GPU = GpuInfo("One", (9, 0), 8, 227 << 10, 1 << 32, 1 << 32)


def program(gpu: GpuInfo = GPU, width: int = 1) -> Program:
    (layout,) = lay_out_widths(parse_config(TINY), gpu, "bfloat16", 64, (width,))
    return layout.program


@pytest.fixture(autouse=True)
def proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Programs that were really proven; nothing is known at first."""
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    found: list[Program] = []
    prove: Any = _proofs.prove

    def noted(given: Program) -> None:
        found.append(given)
        prove(given)

    monkeypatch.setattr(_proofs, "prove", noted)
    return found


def test_a_program_is_proven_once(proven: list[Program]) -> None:
    for _ in range(2):
        _proofs.prove_once(program())
    assert len(proven) == 1
    # What a machine is called is no part of it; how many blocks there are is.
    _proofs.prove_once(program(replace(GPU, name="Another")))
    assert len(proven) == 1
    _proofs.prove_once(program(replace(GPU, sms=6)))
    _proofs.prove_once(program(width=8))
    assert len(proven) == 3


def test_an_unsound_program_is_refused_each_time(proven: list[Program], tmp_path: Path) -> None:
    sound = program()
    broken = replace(sound, steps=sound.steps[:-1])
    for _ in range(2):
        with pytest.raises(PlanError, match="unsound"):
            _proofs.prove_once(broken)
    assert len(proven) == 2
    assert not list(tmp_path.rglob("*")), "no verdict is kept"


def test_other_code_makes_other_verdicts(
    proven: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    _proofs.prove_once(program())
    monkeypatch.setattr(_proofs, "_code", lambda: "a prover that was mended")
    _proofs.prove_once(program())
    assert len(proven) == 2


def test_a_folder_that_cannot_be_written_costs_time_alone(
    proven: list[Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        _proofs.prove_once(program())
    assert len(proven) == 2
