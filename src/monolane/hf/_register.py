"""Makes transformers' Auto classes know the Laneformer, under its released and its earlier name.

Importing this module is what does it. It is not part of an exported folder: there, ``auto_map`` in
config.json does this work.
"""

from typing import Any

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from monolane.hf.configuration_laneformer import LaneformerConfig
from monolane.hf.modeling_laneformer import LaneformerForCausalLM, LaneformerModel


class EarlierLaneformerConfig(LaneformerConfig):
    """A stand-in that the earlier model type resolves to; what it reads is a LaneformerConfig."""

    model_type = "laneformer_tp"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return a LaneformerConfig, so that nothing saved later has the earlier name."""
        fields = {**config_dict, "model_type": LaneformerConfig.model_type}
        return LaneformerConfig.from_dict(fields, **kwargs)


AutoConfig.register("laneformer", LaneformerConfig, exist_ok=True)
AutoConfig.register("laneformer_tp", EarlierLaneformerConfig, exist_ok=True)
AutoModel.register(LaneformerConfig, LaneformerModel, exist_ok=True)
AutoModelForCausalLM.register(LaneformerConfig, LaneformerForCausalLM, exist_ok=True)
