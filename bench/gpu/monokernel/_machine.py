"""The device of a child process: the GPU, or in a rehearsal the emulated one of the tests.

This file and _model.py are all that touches the host side of the monokernel below its executor.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.gpu.monokernel._scale import Scale
from bench.gpu.monokernel._stage import NotMeasuredError
from bench.gpu.probes import _compile
from bench.gpu.probes._device import Device as ProbeDevice
from bench.gpu.probes._errors import CompileError
from monolane.cuda import CudaDevice, Device, GpuInfo, examine
from monolane.cuda._compile import architecture

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("bandwidth.cu", "memory.cu")  # of the probes: all that the suite needs of them


def open_device(scale: Scale, work: Path, sms: int | None = None) -> Device:
    """The GPU, ready to launch; ``sms`` pretends that it has fewer."""
    if not scale.emulated:
        device: Device = CudaDevice()
    else:
        emulated = _test_module("tests/cuda", "emulated_gpu")
        device = emulated.EmulatedGpu(work / "kernels", sms=scale.sms)
    if sms is not None:
        device.info = replace(device.info, sms=min(sms, device.info.sms))
    return device


def describe(scale: Scale) -> dict[str, Any]:
    """The device's fields of a results document; BackendError says what is missing."""
    if scale.emulated:
        return {"name": "Emulated", "driver": "none", "cores": scale.sms, "memory_gb": 4.3,
                "compute": [9, 0]}  # fmt: skip
    machine = examine()
    if machine.lacks or machine.gpu is None:
        lacks = "; ".join(f"{lack.what}: {lack.mend}" for lack in machine.lacks)
        raise NotMeasuredError(lacks or "no GPU")
    gpu = machine.gpu
    driver = None if machine.driver is None else ".".join(map(str, machine.driver))
    return {
        "name": gpu.name,
        "driver": driver and f"CUDA {driver}",
        "cores": gpu.sms,
        "memory_gb": round(gpu.total_bytes / 1e9, 1),
        "compute": list(gpu.compute),
        "shared_per_block": gpu.shared_bytes,
    }


def gpu_info(scale: Scale) -> GpuInfo:
    """What kernels are laid out for, without opening the device."""
    if scale.emulated:
        return GpuInfo("Emulated", (9, 0), scale.sms or 4, 227 << 10, 1 << 32, 1 << 32)
    found = examine().gpu
    if found is None:
        raise NotMeasuredError("no GPU")
    return found


def open_probe_device(scale: Scale, work: Path) -> ProbeDevice:
    """The probes' own device, with its bandwidth kernels compiled."""
    folder = work / "probes"
    if scale.emulated:
        emulated, emulation = (
            _test_module("tests/bench", "emulated"),
            _test_module("tests/cuda", "emulation"),
        )
        _compile.write_header(folder)
        kernels = {
            source: emulation.build(
                _compile.KERNELS / source, folder, includes=[folder], optimise="-O1"
            )
            for source in SOURCES
        }
        device: ProbeDevice = emulated.EmulatedDevice(kernels)
        return device
    from bench.gpu.probes._cuda import CudaDevice as ProbeCudaDevice

    arch = architecture(*gpu_info(scale).compute)
    compile_probes(arch, folder)
    return ProbeCudaDevice(folder, arch)


def compile_probes(arch: str, folder: Path) -> None:
    """The bandwidth kernels, by nvcc where it works (it needs a host compiler), else by NVRTC."""
    trouble = ""
    for prefer in ("nvcc", "nvrtc"):
        try:
            compiler = _compile.find_compiler(prefer)
        except CompileError as error:
            trouble = trouble or str(error)
            continue
        results = _compile.compile_all(compiler, SOURCES, arch, folder).values()
        failed = [str(x) for x in results if isinstance(x, CompileError)]
        if not failed:
            return
        trouble = failed[0]
    raise NotMeasuredError(trouble[:500])


def _test_module(folder: str, module: str) -> Any:
    """A part of the tests' emulated device: the very kernels, compiled for this processor."""
    for name in ("tests/cuda", folder):
        path = str(ROOT / name)
        if path not in sys.path:
            sys.path.insert(0, path)
    return import_module(module)
