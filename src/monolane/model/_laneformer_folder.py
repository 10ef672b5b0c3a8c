"""The folder of a Laneformer, held against its own config before anything heavy is loaded.

Transformers fills a weight that no tensor answers to with random numbers, and says so in a line of
its log. So whatever trains, exports or begins with a Laneformer comes here first: no torch, no look
at the numbers.
"""

from pathlib import Path

from monolane.errors import ConfigError
from monolane.model._checkpoint import Checkpoint
from monolane.model._config import ModelConfig
from monolane.model._gguf_model import is_gguf, read_config
from monolane.model._weights import Weights

RETROFIT = "'monolane retrofit' makes a Laneformer of a dense model"


def open_laneformer(
    folder: Path, purpose: str, otherwise: str = RETROFIT
) -> tuple[ModelConfig, Checkpoint]:
    """Return config and weights of a Laneformer's folder, whose tensors are those of its config.

    ``purpose`` is a verb for messages ("tune"), ``otherwise`` what to do with another model.
    ConfigError: a .gguf file, another family, or codes; CheckpointError: a tensor is missing,
    surplus, of another shape or of a dtype that is no weight's. ModelNotFoundError: no folder.
    """
    if is_gguf(folder):
        raise ConfigError(
            f"{folder}: expected the folder of a Laneformer to {purpose}, got a .gguf file; "
            f"{RETROFIT}"
        )
    config = read_config(folder)
    if config.family != "laneformer":
        raise ConfigError(
            f"{folder}: expected a Laneformer to {purpose}, got a model of the family "
            f"{config.family!r}; {otherwise}"
        )
    if config.quantization is not None:
        raise ConfigError(
            f"{folder}: expected float weights to {purpose}, got {config.quantization.bits}-bit "
            f"codes; {purpose} the folder that was quantised"
        )
    checkpoint = Checkpoint.open(folder)
    Weights.load(config, checkpoint)
    return config, checkpoint
