"""What the tests of ``monolane.hf`` share."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
if find_spec("torch") and find_spec("transformers"):
    import torch

    # Tests of several packages may run at once; one thread each is also the reproducible choice.
    torch.set_num_threads(1)

    @pytest.fixture(autouse=True)
    def _seed() -> None:
        torch.manual_seed(0)


@pytest.fixture
def golden_folder() -> Path:
    """A small model in the earlier spelling, with windows, and with both kinds of lane traffic."""
    return GOLDEN / "released_shape"


@pytest.fixture
def tiny() -> Callable[..., Any]:
    """A config of a model that takes milliseconds, with every mechanism in it."""
    from monolane.hf import LaneformerConfig

    def make(**changes: Any) -> Any:
        fields: dict[str, Any] = {
            "hidden_size": 16,
            "intermediate_size": 12,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 22,
            "max_position_embeddings": 64,
            "num_lanes": 2,
            "broadcast_delay": 1,
            "sliding_window": 5,
            "swa_layers": [0, 2],
            "initializer_range": 0.3,  # large enough for softmax and silu to bend
        }
        return LaneformerConfig(**fields | changes)

    return make
