"""The C++ core on this machine's cores: an executor of the plan."""

from monolane.cpu._arithmetic import DTYPES
from monolane.cpu._executor import CpuExecutor, find_isa
from monolane.cpu._rank_server import RankListener, serve_rank

__all__ = ["DTYPES", "CpuExecutor", "RankListener", "find_isa", "serve_rank"]
