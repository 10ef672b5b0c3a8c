"""The C++ core on this machine's cores: a thin Python face."""

from monolane.cpu._executor import AdvanceTuple, CpuExecutor
from monolane.cpu._formats import DTYPES, Activation, Arithmetic, Format

__all__ = ["DTYPES", "Activation", "AdvanceTuple", "Arithmetic", "CpuExecutor", "Format"]
