"""What is made ahead for a machine with a GPU: that it is used there, and only while it is true."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gpu._stage import Budget, Stage
from bench.gpu.monokernel import _build, _carried, correctness, prepare
from bench.gpu.monokernel._carried import MAIN, Manifest, install, program_digest
from bench.gpu.monokernel._model import Model
from bench.gpu.monokernel._random_weights import make_block
from bench.gpu.monokernel._scale import FULL, REHEARSAL
from bench.gpu.monokernel._wanted import PROBE_SOURCES, wanted
from bench.gpu.probes._kernels import SOURCES
from bench.gpu.probes.run import PROBES
from monolane._results import Record
from monolane.cuda import GpuInfo, _compile
from monolane.cuda._compile import compile_kernel, compiler_version
from monolane.errors import MissingExtraError

H100, H200 = prepare.GPUS
SOURCE = "pack.cu"
CODE = b"\x7fELF of another machine"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def nvrtc() -> str:
    try:
        return ".".join(map(str, compiler_version()))
    except MissingExtraError as error:
        pytest.skip(str(error))


def folder(place: Path, release: str, headers: Mapping[str, str]) -> Path:
    """As prepare leaves it, with one kernel."""
    name = program_digest(SOURCE, headers, False, release)
    programs = {
        name: {
            "source": SOURCE, "headers": dict(headers), "fuse": False,
            "usage": {"kernel": "pack pack.cu", "registers": 40},
        }
    }  # fmt: skip
    (place / MAIN).mkdir(parents=True)
    (place / MAIN / f"{name}.xz").write_bytes(lzma.compress(CODE))
    (place / _carried.PROGRAMS).write_bytes(lzma.compress(json.dumps(programs).encode()))
    (place / _carried.PROOFS).write_text("0123\n4567")
    manifest = {
        "nvrtc": release, "code": _carried.code_digest(), "gpus": [_carried.signature(H100)],
        "parts": {"decode": [name]},
    }  # fmt: skip
    (place / _carried.MANIFEST).write_text(json.dumps(manifest))
    return place


# ---- machine code --------------------------------------------------------------------------------
def test_prepared_machine_code_is_what_compiling_gives(tmp_path: Path, nvrtc: str) -> None:
    headers = {"pack_params.h": "// of a machine that is not here"}
    made = install(folder(tmp_path / "there", f"{nvrtc}.99", headers))
    assert (made.programs, made.why) == (1, "")
    assert made.usages[0]["registers"] == 40
    compiled = compile_kernel(SOURCE, headers, "sm_90a")
    assert (compiled.cubin, compiled.log) == (CODE, ""), "nothing was compiled"
    proofs = {path.name for path in (tmp_path / "cache" / "proofs").iterdir()}
    assert proofs == {"0123", "4567"}


@pytest.mark.parametrize("change", ["source", "compiler", "nothing there"])
def test_what_has_changed_since_is_compiled_here(
    change: str, tmp_path: Path, nvrtc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = "12.1.5" if change == "compiler" else f"{nvrtc}.99"
    there = folder(tmp_path / "there", release, {})
    if change == "source":
        monkeypatch.setattr(_carried, "_includes", lambda: b"a header that was mended")
    if change == "nothing there":
        there = tmp_path / "nowhere"
    made = install(there)
    assert made.programs == 0
    assert (
        made.why
        == {
            "source": "1 kernels were prepared from other sources: compiled here",
            "compiler": f"prepared by NVRTC 12.1.5, here it is {nvrtc}",
            "nothing there": "nothing was prepared",
        }[change]
    )
    assert not list((tmp_path / "cache").rglob("entries/*/*"))


def test_the_key_holds_all_that_goes_into_a_kernel() -> None:
    """But not where files lie, nor which Python or cuda.core asks: it is made where it is used."""
    first = program_digest(SOURCE, {"a.h": "1"}, False, "13.0.88")
    others = {
        program_digest("pack_float8.cu", {"a.h": "1"}, False, "13.0.88"),
        program_digest(SOURCE, {"a.h": "2"}, False, "13.0.88"),
        program_digest(SOURCE, {"b.h": "1"}, False, "13.0.88"),
        program_digest(SOURCE, {"a.h": "1"}, True, "13.0.88"),
        program_digest(SOURCE, {"a.h": "1"}, False, "13.5.37"),
    }
    assert len(others | {first}) == 6
    absolute = str(_compile.KERNELS / SOURCE)
    assert program_digest(absolute, {"a.h": "1"}, False, "13.0.88") == first


def test_both_gpus_have_the_same_kernels() -> None:
    for part in (
        "first-golden",
        "decode",
        "decode-float8",
        "widths",
        "variant:product",
        "switches",
    ):
        one, two = ([x.headers() for x in wanted(part, FULL, gpu)] for gpu in (H100, H200))
        assert one == two, part


def test_what_was_prepared_is_not_looked_up_again(
    tmp_path: Path, nvrtc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_build, "gpu_info", lambda emulated: H200)
    there = folder(tmp_path / "there", f"{nvrtc}.99", {})
    records: list[Record] = []
    stage = Stage(FULL, tmp_path, Budget(100.0), records.append, carried=there)

    def missing(*parts: str) -> set[str]:
        stage.wanted = parts
        return {x.name for x in _build._missing(stage, install(there))}

    assert missing("decode") == set()
    assert missing("decode", "variant:4 warps") == {"pack", "4 warps"}
    manifest = _carried.read_manifest(there)
    assert manifest is not None
    older = Manifest({**manifest.fields, "code": "of another commit"})
    assert manifest.covers("decode", H200)
    assert not older.covers("decode", H200)
    assert not manifest.covers("decode", replace(H200, sms=114))


# ---- logits --------------------------------------------------------------------------------------
def test_the_first_tokens_are_held_against_carried_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_block(REHEARSAL.config, tmp_path)
    correctness.save_logits(REHEARSAL, tmp_path, tmp_path / _carried.LOGITS)
    records: list[Record] = []
    stage = Stage(REHEARSAL, tmp_path, Budget(100.0), records.append, carried=tmp_path)
    expected, source = correctness._expected(stage, correctness.first_ids(REHEARSAL))
    assert source == "carried"
    again = correctness.numpy_logits(REHEARSAL, tmp_path)
    assert np.array_equal(expected, again)
    # Other weights are other logits: they are made here then.
    monkeypatch.setattr(correctness, "block_digest", lambda folder: 1)
    assert correctness._expected(stage, (1,))[1] == "NumPy here"


class Told(Model):
    """A model that gives logits which are told to it, by the width of the kernel."""

    def __init__(self, logits: Mapping[int, Any]) -> None:
        self._logits, self._width = logits, 0
        kernels = type("Kernels", (), {"widths": tuple(logits)})
        resident = type("Resident", (), {"kernels": kernels})
        self.executor: Any = type("Executor", (), {"_resident": resident})

    def forced(self, width: int) -> Any:
        self._width = width
        return nullcontext()

    def empty(self, slot: int) -> None:
        assert slot == 0

    def logits(self, slot: int, tokens: Any) -> Any:
        return self._logits[self._width]


@pytest.mark.parametrize("wrong", ["", "width 1", "width 8"])
def test_wrong_first_tokens_are_seen(wrong: str, tmp_path: Path) -> None:
    make_block(REHEARSAL.config, tmp_path)
    right = correctness.numpy_logits(REHEARSAL, tmp_path)
    off = right + np.float32(0.1)
    bit = right.copy()
    bit.view(np.uint32)[-1, -1] ^= 1
    model = Told({1: off if wrong == "width 1" else right, 8: bit if wrong == "width 8" else right})
    records: list[Record] = []
    stage = Stage(REHEARSAL, tmp_path, Budget(100.0), records.append)
    correctness._first_tokens(stage, model)
    errors = [r["error"] for r in records if "error" in r]
    if wrong == "width 1":
        assert len(records) == 1
        assert "logits: expected NumPy's to 0.027" in errors[0]
    elif wrong == "width 8":
        assert "width 8: expected the bits of width 1, got 1 other logits of 576" in errors[0]
    else:
        assert [r["name"] for r in records] == ["first_tokens", "first_bits"]
        assert not errors


# ---- packages ------------------------------------------------------------------------------------
def test_a_package_that_is_too_old_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = tmp_path / _carried.WHEELS / "suite"
    suite.mkdir(parents=True)
    with zipfile.ZipFile(suite / "cuda_core-1.2.2-cp312.whl", "w") as wheel:
        wheel.writestr("marker_of_a_wheel.py", "WHERE = __file__")
    site = tmp_path / "site"
    for there in ("1.0.1", "1.2.2"):
        monkeypatch.setattr(_carried, "version", lambda name, x=there: x)
        assert _carried.provide(tmp_path, site) == ""
    monkeypatch.setattr(_carried, "version", lambda name: "0.7.0")
    assert _carried.provide(None, site) == ""
    assert _carried.provide(tmp_path, site) == str(site)
    command = [sys.executable, "-c", "import marker_of_a_wheel as m; print(m.WHERE)"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(site)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.startswith(str(site))


# ---- preparing -----------------------------------------------------------------------------------
def test_a_folder_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare, "MOST_BYTES", 1000)
    out, tools = tmp_path / "out", tmp_path / "tools"
    out.mkdir()
    (out / "words.npz").write_bytes(bytes(2000))
    words = ["--out", str(out), "--tools", str(tools), "--steps", "words"]
    monkeypatch.setattr(prepare.words, "predict", lambda folder: folder)  # which takes a minute
    assert prepare.main(words) == 1
    assert "expected at most 0 MB" in capsys.readouterr().err
    (out / "words.npz").unlink()
    monkeypatch.setattr(prepare, "MOST_BYTES", 10**6)
    assert prepare.main(words) == 0
    assert json.loads((out / _carried.MANIFEST).read_text())["nvrtc"] == prepare.NVRTC


@pytest.mark.parametrize("option", ["--steps", "--only"])
def test_a_word_that_names_nothing_is_refused_before_a_folder_is_made(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        prepare.main(["--out", str(tmp_path / "out"), option, "nonsense"])
    assert refused.value.code == 2
    assert f"{option}: expected some of" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_only_what_has_changed_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def compile_one(source: str, *wish: Any, **more: Any) -> _compile.Compiled:
        asked.append(Path(source).name)
        return _compile.Compiled(CODE, "")

    monkeypatch.setattr(prepare, "compile_kernel", compile_one)
    monkeypatch.setattr(prepare, "load_nvrtc", lambda tools: prepare.NVRTC)
    out, tools = tmp_path / "out", tmp_path / "tools"
    for place in (out, tools):
        place.mkdir()
    job = prepare.Job(out, tools, ["launch", "probe:topology"])
    for _ in range(2):
        assert job.compile_set(MAIN) == 0
    assert sorted(asked) == ["start.cu", "topology.cu"]
    assert "2 kernels, 0 to compile" in capsys.readouterr().out
    monkeypatch.setattr(_carried, "code_digest", lambda: "of a later commit")
    assert job.finish() == 0
    manifest = _carried.read_manifest(out)
    assert manifest is not None
    assert not manifest.covers("launch", H100), "the kernels are of the code before"
    assert prepare.Job(out, tools, ["launch"]).compile_set(MAIN) == 0
    assert len(list((out / MAIN).iterdir())) == 1, "what nobody asks for does not travel"


def test_gpus_are_told_apart_by_what_kernels_hang_on() -> None:
    assert _carried.signature(H100) == _carried.signature(H200) == "9.0 132 SMs 232448 B"
    small = GpuInfo("NVIDIA H100 PCIe", (9, 0), 114, 227 << 10, 0, 80 << 30)
    assert _carried.signature(small) != _carried.signature(H100)


def test_each_probe_says_what_it_compiles() -> None:
    assert set(PROBE_SOURCES) == {part.name for part in PROBES}
    for sources in PROBE_SOURCES.values():
        assert set(sources) <= set(SOURCES)
