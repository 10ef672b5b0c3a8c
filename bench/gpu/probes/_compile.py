"""Kernel files to cubins: by nvcc where there is one, else by NVRTC.

Both are called directly (nvcc as a process, libnvrtc through ctypes) rather than through
cuda.core, so that the probes run on a machine that has a driver and either compiler, and no Python
package besides numpy. The kernels include nothing of the toolkit, except `grid_sync.cu`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.probes import _structs
from bench.gpu.probes._errors import CompileError

KERNELS = Path(__file__).resolve().parent / "kernels"
# The probes are written against the package's own primitives, taken from the clone: monolane itself
# need not be installed.
PRIMITIVES = Path(__file__).resolve().parents[3] / "src" / "monolane" / "cuda" / "kernels"
SOURCES = tuple(sorted(p.name for p in KERNELS.glob("*.cu")))
HOPPER_ONLY = ("mailbox.cu", "matvec.cu", "waits.cu")  # the others also build for sm_80


def wheel_root() -> Path | None:
    """`site-packages/nvidia/cu13` (or cu12) of the pip packages, where they are installed."""
    spec = importlib.util.find_spec("nvidia")
    for base in spec.submodule_search_locations or () if spec else ():
        for name in ("cu13", "cu12"):
            if (Path(base) / name / "include").is_dir():
                return Path(base) / name
    return None


def toolkit_root() -> Path | None:
    """The CUDA toolkit: $CUDA_HOME or $CUDA_PATH, the nvcc on the PATH, or /usr/local/cuda."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            return Path(os.environ[variable])
    if found := shutil.which("nvcc"):
        return Path(found).resolve().parent.parent
    return Path("/usr/local/cuda") if Path("/usr/local/cuda").is_dir() else None


def find_nvcc() -> Path | None:
    """nvcc, where the toolkit has one."""
    root = toolkit_root()
    nvcc = root / "bin" / "nvcc" if root else None
    return nvcc if nvcc and nvcc.exists() else None


def _find_nvrtc() -> Path | None:
    roots = [r for r in (wheel_root(), toolkit_root()) if r]
    for root in roots:
        for folder in ("lib", "lib64", "targets/x86_64-linux/lib"):
            found = sorted((root / folder).glob("libnvrtc.so.1[2-9]"))
            if found:
                return found[-1]
    return None


def include_folders() -> list[Path]:
    """Where the toolkit's headers are (only cooperative groups need them)."""
    folders = [r / "include" for r in (toolkit_root(), wheel_root()) if r]
    folders = [f for f in folders if (f / "cooperative_groups.h").exists()]
    return [g for f in folders[:1] for g in (f, f / "cccl") if g.is_dir()]


@dataclass(frozen=True)
class Compiled:
    """A cubin and what the compiler said about it."""

    source: str
    cubin: bytes
    log: str
    compiler: str


class Nvcc:
    """nvcc as a process."""

    def __init__(self, nvcc: Path) -> None:
        self._nvcc = nvcc
        out = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, check=False
        ).stdout
        match = re.search(r"V(\d+\.\d+\.\d+)", out)
        self.name = f"nvcc {match.group(1) if match else 'unknown'}"

    def compile(self, source: str, arch: str, folder: Path) -> Compiled:
        """Compiles one file of the kernels folder for `arch` (such as sm_90a)."""
        out = folder / f"{source}.{arch}.cubin"
        number = arch.removeprefix("sm_")
        command = [
            str(self._nvcc), "-std=c++17", "-O3", "-cubin", "-Xptxas", "-v",
            f"-gencode=arch=compute_{number},code=sm_{number}",
            f"-I{folder}", f"-I{PRIMITIVES}", "-o", str(out), str(KERNELS / source),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        log = done.stdout + done.stderr
        if done.returncode != 0:
            raise CompileError(f"{source} for {arch}: {self.name} failed; its log:\n{log}")
        return Compiled(source, out.read_bytes(), log, self.name)


class Nvrtc:
    """libnvrtc through ctypes."""

    def __init__(self, library: Path) -> None:
        for builtins in sorted(library.parent.glob("libnvrtc-builtins.so*")):
            # NVRTC opens it by its bare name, which works once it is loaded.
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self._lib = ctypes.CDLL(str(library))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.name = f"nvrtc {major.value}.{minor.value}"

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(max(size.value, 1))
        getattr(self._lib, f"nvrtcGet{what}")(program, text)
        return text.raw[: size.value]

    def compile(self, source: str, arch: str, folder: Path) -> Compiled:
        """Compiles one file of the kernels folder for `arch` (such as sm_90a)."""
        program = ctypes.c_void_p()
        text = (KERNELS / source).read_bytes()
        self._lib.nvrtcCreateProgram(
            ctypes.byref(program), text, source.encode(), 0, None, None
        )  # fmt: skip
        folders = [folder, PRIMITIVES]
        if b"<cooperative_groups.h>" in text:
            folders += include_folders()
        options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v"]
        options += [f"--include-path={f}" for f in folders]
        raw = [o.encode() for o in options]
        array = (ctypes.c_char_p * len(raw))(*raw)
        status = self._lib.nvrtcCompileProgram(program, len(raw), array)
        log = self._text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        try:
            if status != 0:
                raise CompileError(f"{source} for {arch}: {self.name} failed; its log:\n{log}")
            return Compiled(source, self._text(program, "CUBIN"), log, self.name)
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))


def find_compiler(prefer: str = "any") -> Nvcc | Nvrtc:
    """The compiler to use: `prefer` is "any", "nvcc" or "nvrtc"."""
    if prefer in ("any", "nvcc") and (nvcc := find_nvcc()):
        return Nvcc(nvcc)
    if prefer in ("any", "nvrtc") and (library := _find_nvrtc()):
        return Nvrtc(library)
    raise CompileError(
        f"expected a CUDA compiler ({prefer}), found none: put nvcc on the PATH, set CUDA_HOME, or "
        "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl"
    )


def write_header(folder: Path) -> None:
    """Puts the generated `params.h` where the compilers look for it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.h").write_text(_structs.header())


def compile_all(
    compiler: Nvcc | Nvrtc, sources: Sequence[str], arch: str, folder: Path
) -> dict[str, Compiled | CompileError]:
    """Every source's cubin (written into `folder` too), or why it has none; side by side."""
    write_header(folder)

    def one(source: str) -> Compiled | CompileError:
        try:
            compiled = compiler.compile(source, arch, folder)
        except CompileError as error:
            return error
        (folder / f"{source}.{arch}.cubin").write_bytes(compiled.cubin)
        return compiled

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(sources, pool.map(one, sources), strict=True))


@dataclass(frozen=True)
class Usage:
    """One kernel's line of the compiler's report."""

    kernel: str
    registers: int
    spill_bytes: int
    stack_bytes: int


def usages(log: str) -> list[Usage]:
    """Registers, spills and stack of each kernel in a -v report."""
    found = re.findall(
        r"Function properties for (\w+)\s+(?:ptxas\s+\.\s+)?(\d+) bytes stack frame, "
        r"(\d+) bytes spill stores, "
        r"(\d+) bytes spill loads\s+.*?Used (\d+) registers",
        log,
        flags=re.S,
    )
    return [Usage(k, int(r), int(s) + int(ld), int(st)) for k, st, s, ld, r in found]
