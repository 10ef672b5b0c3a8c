"""The first part: what the machine is, weights, and the kernels that the run's other parts need.

What was prepared elsewhere goes into the program cache; the rest is compiled, side by side.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.gpu._child import OPTIONAL
from bench.gpu._device import compiler, device_line, gpu_info
from bench.gpu._stage import Stage, expect
from bench.gpu.monokernel._carried import (
    Installed,
    code_digest,
    install,
    kernels_digest,
    read_manifest,
)
from bench.gpu.monokernel._random_weights import make_block
from bench.gpu.monokernel._wanted import WITHOUT_WEIGHTS, Wanted, wanted
from bench.gpu.monokernel.sanitizer import find_sanitizer
from monolane._results import Record
from monolane.cuda._compile import architecture, compile_kernel
from monolane.errors import MonolaneError

_PACKAGES = ("numpy", "ml_dtypes", "cuda-bindings", "cuda-core", "nvidia-cuda-nvrtc", *OPTIONAL)
_TOOLS = ("nvidia-smi", "ncu", "nvdisasm", "nvcc")


def build(stage: Stage, job: str) -> None:
    """What the machine is, at once; then kernels, while a thread makes the weights.

    The emulated device compiles its own, when it first meets them: a rehearsal compiles one for a
    GPU, where it can.
    """
    stage.emit(device_line(stage.scale.emulated))
    stage.attempt("machine", _machine)
    with ThreadPoolExecutor(1) as pool:
        weights = pool.submit(_weights, stage)
        stage.attempt("kernels", _all_kernels, stage)
        weights.result()


def _weights(stage: Stage) -> None:
    if any(part.partition(":")[0] not in WITHOUT_WEIGHTS for part in stage.wanted):
        make_block(stage.scale.config, stage.work)


def _machine() -> Record:
    """Versions, so that a difference between two runs can be found."""
    tools: dict[str, Any] = {name: shutil.which(name) or "" for name in _TOOLS}
    return {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "tools": tools | {"compute-sanitizer": find_sanitizer() or ""},
        "sources": kernels_digest(),
        "code": code_digest()[:16],
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _all_kernels(stage: Stage) -> Record:
    """Every kernel of the run; what one of them takes of an SM, and which do not compile."""
    begin = time.monotonic()
    installed = install(stage.carried)
    if installed.why:
        print(f"kernels: {installed.why}")
    arch = architecture(*gpu_info(stage.scale.emulated).compute)
    missing = list(_missing(stage, installed))[: 1 if stage.scale.emulated else None]

    def compile_in_time(item: Wanted) -> Record | None:
        return None if stage.budget.exhausted else _compile(item, arch)

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        done = list(pool.map(compile_in_time, missing))
    found = [x for x in done if x is not None]
    failed = [x for x in found if "error" in x]
    expect(not failed, f"{len(failed)} of {len(found)} kernels do not compile: {failed[:3]}")
    told = [*installed.usages, *found]
    kept = [x for x in told if not x["kernel"].startswith(("golden", "sanitizer", "probe", "pack"))]
    return {
        "prepared": installed.programs,
        "compiled": len(found),
        "left_to_parts": len(done) - len(found),  # for want of time
        "compiler": compiler(arch),
        "seconds": time.monotonic() - begin,
        "kernels": kept,
    } | ({"not_prepared": installed.why} if installed.why else {})


def _missing(stage: Stage, installed: Installed) -> list[Wanted]:
    """What the parts of this run need beside what was prepared, each once."""
    scale, info = stage.scale, gpu_info(stage.scale.emulated)
    manifest = read_manifest(stage.carried) if installed.programs and not installed.why else None
    found: dict[Any, Wanted] = {}
    for part in stage.wanted:
        if manifest is None or not manifest.covers(part, info):
            for item in wanted(part, scale, info):
                found.setdefault((item.source, repr(item.layout)), item)
    return list(found.values())


def _compile(item: Wanted, arch: str) -> Record:
    """What came of one kernel; from the cache it comes without the compiler's words."""
    try:
        compiled = compile_kernel(item.source, item.headers(), arch, fuse=item.fuse)
    except MonolaneError as error:
        return describe(item) | {"error": str(error)[:300]}
    return describe(item) | usage_of(compiled.usages)


def describe(item: Wanted) -> Record:
    """What is known of a kernel before it is compiled."""
    if item.layout is None:
        return {"kernel": f"{item.name} {Path(item.source).name}"}
    return {
        "kernel": item.name,
        "width": item.layout.width,
        "ring_slots": item.layout.ring_slots,
        "slot_bytes": item.layout.slot_bytes,
        "shared_bytes": item.layout.shared.total,
    }


def usage_of(usages: Any) -> Record:
    """Registers and spills of the last entry point of a file."""
    record: Record = {}
    for usage in usages:
        record |= {"registers": usage.registers, "spill_bytes": usage.spill_bytes}
    return record
