"""Training: Laneformers on prepared corpora, on one process or many, and the demo model.

Needs ``pip install 'monolane[train]'``, but for configs and forecasts of them. ``monolane train``
is its command.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from monolane.errors import MissingExtraError
from monolane.train._config import (
    RunConfig,
    kept_settings,
    load_config,
    shipped_configs,
    write_config,
)
from monolane.train._demo.recipe import DemoRecipe
from monolane.train._forecast import forecast

if TYPE_CHECKING:
    from monolane.train._with_torch import (
        Fleet,
        Measured,
        Observer,
        Observers,
        Progress,
        RestartPolicy,
        StepRecord,
        check_boards,
        deferred_interrupt,
        disk_errors_told,
        export_run,
        find_damage,
        held,
        is_sealed,
        launch_run,
        read_weights,
        run_observers,
        standard_listeners,
        sum_file,
        train_demo,
        train_run,
        write_seal,
    )
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if not all(map(find_spec, ("torch", "transformers", "tomli_w"))):
            raise MissingExtraError("training (monolane.train)", "train")
        return getattr(import_module("monolane.train._with_torch"), name)


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
