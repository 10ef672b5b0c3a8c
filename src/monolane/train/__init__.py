"""Training: Laneformers on prepared corpora, on one process or many, and the demo model.

Needs ``pip install 'monolane[train]'``. ``monolane train`` is its command.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from monolane.errors import MissingExtraError

if TYPE_CHECKING or all(map(find_spec, ("torch", "transformers", "tomli_w"))):
    from monolane.train._board import check_boards, run_observers, standard_listeners
    from monolane.train._config import (
        RunConfig,
        kept_settings,
        load_config,
        shipped_configs,
        write_config,
    )
    from monolane.train._convert import export_run, read_weights
    from monolane.train._demo.card import Measured
    from monolane.train._demo.recipe import DemoRecipe
    from monolane.train._demo.train import train_demo
    from monolane.train._forecast import forecast
    from monolane.train._interrupt import deferred_interrupt
    from monolane.train._launch.run import launch_run
    from monolane.train._launch.supervisor import Fleet, RestartPolicy
    from monolane.train._lock import held
    from monolane.train._record import Observer, Observers, StepRecord
    from monolane.train._run import disk_errors_told, train_run
    from monolane.train._seal import find_damage, is_sealed, sum_file, write_seal
    from monolane.train._store import Progress
else:

    def __getattr__(name: str) -> object:
        if name in __all__:
            raise MissingExtraError("training (monolane.train)", "train")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DemoRecipe",
    "Fleet",
    "Measured",
    "Observer",
    "Observers",
    "Progress",
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
    "read_weights",
    "run_observers",
    "shipped_configs",
    "standard_listeners",
    "sum_file",
    "train_demo",
    "train_run",
    "write_config",
    "write_seal",
]
