"""All of the package that needs torch: imported when the first of it is asked for.

A config that does not exist is told, and a run forecast, without torch's seconds or torch itself.
"""

from monolane.train._checkpoints import Progress
from monolane.train._checksums import find_damage, is_sealed, sum_file, write_seal
from monolane.train._convert import export_run, read_weights
from monolane.train._demo.card import Measured
from monolane.train._demo.train import train_demo
from monolane.train._interrupt import deferred_interrupt
from monolane.train._launch.run import launch_run
from monolane.train._launch.supervisor import Fleet, RestartPolicy
from monolane.train._lock import held
from monolane.train._loggers import check_boards, run_observers, standard_listeners
from monolane.train._record import Observer, Observers, StepRecord
from monolane.train._run import disk_errors_told, train_run

__all__ = [
    "Fleet",
    "Measured",
    "Observer",
    "Observers",
    "Progress",
    "RestartPolicy",
    "StepRecord",
    "check_boards",
    "deferred_interrupt",
    "disk_errors_told",
    "export_run",
    "find_damage",
    "held",
    "is_sealed",
    "launch_run",
    "read_weights",
    "run_observers",
    "standard_listeners",
    "sum_file",
    "train_demo",
    "train_run",
    "write_seal",
]
