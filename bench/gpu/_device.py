"""The device of a child process: the GPU, or in a rehearsal the emulated one of the tests."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.gpu._child import DEVICE_LINE, OPTIONAL, ROOT
from bench.gpu._stage import NotMeasuredError
from monolane._results import Record
from monolane.cuda import CudaDevice, Device, GpuInfo, examine
from monolane.cuda._compile import compiler_version
from monolane.errors import MissingExtraError

EMULATED_SMS = 4


def open_device(emulated: bool, work: Path, sms: int | None = None, number: int = 0) -> Device:
    """GPU ``number``, ready to launch; ``sms`` pretends that it has fewer.

    An emulated one has as many as are asked for.
    """
    if not emulated:
        device: Device = CudaDevice(number)
    else:
        kind = test_module("emulated_gpu").EmulatedGpu
        most = max(EMULATED_SMS, sms or 0)
        device = kind(work / "kernels", sms=most, number=number, seed=100 * number)
    if sms is not None:
        device.info = replace(device.info, sms=min(sms, device.info.sms))
    return device


def device_line(emulated: bool) -> Record:
    """What a first part emits first: the device's fields of a results document.

    NotMeasuredError says what is missing.
    """
    if emulated:
        return {DEVICE_LINE: {"name": "Emulated", "driver": "none", "cores": EMULATED_SMS,
                              "memory_gb": 4.3, "compute": [9, 0]}}  # fmt: skip
    gpu = gpu_info(emulated)
    driver = examine().driver
    return {
        DEVICE_LINE: {
            "name": gpu.name,
            "driver": driver and f"CUDA {'.'.join(map(str, driver))}",
            "cores": gpu.sms,
            "memory_gb": round(gpu.total_bytes / 1e9, 1),
            "compute": list(gpu.compute),
            "l2_bytes": gpu.l2_bytes,
            "shared_per_block": gpu.shared_bytes,
        }
    }


def gpu_info(emulated: bool) -> GpuInfo:
    """What kernels are laid out for, without opening the device."""
    if emulated:
        return GpuInfo("Emulated", (9, 0), EMULATED_SMS, 227 << 10, 1 << 32, 1 << 32)
    machine = examine()
    if machine.lacks or machine.gpu is None:
        lacks = "; ".join(f"{lack.what}: {lack.mend}" for lack in machine.lacks)
        raise NotMeasuredError(lacks or "no GPU")
    return machine.gpu


def compiler(arch: str) -> str:
    """What compiles, and for which architecture; NotMeasuredError without it."""
    try:
        return f"nvrtc {'.'.join(map(str, compiler_version()))} {arch}"
    except MissingExtraError as error:
        raise NotMeasuredError(str(error)) from error


def lacks_torch(emulated: bool) -> str:
    """Why torch cannot be measured here, if it cannot: in a rehearsal it runs on the processor."""
    for name in OPTIONAL:
        if find_spec(name) is None:
            return f"{name} is not installed here"
    if emulated:
        return ""
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA here"


def test_module(name: str) -> Any:
    """A part of the tests' emulated device: the very kernels, compiled for this processor."""
    for folder in ("tests/cuda", "tests/bench"):
        path = str(ROOT / folder)
        if path not in sys.path:
            sys.path.insert(0, path)
    return import_module(name)


test_module.__test__ = False  # type: ignore[attr-defined]  # not a pytest case
