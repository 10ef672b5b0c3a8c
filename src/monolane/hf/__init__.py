"""The Laneformer for Hugging Face transformers, and export to a folder in Hub layout.

Importing this package makes ``AutoConfig`` and ``AutoModelForCausalLM`` know the model. The classes
need ``pip install 'monolane[hf]'``; without it the package still exports folders, and asking it
for a class raises MissingExtraError.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from monolane.errors import MissingExtraError
from monolane.hf._export import export_hub_layout
from monolane.hf._load import check_whole, load_whole

if TYPE_CHECKING or (find_spec("torch") and find_spec("transformers")):
    from monolane.hf import _register  # noqa: F401  tells the Auto classes
    from monolane.hf.configuration_laneformer import LaneformerConfig
    from monolane.hf.modeling_laneformer import (
        LaneAttention,
        LaneformerForCausalLM,
        LaneformerModel,
        LaneLinear,
        LaneMLP,
        LaneReduce,
        LaneRMSNorm,
    )
else:

    def __getattr__(name: str) -> object:
        if name in __all__:
            raise MissingExtraError(f"monolane.hf.{name}", "hf")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "LaneAttention",
    "LaneLinear",
    "LaneMLP",
    "LaneRMSNorm",
    "LaneReduce",
    "LaneformerConfig",
    "LaneformerForCausalLM",
    "LaneformerModel",
    "check_whole",
    "export_hub_layout",
    "load_whole",
]
