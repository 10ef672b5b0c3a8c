"""The monokernel on an NVIDIA GPU: layouts, packing, run-time compilation, and an executor.

Importing this room imports no CUDA package; ``CudaDevice`` does.
"""

from monolane.cuda._advance import Advance, Drawn, Guide
from monolane.cuda._compile import compiler_version
from monolane.cuda._device import Device, GpuInfo
from monolane.cuda._driver import CudaDevice
from monolane.cuda._executor import CudaExecutor
from monolane.cuda._fit import check_fit
from monolane.cuda._formats import DTYPES
from monolane.cuda._logprobs import Logprobs
from monolane.cuda._probe import DRIVER, Lack, Machine, examine

__all__ = [
    "DRIVER",
    "DTYPES",
    "Advance",
    "CudaDevice",
    "CudaExecutor",
    "Device",
    "Drawn",
    "GpuInfo",
    "Guide",
    "Lack",
    "Logprobs",
    "Machine",
    "check_fit",
    "compiler_version",
    "examine",
]
