"""The kernels' machine code: they compile for the GPU, nothing spills, and the instructions that
the figures are about are there. Needs nvcc or the NVRTC wheel; disassembly also needs cuobjdump."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bench.gpu.probes import _compile
from bench.gpu.probes._compile import Compiled, find_compiler, usages
from bench.gpu.probes._errors import CompileError

NO_COMPILER = "no CUDA compiler: pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl"
NO_CUOBJDUMP = "no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
REGISTERS = 65536  # of an SM

Units = dict[str, Compiled]
Sass = dict[str, Counter[str]]


def compile_for(arch: str, sources: tuple[str, ...], folder: Path) -> Units:
    try:
        compiler = find_compiler()
    except CompileError:
        pytest.skip(NO_COMPILER)
    results = _compile.compile_all(compiler, sources, arch, folder)
    for result in results.values():
        assert isinstance(result, Compiled), result
    return {name: r for name, r in results.items() if isinstance(r, Compiled)}


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Units:
    return compile_for("sm_90a", _compile.SOURCES, tmp_path_factory.mktemp("sm_90a"))


def find_cuobjdump() -> str | None:
    roots = [r for r in (_compile.wheel_root(), _compile.toolkit_root()) if r]
    candidates = [str(r / "bin" / "cuobjdump") for r in roots]
    return next((c for c in candidates if Path(c).exists()), None) or shutil.which("cuobjdump")


@pytest.fixture(scope="module")
def sass(hopper: Units, tmp_path_factory: pytest.TempPathFactory) -> Sass:
    """The opcodes of every kernel, counted."""
    tool = find_cuobjdump()
    if tool is None:
        pytest.skip(NO_CUOBJDUMP)
    environment = os.environ | {"PATH": f"{Path(tool).parent}:{os.environ['PATH']}"}
    counts: Sass = {}
    for unit in hopper.values():
        path = tmp_path_factory.mktemp("sass") / "unit.cubin"
        path.write_bytes(unit.cubin)
        done = subprocess.run(
            [tool, "-sass", str(path)], capture_output=True, text=True, check=True, env=environment
        )
        counts |= opcodes(done.stdout)
    return counts


def opcodes(listing: str) -> Sass:
    counts: Sass = {}
    name = ""
    for line in listing.splitlines():
        if found := re.search(r"Function : (\w+)", line):
            name = found[1]
            counts[name] = Counter()
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]+)", line):
            counts[name][found[1]] += 1
    return counts


def has(counter: Counter[str], prefix: str) -> int:
    return sum(n for op, n in counter.items() if op.startswith(prefix))


def test_nothing_spills_and_a_block_always_fits(hopper: Units) -> None:
    seen = [use for unit in hopper.values() for use in usages(unit.log)]
    assert len(seen) == 41
    assert [u for u in seen if u.spill_bytes or u.stack_bytes] == []
    for use in seen:
        if use.kernel.startswith("matvec"):
            assert use.registers * 288 <= REGISTERS, use


def test_no_local_memory(sass: Sass) -> None:
    assert [k for k, ops in sass.items() if has(ops, "LDL") or has(ops, "STL")] == []


@pytest.mark.parametrize(
    ("kernel", "opcode", "least"),
    [
        ("read_plain_4", "LDG.E.NA.128.CONSTANT", 4),
        ("read_plain_8", "LDG.E.NA.128.CONSTANT", 8),
        ("copy_plain", "STG.E.EF.128", 4),
        ("read_async", "LDGSTS.E.BYPASS.128", 1),
        ("copy_async", "LDGSTS.E.BYPASS.128", 1),
        ("read_bulk", "UBLKCP.S.G", 2),  # with and without the evict-first policy
        ("read_bulk", "SYNCS.PHASECHK.TRANS64.TRYWAIT", 2),
        ("read_bulk", "SYNCS.ARRIVE.TRANS64", 2),
        ("read_bulk", "LDS.128", 1),
        ("copy_bulk", "UBLKCP.G.S", 1),
        ("waits", "LDG.E.128.STRONG.GPU", 1),
        ("waits", "UBLKCP.S.G", 1),
        ("waits", "SYNCS.ARRIVE.TRANS64.RED", 1),  # arrival at a peer's mbarrier
        ("waits", "UCGABAR_ARV", 1),
        ("waits", "UCGABAR_WAIT", 1),
        ("waits", "RED", 1),
        ("waits", "MEMBAR.ALL.GPU", 1),
        ("exchange_mail", "LDG.E.STRONG.SYS", 8),
        ("exchange_mail", "MEMBAR.ALL.SYS", 1),
        ("chain_step_dependent", "PREEXIT", 1),
        ("chain_step_dependent", "ACQBULK", 1),
        ("choose", "LDG.E.STRONG.GPU", 2),
    ],
)
def test_the_instruction_is_there(sass: Sass, kernel: str, opcode: str, least: int) -> None:
    assert has(sass[kernel], opcode) >= least, dict(sass[kernel])


@pytest.mark.parametrize("kind", ["BF16", "FP8", "INT8", "INT4"])
def test_matrix_instructions(sass: Sass, kind: str) -> None:
    per_piece = 4 if kind == "BF16" else 8
    for tiles in (1, 2, 8):
        ops = sass[f"matvec_{kind}_mma_{tiles}"]
        suffix = ".BF16" if kind == "BF16" else ""
        assert ops[f"HMMA.16816.F32{suffix}"] == per_piece * tiles
        assert has(ops, "LDS.128") >= 2
        assert has(ops, "UBLKCP.S.G") == 1
        assert has(ops, "F2FP.F16.E4M3") == (32 if kind == "FP8" else 0)


@pytest.mark.parametrize(("kind", "columns"), [("BF16", 8), ("FP8", 16), ("INT8", 16)])
def test_fma_instructions(sass: Sass, kind: str, columns: int) -> None:
    for width in (1, 4, 8):
        ops = sass[f"matvec_{kind}_fma_{width}"]
        assert ops["FFMA"] == 4 * columns * width  # 4 rows; nothing is computed twice
        assert has(ops, "LDS.128") >= 4 + columns // 4 * width
        assert has(ops, "HMMA") == 0


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_100a", marks=pytest.mark.exhaustive)])
def test_what_is_not_hoppers_own_compiles_elsewhere(arch: str, tmp_path: Path) -> None:
    sources = _compile.SOURCES if arch == "sm_100a" else tuple(
        s for s in _compile.SOURCES if s not in _compile.HOPPER_ONLY
    )  # fmt: skip
    compile_for(arch, sources, tmp_path)


def test_a_compile_error_carries_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        compiler = find_compiler()
    except CompileError:
        pytest.skip(NO_COMPILER)
    monkeypatch.setattr(_compile, "KERNELS", tmp_path)
    (tmp_path / "bad.cu").write_text("int f() { return undeclared; }\n")
    with pytest.raises(
        CompileError, match=r"(?s)bad.cu for sm_90a: .* failed; its log.*undeclared"
    ):
        compiler.compile("bad.cu", "sm_90a", tmp_path)


def test_usage_lines_of_both_compilers() -> None:
    log = (
        "ptxas info    : Function properties for a\n"
        "    8 bytes stack frame, 4 bytes spill stores, 2 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 2 barriers\n"
        "ptxas info    : Function properties for b\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 8 registers, used 0 barriers\n"
    )
    assert [(u.kernel, u.registers, u.spill_bytes, u.stack_bytes) for u in usages(log)] == [
        ("a", 168, 6, 8),
        ("b", 8, 0, 0),
    ]


def test_no_compiler_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compile, "find_nvcc", lambda: None)
    monkeypatch.setattr(_compile, "_find_nvrtc", lambda: None)
    with pytest.raises(CompileError, match="pip install nvidia-cuda-nvrtc"):
        find_compiler()
