"""Training: Laneformers on prepared corpora, on one process or many, and the demo model.

Needs ``pip install 'monolane[train]'``, but for configs and forecasts of them. ``monolane train``
is its command.
"""

from typing import TYPE_CHECKING

from monolane._lazy import torch_names
from monolane.train._config import (
    RunConfig,
    kept_settings,
    load_config,
    shipped_configs,
    write_config,
)
from monolane.train._demo.recipe import DemoRecipe
from monolane.train._forecast import forecast
from monolane.train._run_plot import Curves, plot_runs, read_curves

if TYPE_CHECKING:
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
    from monolane.train._rehearsal import Rehearsal, rehearse
    from monolane.train._run import disk_errors_told, train_run
else:
    _MODULES = {
        "_checkpoints": ("Progress",),
        "_checksums": ("find_damage", "is_sealed", "sum_file", "write_seal"),
        "_convert": ("export_run", "read_weights"),
        "_demo.card": ("Measured",),
        "_demo.train": ("train_demo",),
        "_interrupt": ("deferred_interrupt",),
        "_launch.run": ("launch_run",),
        "_launch.supervisor": ("Fleet", "RestartPolicy"),
        "_lock": ("held",),
        "_loggers": ("check_boards", "run_observers", "standard_listeners"),
        "_record": ("Observer", "Observers", "StepRecord"),
        "_rehearsal": ("Rehearsal", "rehearse"),
        "_run": ("disk_errors_told", "train_run"),
    }
    __getattr__ = torch_names(__name__, _MODULES, "training (monolane.train)", "train")

__all__ = [
    "Curves",
    "DemoRecipe",
    "Fleet",
    "Measured",
    "Observer",
    "Observers",
    "Progress",
    "Rehearsal",
    "RestartPolicy",
    "RunConfig",
    "StepRecord",
    "check_boards",
    "deferred_interrupt",
    "disk_errors_told",
    "export_run",
    "find_damage",
    "forecast",
    "held",
    "is_sealed",
    "kept_settings",
    "launch_run",
    "load_config",
    "plot_runs",
    "read_curves",
    "read_weights",
    "rehearse",
    "run_observers",
    "shipped_configs",
    "standard_listeners",
    "sum_file",
    "train_demo",
    "train_run",
    "write_config",
    "write_seal",
]
