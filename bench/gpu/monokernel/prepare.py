"""What the suite needs, made ahead without a GPU: `python bench/gpu/monokernel/prepare.py`.

Compiles the kernels of all parts for sm_90a by the release of NVRTC that the other machine has,
fetches the packages that it may lack, and writes the logits of the full model's first tokens, into
one folder that git ignores. run.py finds it by --carried. What has not changed is not made again.
README.md tells more.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
for folder in (ROOT / "src", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bench.gpu.monokernel import _carried, correctness, words  # noqa: E402
from bench.gpu.monokernel._build import describe, usage_of  # noqa: E402
from bench.gpu.monokernel._carried import MAIN, OTHER  # noqa: E402
from bench.gpu.monokernel._parts import parts  # noqa: E402
from bench.gpu.monokernel._random_weights import block_digest, make_block  # noqa: E402
from bench.gpu.monokernel._scale import FULL  # noqa: E402
from bench.gpu.monokernel._wanted import Wanted, wanted  # noqa: E402
from monolane._results import current_commit  # noqa: E402
from monolane.cuda import GpuInfo, _proofs  # noqa: E402
from monolane.cuda._compile import compile_kernel, compiler_version  # noqa: E402

NVRTC = "13.0.88"
# What both have in common decides the kernels; the memory decides how many sequences fit.
GPUS = (
    GpuInfo("NVIDIA H100 80GB HBM3", (9, 0), 132, 227 << 10, 0, 80 << 30),
    GpuInfo("NVIDIA H200", (9, 0), 132, 227 << 10, 0, 140 << 30),
)
# cp312 on x86-64 Linux. The suite needs the first alone, the rest is what an Engine imports.
PACKAGES = {
    "suite": ("cuda-core==1.2.2",),
    "engine": (
        "gguf", "llguidance", "pydantic", "pydantic-core", "annotated-types", "starlette",
        "uvicorn",
    ),
}  # fmt: skip
PLATFORMS = ("2_28", "2_27", "2_24", "2_17")
FIRST_RUNGS = ("launch", "first-golden", "first-tokens")  # that the other compiler's set has too
LOOKED_UP = "looked-up.json"
MOST_BYTES = 35 * 10**6  # of the whole folder


def main(arguments: list[str]) -> int:
    """Exit status 0: all is there and small enough."""
    p = argparse.ArgumentParser(prog="prepare.py", description=(__doc__ or "").split("\n\n")[0])
    p.add_argument("--out", type=Path, default=ROOT / "bench" / "gpu" / "carried")
    p.add_argument("--tools", type=Path, default=ROOT / "runs" / "nvrtc",
                   help="folder of the compiler and the weights; it does not travel")  # fmt: skip
    p.add_argument("--only", default="", help="comma-separated parts: kernels of these alone")
    p.add_argument("--steps", default=",".join(STEPS), help="comma-separated: some of these")
    p.add_argument("--compile", choices=(MAIN, OTHER), help=argparse.SUPPRESS)
    options = p.parse_args(arguments)
    all_parts = parts(False)
    names = options.only.split(",") if options.only else [part.name for part in all_parts]
    steps = options.steps.split(",")
    known = {"--only": {x for part in all_parts for x in (part.name, part.family)}}
    known["--steps"] = set(STEPS)
    for option, asked in (("--only", names), ("--steps", steps)):
        if other := sorted({*asked} - known[option]):
            p.error(f"{option}: expected some of {', '.join(sorted(known[option]))}, got {other}")
    out, tools = options.out.resolve(), options.tools.resolve()
    for place in (out, tools):
        place.mkdir(parents=True, exist_ok=True)
    job = Job(out, tools, names)
    if options.compile:
        return job.compile_set(options.compile)
    for step in steps:
        begin = time.monotonic()
        STEPS[step](job)
        print(f"{step:10} {time.monotonic() - begin:6.1f} s", flush=True)
    return job.finish()


@dataclass
class Job:
    """One preparation."""

    out: Path
    tools: Path
    parts: Sequence[str]

    # ---- kernels ---------------------------------------------------------------------------------
    def kernels(self) -> None:
        """Both sets, each in a process of its own: a process has one NVRTC."""
        for which in (MAIN, OTHER):
            command = [
                sys.executable, __file__, "--compile", which, "--out", str(self.out),
                "--tools", str(self.tools), "--only", ",".join(self.parts),
            ]  # fmt: skip
            environment = {**os.environ, "MONOLANE_CACHE": str(self.tools / "cache")}
            subprocess.run(command, check=True, env=environment)

    def compile_set(self, which: str) -> int:
        """One of them; the program of each file by its name."""
        version = load_nvrtc(self.tools) if which == MAIN else "the environment's"
        names = [x for x in self.parts if which == MAIN or x in FIRST_RUNGS]
        folder, store = self.out / which, self.tools / which
        for place in (folder, store):
            place.mkdir(exist_ok=True)
        programs: dict[str, Any] = {}
        by_part: dict[str, list[str]] = {}
        todo: dict[str, tuple[Wanted, Mapping[str, str]]] = {}
        proofs = set[str]()
        for part, item, headers in _items(names):
            name = _carried.program_digest(item.source, headers, item.fuse, NVRTC)
            by_part.setdefault(part, []).append(name)
            if item.layout is not None:
                proofs.add(_proofs.digest(item.layout.program))
            programs[name] = {
                "source": _carried.shown(item.source), "headers": dict(headers),
                "fuse": item.fuse, "usage": describe(item),
            }  # fmt: skip
            if not (store / f"{name}.xz").exists():
                todo.setdefault(name, (item, headers))
        print(f"{which}: {len(programs)} kernels, {len(todo)} to compile by NVRTC {version}")

        def one(name: str) -> None:
            item, headers = todo[name]
            made = compile_kernel(
                item.source, headers, _carried.ARCH, use_cache=False, fuse=item.fuse
            )
            _write(store / f"{name}.json", json.dumps(usage_of(made.usages)).encode())
            _write(store / f"{name}.xz", lzma.compress(made.cubin))

        with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
            for i, _ in enumerate(pool.map(one, todo), 1):
                if i % 10 == 0 or i == len(todo):
                    print(f"{which}: {i} of {len(todo)}", flush=True)
        for path in folder.glob("*.xz"):
            path.unlink()
        for name, program in programs.items():
            program["usage"] |= json.loads((store / f"{name}.json").read_text())
            _write(folder / f"{name}.xz", (store / f"{name}.xz").read_bytes())
        if which == MAIN:
            text = json.dumps(programs, sort_keys=True).encode()
            _write(self.out / _carried.PROGRAMS, lzma.compress(text))
            looked_up = {"code": _carried.code_digest(), "parts": by_part}
            (self.tools / LOOKED_UP).write_text(json.dumps(looked_up))
            _write(self.out / _carried.PROOFS, "\n".join(sorted(proofs)).encode())
        return 0

    # ---- the rest --------------------------------------------------------------------------------
    def wheels(self) -> None:
        """Packages for the other machine's Python."""
        for group, names in PACKAGES.items():
            folder = self.out / _carried.WHEELS / group
            wish = folder / "wished.txt"
            if wish.exists() and wish.read_text().split() == list(names):
                continue
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("*.whl"):
                old.unlink()
            platforms = [x for y in PLATFORMS for x in ("--platform", f"manylinux_{y}_x86_64")]
            _pip_download(
                folder, *names, "--only-binary=:all:", "--python-version", "3.12",
                "--implementation", "cp", *platforms, "--platform", "manylinux2014_x86_64",
            )  # fmt: skip
            wish.write_text("\n".join(names))

    def logits(self) -> None:
        """Of the full model's first tokens, by NumPy."""
        import numpy as np

        work = self.tools / "weights"
        work.mkdir(exist_ok=True)
        make_block(FULL.config, work)
        path = self.out / _carried.LOGITS
        if path.exists():
            there = np.load(path)
            same = tuple(there["ids"].tolist()) == correctness.first_ids(FULL)
            if same and int(there["block"]) == block_digest(work):
                return
        correctness.save_logits(FULL, work, path)

    def words(self) -> None:
        """The stamped words of a tiny pass, by the emulator."""
        words.predict(self.out)

    def finish(self) -> int:
        """The manifest, and what it all weighs."""
        path = self.tools / LOOKED_UP  # the code that the kernels are of, which may have changed
        looked_up = json.loads(path.read_text()) if path.exists() else {"code": "", "parts": {}}
        files = {
            str(x.relative_to(self.out)): x for x in sorted(self.out.rglob("*")) if x.is_file()
        }
        files.pop(_carried.MANIFEST, None)
        manifest = {
            "commit": current_commit(ROOT),
            **looked_up,
            "sources": _carried.kernels_digest(),
            "nvrtc": NVRTC,
            "arch": _carried.ARCH,
            "gpus": sorted({_carried.signature(gpu) for gpu in GPUS}),
            "packages": {x: list(y) for x, y in PACKAGES.items()},
            "files": {name: sha256(x.read_bytes()).hexdigest() for name, x in files.items()},
        }
        _write(self.out / _carried.MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
        sizes: dict[str, int] = {}
        for name in (*files, _carried.MANIFEST):
            head = "/".join(Path(name).parts[:-1]) or name
            sizes[head] = sizes.get(head, 0) + (self.out / name).stat().st_size
        for head, size in sizes.items():
            print(f"{head:20} {size / 1e6:8.2f} MB")
        total = sum(sizes.values())
        print(f"{'all':20} {total / 1e6:8.2f} MB in {self.out}")
        if total > MOST_BYTES:
            most = f"{MOST_BYTES / 1e6:.0f} MB"
            print(f"expected at most {most}: prepare fewer parts with --only", file=sys.stderr)
            return 1
        return 0


STEPS: dict[str, Callable[[Job], None]] = {
    "wheels": Job.wheels,
    "kernels": Job.kernels,
    "logits": Job.logits,
    "words": Job.words,
}


def _items(names: Sequence[str]) -> Iterator[tuple[str, Wanted, Mapping[str, str]]]:
    """Every kernel of every part, of all GPUs; each is proven once."""
    for part in names:
        for gpu in GPUS:
            for item in wanted(part, FULL, gpu):
                yield part, item, item.headers()


def load_nvrtc(tools: Path) -> str:
    """Have this process use NVRTC of the release wanted, fetched into a folder of its own.

    A library that the process has already is the one that cuda.bindings takes: so the environment
    keeps its own release.
    """
    folder = tools / NVRTC
    library = folder / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=tools) as scratch:
            _pip_download(Path(scratch), f"nvidia-cuda-nvrtc=={NVRTC}")
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
    for name in (f"libnvrtc-builtins.so.{'.'.join(NVRTC.split('.')[:2])}", library.name):
        ctypes.CDLL(str(library.with_name(name)), mode=ctypes.RTLD_GLOBAL)
    here = ".".join(map(str, compiler_version()))
    if not NVRTC.startswith(f"{here}."):
        raise SystemExit(f"NVRTC: expected {NVRTC}, this process has {here}")
    return NVRTC


def _pip_download(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    subprocess.run([*command, *words], check=True)


def _write(path: Path, data: bytes) -> None:
    """So that nobody sees half of it."""
    aside = path.with_name(f".{path.name}.part")
    aside.write_bytes(data)
    aside.rename(path)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
