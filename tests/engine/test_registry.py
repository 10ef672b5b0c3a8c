"""Which backend a name stands for."""

import pytest

from monolane.engine import BACKEND_NAMES, _registry, find_backend
from monolane.errors import RequestError


@pytest.mark.parametrize(("there", "name"), [(True, "_open_best"), (False, "CpuExecutor")])
def test_auto_takes_a_gpu_where_one_can_be_used(
    monkeypatch: pytest.MonkeyPatch, there: bool, name: str
) -> None:
    monkeypatch.setattr(_registry, "_has_gpu", lambda library: there)
    assert getattr(find_backend("auto"), "__name__", "") == name
    monkeypatch.setenv("MONOLANE_BACKEND", "reference")
    assert getattr(find_backend("auto"), "__name__", "") == "ReferenceExecutor"


def test_a_machine_without_a_driver_has_no_gpu() -> None:
    assert not _registry._has_gpu("libcuda-that-is-not-there.so")


def test_names() -> None:
    assert BACKEND_NAMES == ("auto", "cuda", "cpu", "reference")
    with pytest.raises(RequestError, match="expected one of auto, cuda, cpu, reference, got 'x'"):
        find_backend("x")
