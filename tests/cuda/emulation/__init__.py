"""The emulated device from Python: kernel files become shared libraries, launches become calls.

    device = emulation.build(source, folder, includes=[...], defines={"WIDTH": 2})
    error = device.launch("kernel", grid=16, block=96, shared=4096, params=bytes, seed=7)

Memory belongs to the caller: parameters hold addresses of NumPy arrays, which stay as a launch left
them. A launch runs in the caller's thread; launches in other threads or processes may run at the
same time. What emulation proves, and what not, stands at the top of emulator.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
KERNELS = ROOT / "src" / "monolane" / "cuda" / "kernels"
PROBES = ROOT / "bench" / "gpu" / "probes" / "kernels"  # ring.cuh
PRIMITIVES = "primitives.cuh"
CONTEXT = HERE / "context.cpp"
CORE = tuple(HERE / f"{name}.cpp" for name in ("fiber", "schedule", "memory", "numbers", "launch"))
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")
SMALL_FRAMES = "-Wframe-larger-than=8192"  # bytes, of a thread's stack of 40 KiB
# No fortified functions: they take a switch of stacks for an attack. No strict aliasing: kernels
# see shared memory as words, vectors and barriers alike.
FLAGS = ("-std=c++17", "-x", "c++", "-U_FORTIFY_SOURCE", "-fno-strict-aliasing",
         "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-fvisibility=hidden")  # fmt: skip
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g",
            "-fno-omit-frame-pointer", "-Wno-maybe-uninitialized")  # fmt: skip
CORE_DEFINES = ("MONOLANE_UCONTEXT",)  # the others are of kernels and of device.h
NO_COMPILER = "no C++ compiler (g++ or clang++) on the PATH"
MOODS = ("brisk", "naps", "long naps", "slow memory", "slow block", "fast memory")  # of machine.h


def find_compiler() -> str | None:
    """The host's C++ compiler."""
    return shutil.which("g++") or shutil.which("clang++")


def write_headers(folder: Path, headers: Mapping[str, str]) -> Path:
    """A folder in `folder` that holds these texts, written by whoever asks first."""
    text = repr(sorted(headers.items())).encode()
    place = folder / hashlib.sha256(text).hexdigest()[:16]
    with locked(place / "headers"):
        for name, content in headers.items():
            if not (place / name).exists():
                part = place / f"{name}.part"
                part.write_text(content)
                part.rename(place / name)
    return place


def build(
    source: Path,
    folder: Path,
    *,
    includes: Sequence[Path] = (),
    defines: Mapping[str, object] | None = None,
    optimise: str = "-O2",
    compiler: str | None = None,
) -> Emulated:
    """Compiles a kernel file as `compile_library` does, and loads it."""
    return Emulated(
        compile_library(
            source, folder, includes=includes, defines=defines, optimise=optimise, compiler=compiler
        )
    )


def compile_library(
    source: Path,
    folder: Path,
    *,
    includes: Sequence[Path] = (),
    defines: Mapping[str, object] | None = None,
    sanitize: bool = False,
    optimise: str = "-O2",
    compiler: str | None = None,
) -> Path:
    """Compiles a kernel file into a library in `folder`, unless the same one is there already.

    `includes` come before the folders of the kernels and of the emulator. AssertionError with the
    compiler's words if it does not compile. With `sanitize`, what loads it must have been started
    with the address sanitizer's runtime: see `sanitizer_environment`.
    """
    compiler = compiler or find_compiler()
    assert compiler, NO_COMPILER
    folders = [*includes, KERNELS, PROBES, HERE]
    given = {name: f"-D{name}={value}" for name, value in (defines or {}).items()}
    common = [*FLAGS, *WARNINGS, "-DMONOLANE_EMULATED"]
    common += SANITIZE if sanitize else [SMALL_FRAMES]
    core = [*common, *(option for name, option in given.items() if name in CORE_DEFINES)]
    options = [optimise, *common, *given.values()]
    digest = _digest(compiler, [*options, *(path.name for path in CORE)], source, folders)
    library = folder / f"{source.stem}-{digest}.so"
    with locked(library):
        if library.exists():
            library.touch()  # as recently used: kernels may be kept from run to run
            return library
        begin: list[str] = []
        if not given and not sanitize and _has_shipped_primitives(folders):
            begin = ["-include", str(_compile_primitives(compiler, options, folder))]
        options += ["-shared", *begin, *(f"-I{f}" for f in folders)]
        _run_compiler(compiler, options, [source], library, _compile_core(compiler, core, folder))
    return library


def _compile_core(compiler: str, options: Sequence[str], folder: Path) -> Path:
    """The emulator itself, an object that all kernels of a folder are linked with.

    It takes twice as long as a kernel, and it is where a launch's time goes: hence -O2.
    """
    options = ["-O2", *options]
    core = folder / f"emulator-{_digest(compiler, options, CORE[0], [HERE])}.o"
    with locked(core):
        if not core.exists():
            _run_compiler(compiler, [*options, "-r", f"-I{HERE}"], CORE, core)
    return core


def _compile_primitives(compiler: str, options: Sequence[str], folder: Path) -> Path:
    """The header that kernels begin with, precompiled: it is a third of their compilation.

    `#pragma once` takes it for the one that they include only if both were written at one time.
    """
    source = KERNELS / PRIMITIVES
    options = [option if option != "c++" else "c++-header" for option in options]
    told = [*options, str(source.stat().st_mtime_ns)]
    header = folder / f"primitives-{_digest(compiler, told, source, [HERE])}" / PRIMITIVES
    with locked(header):
        if not (compiled := header.with_name(f"{PRIMITIVES}.gch")).exists():
            shutil.copy2(source, header)
            # Not its warnings: of `#pragma once` in what is not included.
            _run_compiler(compiler, [*options, "-w", f"-I{HERE}"], [header], compiled)
    return header


def _has_shipped_primitives(folders: Sequence[Path]) -> bool:
    first = next(path for folder in folders if (path := folder / PRIMITIVES).exists())
    return first.read_bytes() == (KERNELS / PRIMITIVES).read_bytes()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone with what is made at `path`, among threads and processes: they ask for it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run_compiler(
    compiler: str, options: Sequence[str], sources: Sequence[Path], to: Path, *objects: Path
) -> None:
    part = to.with_suffix(".part")
    command = [compiler, *options, "-o", str(part), *map(str, sources)]
    command += ["-x", "none", *map(str, objects)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    part.rename(to)


def sanitizer_environment(compiler: str = "g++") -> dict[str, str]:
    """What a Python process needs in its environment to load a sanitized library."""
    done = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    # The interpreter's own leaks are none of ours.
    return {"LD_PRELOAD": done.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}


@cache
def _version(compiler: str) -> bytes:
    return subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout


def _digest(compiler: str, options: Sequence[str], source: Path, folders: Sequence[Path]) -> str:
    """Of everything that the library is made from, every header that could be included too."""
    parts = [_version(compiler), "\0".join(options).encode(), source.read_bytes()]
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.suffix in (".h", ".cuh", ".cpp"):
                parts += [path.name.encode(), path.read_bytes()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@dataclass(frozen=True)
class Grid:
    """One kernel of a launch."""

    kernel: str
    blocks: int
    threads: int  # of a block
    shared: int  # bytes of a block
    params: bytes
    cluster: int = 1  # blocks
    memory: tuple[int, int] = (0, 0)  # of a device: first address, and that behind the last


@dataclass(frozen=True)
class HostStore:
    """A word that the host writes while the launch runs."""

    tick: int
    address: int
    value: int


@dataclass(frozen=True)
class Effort:
    """What a launch took."""

    ticks: int  # of the emulated clock
    turns: int  # of warps
    switches: int  # between threads


class _Grid(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_void_p), ("params", ctypes.c_void_p),
        *((n, ctypes.c_uint32) for n in ("blocks", "threads", "shared", "cluster")),
        *((n, ctypes.c_void_p) for n in ("memory", "memory_end")),
    )  # fmt: skip


class _HostStore(ctypes.Structure):
    _fields_ = (("when", ctypes.c_uint64), ("at", ctypes.c_void_p), ("value", ctypes.c_uint32))


class _Schedule(ctypes.Structure):
    _fields_ = (
        ("seed", ctypes.c_uint64),
        *((n, ctypes.c_uint32) for n in ("sms", "host_time", "mood", "store_count")),
        ("stores", ctypes.c_void_p),
        *((n, ctypes.c_uint32) for n in ("skew", "dies")),
        ("dies_at", ctypes.c_uint64),
        ("noise", ctypes.c_float),
        ("noise_seed", ctypes.c_uint32),
        *((n, ctypes.c_uint64) for n in ("ticks", "turns", "switches")),
    )


@cache
def _load_context() -> ctypes.CDLL:
    """What all libraries share: see context.cpp. Loaded before the first, and never unloaded."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "context.so"
        compiler = find_compiler()
        assert compiler, NO_COMPILER
        command = [compiler, "-O2", "-fPIC", "-shared", "-o", str(library), str(CONTEXT)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class Emulated:
    """The kernels of one file."""

    def __init__(self, library: Path) -> None:
        self.library = library
        _load_context()
        self._lib = ctypes.CDLL(str(library))
        self._lib.emulate.restype = ctypes.c_char_p
        self.effort = Effort(0, 0, 0)  # of the last launch from any thread

    def max_threads(self, kernel: str) -> int:
        """Threads of a block, at most, as the kernel declares them."""
        return int(getattr(self._lib, f"{kernel}_max_threads")())

    def params_size(self, kernel: str) -> int:
        """Bytes of the kernel's parameters."""
        return int(getattr(self._lib, f"{kernel}_params_size")())

    def launch(
        self,
        kernel: str,
        *,
        grid: int,
        block: int,
        params: bytes,
        shared: int = 0,
        cluster: int = 1,
        seed: int = 0,
        sms: int | None = None,
        mood: str | None = None,
        host_time: bool = False,
        stores: Sequence[HostStore] = (),
        noise: tuple[float, int] = (0.0, 0),
    ) -> str | None:
        """Runs one kernel to its end; None, or what went wrong. See `launch_all`."""
        one = Grid(kernel, grid, block, shared, params, cluster)
        return self.launch_all(
            [one], seed=seed, sms=sms, mood=mood, host_time=host_time, stores=stores, noise=noise
        )

    def launch_all(
        self,
        grids: Sequence[Grid],
        *,
        seed: int = 0,
        sms: int | None = None,
        mood: str | None = None,
        host_time: bool = False,
        stores: Sequence[HostStore] = (),
        skew: int = 0,
        dies: tuple[int, int] | None = None,
        noise: tuple[float, int] = (0.0, 0),
    ) -> str | None:
        """Runs kernels that are resident together to their ends; None, or what went wrong.

        Args:
            grids: the kernels; those with memory of their own are devices joined by links, the
                others share one device, or are peers, as you like to see it.
            seed: of the schedule.
            sms: blocks that run together, all by default; one grid may have more.
            mood: one of `MOODS`, by default as the seed draws it.
            host_time: clocks tell what the thread has computed, and other threads may write what
                kernels wait for.
            stores: what the host writes meanwhile.
            skew: ticks by which a device starts later than another, at most.
            dies: a device, and the tick at which it stops for ever.
            noise: by how much of itself a number errs before it is rounded to 16 bits, and the
                seed that says which up and which down.
        """
        kept = []
        raw = (_Grid * len(grids))()
        for to, grid in zip(raw, grids, strict=True):
            limit, size = self.max_threads(grid.kernel), self.params_size(grid.kernel)
            name = grid.kernel
            assert grid.threads <= limit, f"{name}: {grid.threads} threads, at most {limit}"
            assert len(grid.params) == size, f"{name}: {len(grid.params)} bytes, not {size}"
            kept.append(_aligned(grid.params))
            to.kernel = ctypes.cast(getattr(self._lib, name), ctypes.c_void_p).value
            to.params = ctypes.addressof(kept[-1])
            to.blocks, to.threads, to.shared = grid.blocks, grid.threads, grid.shared
            to.cluster = grid.cluster
            to.memory, to.memory_end = grid.memory
        host = (_HostStore * len(stores))(*((s.tick, s.address, s.value) for s in stores))
        schedule = _Schedule(
            seed, sms or sum(g.blocks for g in grids), host_time,
            MOODS.index(mood) + 1 if mood else 0, len(stores), ctypes.addressof(host), skew,
            dies[0] + 1 if dies else 0, dies[1] if dies else 0, *noise,
        )  # fmt: skip
        error = self._lib.emulate(raw, len(grids), ctypes.byref(schedule))
        self.effort = Effort(schedule.ticks, schedule.turns, schedule.switches)
        return f"{error.decode()} (seed {seed})" if error else None


def _aligned(params: bytes) -> ctypes.Array[ctypes.c_uint64]:
    """A copy at the alignment that a device gives its parameters."""
    words = (ctypes.c_uint64 * (len(params) // 8 + 1))()
    ctypes.memmove(words, params, len(params))
    return words
