"""What was made ahead on a machine without a GPU, in one folder that travels: see prepare.py.

    manifest.json      versions, commit, and the digest of each file
    programs.json.xz   of each kernel its source and headers, and what the compiler said
    kernels, other     machine code by two releases of the compiler, each file compressed
    proofs.txt         names of proven programs
    logits.npz         of a few tokens of the full model; words.npz: of a tiny pass, word by word
    wheels             packages that the other machine may lack: of the suite, of the engine

Nothing is taken on trust: machine code goes into the program cache under a key that is made here,
from the sources and headers that lie here, so what has changed since is compiled again.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.gpu._child import ROOT
from monolane.cuda import GpuInfo, _proofs
from monolane.cuda._compile import KERNELS, compiler_version, keep_compiled

MANIFEST, PROGRAMS, LOGITS, WORDS = "manifest.json", "programs.json.xz", "logits.npz", "words.npz"
PROOFS, WHEELS = "proofs.txt", "wheels"
MAIN, OTHER = "kernels", "other"  # folders of machine code
ARCH = "sm_90a"
_OLDEST_CORE = (1, 0)  # of cuda-core: before it the program cache is another
# What decides what is in a kernel; with the suite also, which there are.
_KERNELS = ("src/monolane/plan", "src/monolane/model", "src/monolane/cuda")
_CODE = (*_KERNELS, "bench/gpu")


@dataclass(frozen=True)
class Installed:
    """What came of machine code that was carried here."""

    programs: int = 0
    usages: tuple[Mapping[str, Any], ...] = ()  # registers and spills, by kernel
    why: str = ""  # not all of it is used


@dataclass(frozen=True)
class Manifest:
    """What the folder says of itself."""

    fields: Mapping[str, Any]

    @property
    def compiler(self) -> str:
        """NVRTC's release, of the main set."""
        return str(self.fields["nvrtc"])

    def covers(self, part: str, gpu: GpuInfo) -> bool:
        """Whether every kernel of a part is there, and nothing has changed since."""
        known = self.fields["code"] == code_digest() and signature(gpu) in self.fields["gpus"]
        # How many sequences fit depends on the memory: what they need is looked up each time.
        return known and part in self.fields["parts"] and part != "widths"


def signature(gpu: GpuInfo) -> str:
    """What of a GPU makes its kernels others than another one's."""
    return f"{gpu.compute[0]}.{gpu.compute[1]} {gpu.sms} SMs {gpu.shared_bytes} B"


def read_manifest(carried: Path | None) -> Manifest | None:
    """The folder's manifest, if there is one."""
    if carried is None or not (carried / MANIFEST).exists():
        return None
    return Manifest(json.loads((carried / MANIFEST).read_text()))


def code_digest() -> str:
    """Of all files that decide which kernels there are."""
    return _digest_of(_CODE)


def kernels_digest() -> str:
    """Of what makes the kernels alone: a truth about others is none about these."""
    return _digest_of(_KERNELS)[:16]


@cache
def _digest_of(folders: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cu", ".cuh", ".toml"):
                name = str(path.relative_to(ROOT))
                digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def _includes() -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(KERNELS.glob("*.cuh")))


def program_digest(source: str, headers: Mapping[str, str], fuse: bool, compiler: str) -> str:
    """The name of a program's machine code: of all that goes into it."""
    digest = hashlib.sha256(_includes() + (KERNELS / source).read_bytes())
    for name, text in sorted(headers.items()):
        digest.update(f"{name}\0{text}\0".encode())
    digest.update(f"{fuse} {compiler} {ARCH}".encode())
    return digest.hexdigest()[:32]


def shown(source: str) -> str:
    """A source as it is called on every machine."""
    path = Path(source)
    return str(path.relative_to(ROOT)) if path.is_absolute() else source


def found(source: str) -> str:
    """The opposite."""
    return str(ROOT / source) if "/" in source else source


def install(carried: Path | None, which: str = MAIN) -> Installed:
    """Put machine code into the program cache, and verdicts beside it."""
    manifest = read_manifest(carried)
    if carried is None or manifest is None:
        return Installed(why="nothing was prepared")
    _install_proofs(carried)
    here = ".".join(map(str, compiler_version()))
    if which == MAIN and not manifest.compiler.startswith(f"{here}."):
        return Installed(why=f"prepared by NVRTC {manifest.compiler}, here it is {here}")
    programs = json.loads(lzma.decompress((carried / PROGRAMS).read_bytes()))
    count, stale, usages = 0, 0, []
    for name, program in programs.items():
        packed = carried / which / f"{name}.xz"
        if not packed.exists():
            continue
        source, headers, fuse = found(program["source"]), program["headers"], program["fuse"]
        if program_digest(source, headers, fuse, manifest.compiler) != name:
            stale += 1
            continue
        code = lzma.decompress(packed.read_bytes())
        if keep_compiled(source, headers, ARCH, code, fuse=fuse):
            count += 1
            usages.append(program["usage"])
    why = f"{stale} kernels were prepared from other sources: compiled here" if stale else ""
    return Installed(count, tuple(usages), why)


def _install_proofs(carried: Path) -> None:
    folder = _proofs.folder()
    folder.mkdir(parents=True, exist_ok=True)
    for name in (carried / PROOFS).read_text().split():
        (folder / name).touch()


# ---- packages ------------------------------------------------------------------------------------
def provide(carried: Path | None, site: Path) -> str:
    """Unpack the suite's own packages where this machine lacks them; the folder, or nothing.

    A wheel is an archive of what belongs in a folder of packages. cuda-core alone is of this kind:
    one that is too old has another program cache.
    """
    try:
        there = tuple(int(x) for x in version("cuda-core").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        there = (0, 0)
    wheels = sorted((carried / WHEELS / "suite").glob("*.whl")) if carried is not None else []
    if there >= _OLDEST_CORE or not wheels:
        return ""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return str(site)
