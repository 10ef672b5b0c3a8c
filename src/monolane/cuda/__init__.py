"""The monokernel on an NVIDIA GPU: layouts, packing, run-time compilation, and an executor.

Importing this package imports no package of CUDA; ``CudaDevice`` does.
"""

from monolane.cuda._answer_bits import AnswerBits
from monolane.cuda._answer_bits import check as check_answer
from monolane.cuda._answer_bits import record as record_answer
from monolane.cuda._compile import compiler_version
from monolane.cuda._device import Device, GpuInfo
from monolane.cuda._driver import CudaDevice
from monolane.cuda._executor import CudaExecutor
from monolane.cuda._probe import Lack, Machine, examine
from monolane.cuda._requirements import check_fit

__all__ = [
    "AnswerBits",
    "CudaDevice",
    "CudaExecutor",
    "Device",
    "GpuInfo",
    "Lack",
    "Machine",
    "check_answer",
    "check_fit",
    "compiler_version",
    "examine",
    "record_answer",
]
