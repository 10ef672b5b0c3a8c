"""Which backend a name stands for."""

from typing import Any

import pytest

from monolane.engine import BACKEND_NAMES, Loading, _registry, find_backend
from monolane.errors import BackendError, MonolaneError, RequestError


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


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"expert_memory": 5}, "CpuExecutor"),
        ({"ranks": 2}, "CpuExecutor"),
        ({"devices": 2}, "CudaExecutor"),
        ({"cache_dtype": "int8"}, "_open_best"),  # which falls back
        ({"workers": 2}, "_open_best"),
        ({"dtype": "int8", "context": 9}, "_open_best"),
    ],
)
def test_auto_takes_a_backend_that_honours_what_is_asked(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], name: str
) -> None:
    monkeypatch.setattr(_registry, "_has_gpu", lambda library: True)
    assert getattr(find_backend("auto", Loading(**given)), "__name__", "") == name


def test_a_gpu_that_is_there_refuses_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ({"draft": "int4"}, {"heads": "folder"}):
        monkeypatch.setattr(_registry, "_has_gpu", lambda library: False)
        assert find_backend("auto", Loading(**given)).__name__ == "CpuExecutor"  # type: ignore[attr-defined, arg-type]
        monkeypatch.setattr(_registry, "_has_gpu", lambda library: True)
        with pytest.raises(BackendError, match="draft: expected backend cpu, .* got 'auto'"):
            find_backend("auto", Loading(**given))  # type: ignore[arg-type]


def test_a_backend_that_is_named_refuses_before_a_model_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Loading(workers=1)
    assert find_backend("reference", one).__name__ == "ReferenceExecutor"  # type: ignore[attr-defined]
    for given in ({"workers": 2}, {"workers": 1, "ranks": 2}, {"expert_memory": "1G"}):
        with pytest.raises(MonolaneError, match=f"{list(given)[-1]}( .*)?: "):
            find_backend("reference", Loading(**given))
    monkeypatch.setenv("MONOLANE_BACKEND", "reference")
    with pytest.raises(BackendError, match="expert_memory: expected the cpu backend"):
        find_backend("auto", Loading(expert_memory="1G"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": 0}, "ranks: expected a number of processes from 1 on, or RankAddresses, got 0"),
        ({"ranks": 2, "devices": 2}, "devices: expected backend cuda in one process, got 'auto', "),
        ({"draft": "int4", "ranks": 2}, "draft: expected one rank and one device, got ranks 2"),
        ({"draft": "int4", "heads": "x"}, "heads: expected no draft beside them"),
    ],
)
def test_what_no_backend_honours_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        find_backend("auto", Loading(**given))


def test_names() -> None:
    assert BACKEND_NAMES == ("auto", "cuda", "cpu", "reference")
    with pytest.raises(RequestError, match="expected one of auto, cuda, cpu, reference, got 'x'"):
        find_backend("x")
