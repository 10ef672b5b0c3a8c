"""The C++ core on this machine's cores: an executor of the plan."""

from monolane.cpu._arithmetic import DTYPES
from monolane.cpu._executor import CpuExecutor

__all__ = ["DTYPES", "CpuExecutor"]
