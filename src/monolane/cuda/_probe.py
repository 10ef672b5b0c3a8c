"""What this machine has for the CUDA backend, and what it lacks, found out cheaply.

The driver is asked through ctypes: importing CUDA's packages takes half a second, and where there
is no driver, which is most machines, a look for its library takes a millisecond.
"""

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from monolane.cuda._device import GpuInfo
from monolane.cuda._plan_device import OLDEST

DRIVER = "libcuda.so.1"
OLDEST_DRIVER = (13, 0)  # of CUDA: what the packages of the extra are built for
NEWER_DRIVER = "update the driver to 580 or later"
PACKAGES = ("cuda.core", "cuda.bindings")

# CUdevice_attribute
_SMS, _L2, _MAJOR, _MINOR, _SHARED = 16, 38, 75, 76, 97


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that is missing or too old, and what to do about it."""

    what: str
    mend: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found; ``lacks`` is empty where the CUDA backend can run."""

    driver: tuple[int, int] | None  # newest CUDA that it serves
    gpu: GpuInfo | None  # the first one; its free memory is not asked for
    lacks: tuple[Lack, ...]


class _DriverError(Exception):
    pass


def examine(library: str = DRIVER) -> Machine:
    """Look at driver, GPU and packages."""
    driver: tuple[int, int] | None = None
    gpu: GpuInfo | None = None
    try:
        lib = ctypes.CDLL(library)
    except OSError:
        text = f"no NVIDIA driver ({library} is not there)"
        return Machine(None, None, (Lack(text, "install the driver of an NVIDIA GPU"),))
    lacks: list[Lack] = []
    try:
        driver = _version(lib)
        gpu = _first_gpu(lib)
    except _DriverError as error:
        lacks.append(Lack(f"the driver does not answer: {error}", "nvidia-smi"))
    if driver is not None and driver < OLDEST_DRIVER:
        found, wanted = (".".join(map(str, x)) for x in (driver, OLDEST_DRIVER))
        lacks.append(Lack(f"a driver for CUDA {found}; expected {wanted}", NEWER_DRIVER))
    if gpu is not None and gpu.compute < OLDEST:
        found, wanted = (".".join(map(str, x)) for x in (gpu.compute, OLDEST))
        text = f"{gpu.name} has compute capability {found}; expected {wanted} or later"
        lacks.append(Lack(text, "use a GPU of the Ampere generation or later"))
    if missing := [name for name in PACKAGES if not _is_there(name)]:
        lacks.append(Lack(f"packages: {', '.join(missing)}", "pip install 'monolane[cuda]'"))
    return Machine(driver, gpu, tuple(lacks))


def version_of(number: int) -> tuple[int, int]:
    """Return the newest CUDA that a driver serves, from the number that it tells."""
    return number // 1000, number % 1000 // 10


def _version(lib: Any) -> tuple[int, int]:
    number = c_int()
    _call(lib, "cuDriverGetVersion", byref(number))
    return version_of(number.value)


def _first_gpu(lib: Any) -> GpuInfo:
    device, total = c_int(), c_size_t()
    _call(lib, "cuInit", 0)
    _call(lib, "cuDeviceGet", byref(device), 0)
    name = ctypes.create_string_buffer(128)
    _call(lib, "cuDeviceGetName", name, 128, device)
    _call(lib, "cuDeviceTotalMem_v2", byref(total), device)
    values = []
    for attribute in (_SMS, _MAJOR, _MINOR, _SHARED, _L2):
        value = c_int()
        _call(lib, "cuDeviceGetAttribute", byref(value), attribute, device)
        values.append(value.value)
    sms, major, minor, shared, l2 = values
    return GpuInfo(name.value.decode(), (major, minor), sms, shared, 0, total.value, l2)


def _call(lib: Any, name: str, *arguments: Any) -> None:
    status = getattr(lib, name)(*arguments)
    if status != 0:
        text = c_char_p()
        lib.cuGetErrorString(status, byref(text))
        reason = text.value.decode() if text.value else "unknown error"
        raise _DriverError(f"{name}: error {status} ({reason})")


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
