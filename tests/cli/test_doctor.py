"""What ``monolane doctor`` says of a GPU."""

import sys
from pathlib import Path

import pytest

from monolane import cuda
from monolane._core import kernels
from monolane.cli._doctor import Finding, examine
from monolane.cuda import GpuInfo, Lack, Machine
from monolane.errors import MissingExtraError
from monolane.evaluate import Guard

H200 = GpuInfo("NVIDIA H200", (9, 0), 132, 227 << 10, 0, 141 << 30)


@pytest.fixture(autouse=True)
def _a_guard_that_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/evaluate tries it, in processes."""
    monkeypatch.setattr(Guard, "refusal", lambda _: "")
    monkeypatch.setattr(Guard, "describe", lambda _: "bubblewrap 0.8.0")


def findings(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> list[Finding]:
    monkeypatch.setattr(cuda, "examine", lambda: machine)
    return [finding for finding in examine() if finding.name == "cuda"]


def test_a_gpu_that_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "compiler_version", lambda: (13, 5))
    (found,) = findings(monkeypatch, Machine((13, 0), H200, ()))
    assert (found.section, found.state, found.mend) == ("backends", "ok", "")
    assert found.value == (
        "NVIDIA H200, 132 SMs of sm_90, 141 GiB: up to 68.1 B parameters; driver for CUDA 13.0, "
        "NVRTC 13.5"
    )


def test_everything_that_is_missing_has_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = (Lack("one thing", "do this"), Lack("another", "do that"))
    found = findings(monkeypatch, Machine((12, 4), H200, lacks))
    assert [x.state for x in found] == ["missing"] * 3
    assert [(x.value, x.mend) for x in found[1:]] == [
        ("one thing", "do this"),
        ("another", "do that"),
    ]
    (found_none,) = findings(monkeypatch, Machine(None, None, (Lack("no driver", "install it"),)))
    assert (found_none.value, found_none.mend) == ("no driver", "install it")


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> tuple[int, int]:
        raise MissingExtraError("NVRTC", "cuda")

    monkeypatch.setattr(cuda, "compiler_version", missing)
    found = findings(monkeypatch, Machine((13, 0), H200, ()))
    assert found[-1].value == "no compiler (NVRTC)"
    assert found[-1].mend == "pip install 'monolane[cuda]'"


@pytest.mark.parametrize(
    ("present", "refusal", "said"),
    [
        (False, "the processor has none", []),
        (True, "", []),
        (True, "the kernel refuses them", ["AMX is not used: the kernel refuses them"]),
    ],
)
def test_tiles_that_are_there_and_not_used(
    monkeypatch: pytest.MonkeyPatch, present: bool, refusal: str, said: list[str]
) -> None:
    monkeypatch.setattr(kernels, "amx", lambda: (present, refusal))
    found = [x for x in examine() if x.name == "cpu tiles"]
    assert [x.value for x in found] == said
    assert all(x.state == "missing" for x in found)  # the AVX-512 set runs: nothing is broken


def test_a_missing_core_is_told_beside_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "monolane._core", None)  # an import of it fails
    found = {(x.section, x.name): x for x in examine()}
    for place in (("monolane", "native core"), ("backends", "cpu")):
        assert found[place].state == "broken"
        assert found[place].mend.startswith("pip install --force-reinstall")
    assert found["backends", "reference"].state == "ok"
    assert ("environment", "MONOLANE_CACHE") in found


def test_a_cache_that_is_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "cache"
    file.touch()
    monkeypatch.setenv("MONOLANE_CACHE", str(file))
    (found,) = (x for x in examine() if (x.section, x.name) == ("caches", "monolane"))
    assert (found.state, found.mend) == ("broken", "export MONOLANE_CACHE=FOLDER")
    assert found.value == f"{file}: expected a folder, got a file"


def test_a_cache_that_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", "")
    broken = [x.name for x in examine() if x.state == "broken"]
    assert broken == ["MONOLANE_CACHE"]


def test_what_shuts_generated_code_in_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = (x for x in examine() if x.name == "code guard")
    assert (found.section, found.state, found.value) == ("optional", "ok", "bubblewrap 0.8.0")
    monkeypatch.setattr(Guard, "refusal", lambda _: "unshare: Operation not permitted")
    (found,) = (x for x in examine() if x.name == "code guard")
    assert (found.section, found.state) == ("optional", "missing")
    assert "unshare" in found.value
    assert "--weak-guard" in found.mend
