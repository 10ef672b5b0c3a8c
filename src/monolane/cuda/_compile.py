"""Kernel files to cubins at run time, through NVRTC and cuda.core, with a cache on disk.

Run time, because a kernel's shapes are constants: there is one kernel for each model, context and
machine. The cache is cuda.core's: its entries are written atomically, bounded in bytes, shared by
processes, and keyed on source, options, architecture and compiler version; the headers, the
generated one included, we add to the key. NVRTC needs no GPU and no header of the toolkit.
"""

import hashlib
import io
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from monolane import _env
from monolane.errors import BackendError, MissingExtraError

if TYPE_CHECKING:
    from cuda.core import ProgramOptions
    from cuda.core.utils import FileStreamProgramCache

KERNELS = Path(__file__).parent / "kernels"
CACHE_BYTES = 256 << 20  # of cubins, some 230 KB each; the least recently used go first


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kernel takes of an SM, as the compiler reports it."""

    kernel: str
    registers: int  # of a thread
    spill_bytes: int
    stack_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin, and what the compiler said about it; nothing if it came from the cache."""

    cubin: bytes
    log: str

    @property
    def usages(self) -> tuple[Usage, ...]:
        """The report on each kernel."""
        found = re.findall(
            r"Function properties for (\w+)\s+(?:ptxas\s+\.\s+)?(\d+) bytes stack frame, "
            r"(\d+) bytes spill stores, (\d+) bytes spill loads\s+.*?Used (\d+) registers",
            self.log,
            flags=re.DOTALL,
        )
        return tuple(
            Usage(name, int(registers), int(stores) + int(loads), int(stack))
            for name, stack, stores, loads, registers in found
        )


def architecture(major: int, minor: int) -> str:
    """Return the compiler's name for a compute capability.

    From Hopper on with the suffix ``a``: bulk copies and their barriers are the architecture's own,
    and a cubin is for one machine anyhow.
    """
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def compile_kernel(
    source: str,
    headers: Mapping[str, str],
    arch: str,
    *,
    use_cache: bool = True,
    fuse: bool = False,
    folders: Sequence[str] = (),
    lines: bool = False,
) -> Compiled:
    """Compile a file of the kernels folder, or one of an absolute path.

    headers  generated files that it includes
    fuse     let the compiler make one rounding of a product and a sum
    folders  where it finds other headers; their contents are not part of the cache's key
    lines    let the cubin say which line of the source each instruction comes from; same code

    BackendError with the compiler's log if it does not compile; MissingExtraError without NVRTC.
    """
    compiler_version()
    program_cache = _cache() if use_cache else None
    text = (KERNELS / source).read_text()
    key = _key(source, text, headers, arch, _choices(folders, fuse, lines))
    if program_cache is not None:
        cubin = program_cache.get(key)
        if cubin is not None and cubin.startswith(b"\x7fELF"):
            return Compiled(cubin, "")
    compiled = _compile(source, text, headers, arch, fuse, folders, lines)
    if program_cache is not None:
        with suppress(OSError):  # a full disk costs the next start some seconds, not this one
            program_cache[key] = compiled.cubin
    return compiled


def keep_compiled(
    source: str,
    headers: Mapping[str, str],
    arch: str,
    cubin: bytes,
    *,
    fuse: bool = False,
) -> bool:
    """Put machine code that was made elsewhere where ``compile_kernel`` looks for it first.

    The key is made here: one that another release of cuda.core made could be another. False if
    there is no room for it.
    """
    program_cache = _cache()
    if program_cache is None:
        return False
    text = (KERNELS / source).read_text()
    key = _key(source, text, headers, arch, _choices((), fuse, False))
    try:
        program_cache[key] = cubin
    except OSError:
        return False
    return True


def _choices(folders: Sequence[str], fuse: bool, lines: bool) -> tuple[str, ...]:
    """Return what else the key depends on."""
    return (*folders, f"fuse={fuse}", f"lines={lines}")


def compiler_version() -> tuple[int, int]:
    """Return NVRTC's version; MissingExtraError without it."""
    check_packages()
    from cuda.bindings import nvrtc

    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # cuda.pathfinder: the library is not there
        raise MissingExtraError("the cuda backend's compiler, NVRTC,", "cuda") from error
    return int(major), int(minor)


def _compile(
    source: str,
    text: str,
    headers: Mapping[str, str],
    arch: str,
    fuse: bool,
    folders: Sequence[str],
    lines: bool,
) -> Compiled:
    from cuda.core import Program

    log = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="monolane-") as folder:
        for name, content in headers.items():
            (Path(folder) / name).write_text(content)
        places = [folder, str(KERNELS), *folders]
        program = Program(text, "c++", _options(source, arch, places, fuse, lines))
        try:
            code = program.compile("cubin", logs=log)
        except Exception as error:  # cuda.core has classes of its own, and shows none of them
            raise BackendError(
                f"cuda: {Path(source).name} did not compile for {arch}. Is this compiler too old "
                f"for the machine? pip install --upgrade 'monolane[cuda]'\n{error}"
            ) from error
        finally:
            program.close()
    return Compiled(bytes(code.code), log.getvalue())


def _options(
    source: str, arch: str, folders: list[str], fuse: bool = False, lines: bool = False
) -> "ProgramOptions":
    from cuda.core import ProgramOptions

    # No contraction of our own kernels: a*b + c is fused only where they say so, as in the emulated
    # build.
    return ProgramOptions(
        name=Path(source).name,
        arch=arch,
        std="c++17",
        fma=fuse,
        include_path=folders or None,
        ptxas_options="-v",
        lineinfo=lines,
    )


def _key(
    source: str, text: str, headers: Mapping[str, str], arch: str, choices: Sequence[str]
) -> bytes:
    """Return the cache's key: everything that the cubin depends on, wherever the files lie."""
    from cuda.core.utils import make_program_cache_key

    digest = hashlib.sha256()
    files = {path.name: path.read_text() for path in sorted(KERNELS.glob("*.cuh"))}
    for name, content in sorted({**files, **headers}.items()):
        digest.update(f"{name}\0{content}\0".encode())
    digest.update("\0".join(choices).encode())
    options = _options(source, arch, [])
    key: bytes = make_program_cache_key(
        code=text,
        code_type="c++",
        options=options,
        target_type="cubin",
        extra_digest=digest.digest(),
    )
    return key


@cache
def _open_cache(folder: Path) -> "FileStreamProgramCache | None":
    from cuda.core.utils import FileStreamProgramCache

    try:
        return FileStreamProgramCache(folder, max_size_bytes=CACHE_BYTES)
    except OSError:
        return None


def _cache() -> "FileStreamProgramCache | None":
    return _open_cache(_env.CACHE.get() / "cuda")


def check_packages() -> None:
    """Raise MissingExtraError unless the packages of the ``cuda`` extra can be imported."""
    try:
        import cuda.bindings.driver
        import cuda.bindings.nvrtc
        import cuda.core  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the cuda backend", "cuda") from error
