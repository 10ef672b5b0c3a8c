"""Training: the demo model, made from the standard library's own source on an ordinary CPU.

Needs ``pip install 'monolane[train]'``. ``monolane train --demo DIR`` runs it.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from monolane.errors import MissingExtraError

if TYPE_CHECKING or (find_spec("torch") and find_spec("transformers")):
    from monolane.train._card import Measured
    from monolane.train._demo import train_demo
    from monolane.train._recipe import DemoRecipe
else:

    def __getattr__(name: str) -> object:
        if name in __all__:
            raise MissingExtraError(f"monolane.train.{name}", "train")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["DemoRecipe", "Measured", "train_demo"]
