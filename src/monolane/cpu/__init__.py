"""The C++ core on this machine's cores: an executor of the plan."""

from monolane.cpu._arithmetic import DTYPES
from monolane.cpu._executor import CpuExecutor
from monolane.cpu._listener import RankListener, serve_rank

__all__ = ["DTYPES", "CpuExecutor", "RankListener", "serve_rank"]
