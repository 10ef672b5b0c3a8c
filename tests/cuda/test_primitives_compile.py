"""Every primitive compiles for every architecture that we know, and becomes the instructions that
the kernels count on. Needs NVRTC (pip install 'monolane[cuda]'), for HIP clang 19 or later."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from emulation import KERNELS, PROBES
from test_pack import layout_of, load

from monolane.cuda._compile import Compiled, compile_kernel, compiler_version
from monolane.cuda._kernel_header import specialisation
from monolane.errors import MissingExtraError

HERE = Path(__file__).resolve().parent / "kernels"
SOURCES = ("every_primitive.cu", "protocols.cu")
NO_CUOBJDUMP = "no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
HOPPER_ONLY = ("UBLKCP", "SYNCS", "UCGABAR")


def architectures() -> list[str]:
    """Ampere, Hopper, and the newest that the compiler knows."""
    return ["sm_80", "sm_90a", "sm_100a", "newest"]


def newest() -> str:
    from cuda.bindings import nvrtc

    _, known = nvrtc.nvrtcGetSupportedArchs()
    return f"sm_{max(known)}a"


@cache
def compiled(source: str, arch: str) -> Compiled:
    try:
        compiler_version()
    except MissingExtraError as error:
        pytest.skip(str(error))
    arch = newest() if arch == "newest" else arch
    headers = {"ring.cuh": (PROBES / "ring.cuh").read_text()}
    return compile_kernel(str(HERE / source), headers, arch, use_cache=False)


@pytest.mark.parametrize("arch", architectures())
@pytest.mark.parametrize("source", SOURCES)
def test_it_compiles_and_nothing_spills(source: str, arch: str) -> None:
    usages = compiled(source, arch).usages
    kernels = {"every_primitive.cu": 4 + (arch != "sm_80"), "protocols.cu": 4}
    assert len(usages) == kernels[source]
    assert [u for u in usages if u.spill_bytes or u.stack_bytes] == []


# ---- machine code --------------------------------------------------------------------------------
def find_cuobjdump() -> Path | None:
    spec = find_spec("nvidia")
    roots = [Path(r) for r in (spec.submodule_search_locations or ())] if spec else []
    found = [tool for root in roots for tool in root.glob("cu1*/bin/cuobjdump")]
    on_path = shutil.which("cuobjdump")
    return found[0] if found else Path(on_path) if on_path else None


def opcodes(cubin: bytes, folder: Path) -> Counter[str]:
    tool = find_cuobjdump()
    if tool is None:
        pytest.skip(NO_CUOBJDUMP)
    path = folder / "unit.cubin"
    path.write_bytes(cubin)
    environment = os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [tool, "-sass", path], capture_output=True, text=True, check=True, env=environment
    )
    found = re.findall(
        r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]+)", done.stdout, flags=re.M
    )
    return Counter(found)


COMMON = {
    "LDG.E.64.STRONG.GPU": 1,  # load_word
    "LDG.E.128.STRONG.GPU": 2,  # load_pair, load_relaxed of a vector
    "LDG.E.STRONG.SYS": 2,  # load_relaxed_system, load_host
    "LDG.E.64.STRONG.SYS": 1,  # load_host_word
    "MEMBAR.ALL.SYS": 1,
    "HMMA.16816.F32.BF16": 1,
    "LDGSTS.E.BYPASS.128": 1,
}
OWN = {
    # Neighbouring words' stores become one of 16 bytes where two are published in a row.
    "sm_80": {"ARRIVES.LDGSTSBAR.64": 1, "STG.E.128.STRONG.SYS": 1},
    "sm_90a": {"UBLKCP.S.G": 2, "UBLKCP.G.S": 1, "SYNCS.PHASECHK.TRANS64.TRYWAIT": 4,
               "STG.E.64.STRONG.GPU": 1, "STG.E.64.STRONG.SYS": 1, "F2FP.F16.E4M3.UNPACK_B": 1,
               "UCGABAR_ARV": 3, "PREEXIT": 1, "ACQBULK": 1},
}  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_instructions_are_there(arch: str, tmp_path: Path) -> None:
    ops = opcodes(compiled("every_primitive.cu", arch).cubin, tmp_path)
    wanted = COMMON | OWN[arch]
    assert {op: ops[op] for op, least in wanted.items() if ops[op] < least} == {}, dict(ops)
    if arch == "sm_80":
        assert [op for op in ops if op.startswith(HOPPER_ONLY)] == []
    assert [op for op in ops if op.startswith(("LDL", "STL"))] == []


# ---- HIP -----------------------------------------------------------------------------------------
NO_CLANG = "no clang 19 or later with an AMD GPU target: apt-get install clang-19"


@cache
def find_clang() -> str | None:
    """A clang that compiles for gfx942 and knows the builtins that primitives_hip.cuh uses."""
    for name in (*(f"clang-{n}" for n in range(25, 18, -1)), "clang"):
        if not shutil.which(name):
            continue
        version = subprocess.run([name, "--version"], capture_output=True, text=True, check=True)
        number = re.search(r"version (\d+)", version.stdout)
        targets = subprocess.run(
            [name, "--print-targets"], capture_output=True, text=True, check=False
        )
        if number and int(number[1]) >= 19 and "amdgcn" in targets.stdout:
            return name
    return None


def compile_hip(source: Path, output: Path, *options: str) -> str:
    """AMD assembly of a kernel file for gfx942."""
    clang = find_clang()
    if clang is None:
        pytest.skip(NO_CLANG)
    command = [
        clang, "-x", "hip", "--cuda-device-only", "--offload-arch=gfx942", "-nogpuinc",
        "-nogpulib", "-std=c++17", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
        "-Wno-unknown-pragmas", "-Wno-pass-failed", f"-I{KERNELS}", f"-I{PROBES}", *options, "-S",
        "-o", str(output), str(source),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output.read_text()


@pytest.mark.parametrize("source", SOURCES)
def test_hip_compiles_without_spills(source: str, tmp_path: Path) -> None:
    text = compile_hip(HERE / source, tmp_path / "unit.s")
    spills = re.findall(r"[sv]gpr_spill_count:\s+(\d+)", text)
    private = re.findall(r"\.private_segment_fixed_size:\s+(\d+)", text)
    assert len(spills) == 2 * 4  # scalar and vector registers of four kernels
    assert {*spills, *private} == {"0"}


def test_hip_reads_past_the_caches_without_fences(tmp_path: Path) -> None:
    text = compile_hip(HERE / "every_primitive.cu", tmp_path / "unit.s")
    memory = text[text.index("memory:") : text.index("; -- End function", text.index("memory:"))]
    assert re.search(r"global_load_dwordx2 .* sc1", memory)  # words, at device scope
    assert re.search(r"global_store_dwordx2 .* sc1", memory)
    assert re.search(r"global_store_dwordx2 .* sc0 sc1", memory)  # at system scope
    assert re.search(r"global_load_dwordx4 .* nt", text)  # weights, once


def test_the_monokernel_compiles_for_hip(tmp_path: Path) -> None:
    weights = load("delay1_8lanes")
    layout = layout_of(weights, 2, "bfloat16", slot_bytes=8 << 10)
    (tmp_path / "specialisation.h").write_text(specialisation(layout))
    text = compile_hip(KERNELS / "monokernel.cu", tmp_path / "unit.s", f"-I{tmp_path}")
    assert re.findall(r"vgpr_spill_count:\s+(\d+)", text) == ["0"]
    assert re.search(r"global_load_dwordx4 .* nt", text)  # the weights
    assert re.search(r"global_load_dwordx2 .* sc1", text)  # what other blocks have published
