"""The kernels' machine code: they compile for the GPU, nothing spills, and the instructions that
the figures are about are there. Needs NVRTC; disassembly also needs cuobjdump."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_primitives_compile import find_cuobjdump

from bench.gpu.probes import _build
from bench.gpu.probes._kernels import HOPPER_ONLY, SOURCES, compile_probe, toolkit_includes
from monolane.cuda._compile import Compiled, compiler_version
from monolane.errors import BackendError, MissingExtraError

NO_CUOBJDUMP = "no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
REGISTERS = 65536  # of an SM

Units = dict[str, Compiled]
Sass = dict[str, Counter[str]]


def compile_for(arch: str, sources: tuple[str, ...]) -> Units:
    try:
        compiler_version()
    except MissingExtraError as error:
        pytest.skip(str(error))
    with ThreadPoolExecutor(4) as pool:
        units = pool.map(lambda source: compile_probe(source, arch, use_cache=False), sources)
        return dict(zip(sources, units, strict=True))


@pytest.fixture(scope="module")
def hopper() -> Units:
    return compile_for("sm_90a", SOURCES)


@pytest.fixture(scope="module")
def sass(hopper: Units, tmp_path_factory: pytest.TempPathFactory) -> Sass:
    """The opcodes of every kernel, counted."""
    tool = find_cuobjdump()
    if tool is None:
        pytest.skip(NO_CUOBJDUMP)
    environment = os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
    counts: Sass = {}
    for unit in hopper.values():
        path = tmp_path_factory.mktemp("sass") / "unit.cubin"
        path.write_bytes(unit.cubin)
        done = subprocess.run(
            [tool, "-sass", path], capture_output=True, text=True, check=True, env=environment
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
    seen = [use for unit in hopper.values() for use in unit.usages]
    assert len(seen) == 43
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
def test_what_is_not_hoppers_own_compiles_elsewhere(arch: str) -> None:
    own = () if arch == "sm_100a" else HOPPER_ONLY
    assert compile_for(arch, tuple(source for source in SOURCES if source not in own))


def test_a_compile_error_carries_the_log(tmp_path: Path) -> None:
    compile_for("sm_90a", ())
    (tmp_path / "bad.cu").write_text("int f() { return undeclared; }\n")
    message = r"(?s)bad.cu did not compile for sm_90a.*bad.cu\(1\): error.*undeclared"
    with pytest.raises(BackendError, match=message):
        compile_probe(str(tmp_path / "bad.cu"), "sm_90a")


def test_registers_are_reported_without_a_gpu(
    hopper: Units, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the units that `compile_probe` has made: compiling them once more takes seven seconds."""

    def made(source: str, arch: str, *, use_cache: bool) -> Compiled:
        assert (arch, use_cache) == ("sm_90a", False)
        return hopper[source]

    monkeypatch.setattr(_build, "compile_probe", made)
    assert _build.report("sm_90a")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 43
    assert re.match(r"waits.cu +waits +\d+ registers, 0 bytes spilled", lines[-1])


def test_the_toolkit_is_found_where_it_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    include = tmp_path / "include"
    (include / "cccl").mkdir(parents=True)
    (include / "cooperative_groups.h").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert toolkit_includes() == [str(include), str(include / "cccl")]
