"""Run-time compilation by NVRTC, which needs no GPU, and its cache."""

import sys
from pathlib import Path
from typing import Any

import pytest

from monolane.cuda import _compile
from monolane.cuda._compile import architecture, check_packages, compile_kernel, compiler_version
from monolane.cuda._load import pack_header
from monolane.errors import BackendError, MissingExtraError

HEADERS = {"pack_params.h": pack_header()}


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    try:
        compiler_version()
    except MissingExtraError as error:
        pytest.skip(str(error))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    return tmp_path / "cuda"


def entries(cache: Path) -> list[Path]:
    return [path for path in (cache / "entries").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("compute", "name"),
    [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a")],
)
def test_architectures_have_the_compilers_names(compute: tuple[int, int], name: str) -> None:
    assert architecture(*compute) == name
    for kernel in ("pack", "pack_float8"):
        compiled = compile_kernel(f"{kernel}.cu", HEADERS, name, use_cache=False)
        assert compiled.cubin.startswith(b"\x7fELF")
        (usage,) = compiled.usages
        assert usage.kernel == kernel
        assert (usage.spill_bytes, usage.stack_bytes) == (0, 0)
        assert 8 < usage.registers < 64


def test_what_was_compiled_once_is_kept(cache: Path) -> None:
    first = compile_kernel("pack.cu", HEADERS, "sm_90a")
    again = compile_kernel("pack.cu", HEADERS, "sm_90a")
    assert first.usages
    assert (again.cubin, again.log) == (first.cubin, "")
    assert len(entries(cache)) == 1


def test_the_key_holds_all_that_a_cubin_depends_on(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_kernel("pack.cu", HEADERS, "sm_90a")
    header = HEADERS["pack_params.h"]
    compile_kernel("pack.cu", {"pack_params.h": header + "\n"}, "sm_90a")
    compile_kernel("pack.cu", HEADERS, "sm_80")
    assert len(entries(cache)) == 3
    kernels = tmp_path / "kernels"  # the same files, but for a comment in one that is included
    kernels.mkdir()
    for path in _compile.KERNELS.iterdir():
        text = path.read_text()
        (kernels / path.name).write_text(text + "//\n" * (path.name == "primitives.cuh"))
    monkeypatch.setattr(_compile, "KERNELS", kernels)
    compile_kernel("pack.cu", HEADERS, "sm_90a")
    assert len(entries(cache)) == 4


def test_a_broken_entry_is_made_anew(cache: Path) -> None:
    first = compile_kernel("pack.cu", HEADERS, "sm_90a")
    (entry,) = entries(cache)
    entry.write_bytes(b"")
    assert compile_kernel("pack.cu", HEADERS, "sm_90a").cubin == first.cubin
    assert entry.read_bytes() == first.cubin


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way of the folder")
    monkeypatch.setenv("MONOLANE_CACHE", str(blocked))
    assert compile_kernel("pack.cu", HEADERS, "sm_90a").usages


def test_errors_carry_the_compilers_log() -> None:
    broken = {"pack_params.h": HEADERS["pack_params.h"].replace("run_bytes", "run_octets")}
    with pytest.raises(BackendError) as caught:
        compile_kernel("pack.cu", broken, "sm_90a", use_cache=False)
    message = str(caught.value)
    assert "cuda: pack.cu did not compile for sm_90a" in message
    assert 'has no member "run_bytes"' in message
    assert "pack.cu(" in message, "file and line"
    with pytest.raises(BackendError, match=r"sm_9999a.*too old for the machine"):
        compile_kernel("pack.cu", HEADERS, "sm_9999a", use_cache=False)


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: Any = None
    monkeypatch.setitem(sys.modules, "cuda.core", hidden)
    with pytest.raises(MissingExtraError, match=r"pip install 'monolane\[cuda\]'"):
        check_packages()
