"""What the tests of ``monolane.hf`` share, and the one reason for which they are skipped."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
# These need neither package: exporting works in a base install.
TORCH_FREE = ("test_export.py", "test_room.py")

if find_spec("torch") and find_spec("transformers"):
    import torch

    # Tests of several packages may run at once; one thread each is also the reproducible choice.
    torch.set_num_threads(1)

    @pytest.fixture(autouse=True)
    def _seed() -> None:
        torch.manual_seed(0)

else:

    class Absent(pytest.Module):
        """A module that says why it cannot even be imported here."""

        def collect(self) -> Any:
            pytest.skip("needs torch and transformers: pip install 'monolane[hf]'")

    def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
        if module_path.name in TORCH_FREE:
            return None
        module: pytest.Module = Absent.from_parent(parent, path=module_path)
        return module


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
