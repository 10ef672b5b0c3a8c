"""What the tests of ``monolane.train`` share, and the one reason for which they are skipped."""

import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") and find_spec("transformers"):
    import torch

    from monolane.train import DemoRecipe

    # Tests of several rooms may run at once; one thread each is also the reproducible choice.
    torch.set_num_threads(1)

    @pytest.fixture(scope="session")
    def recipe() -> DemoRecipe:
        """A model of 60 thousand parameters that learns something in two dozen steps."""
        return DemoRecipe(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            num_lanes=4,
            sliding_window=16,
            windowed_layers=2,
            vocab_size=512,
            context=64,
            short_context=32,
            held_out_share=0.2,
            tokens_per_step=256,
            tokens_per_piece=128,
            precision="float32",
        )

else:

    class Absent(pytest.Module):
        """A module that says why it cannot even be imported here."""

        def collect(self) -> Any:
            pytest.skip("needs torch and transformers: pip install 'monolane[train]'")

    def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module:
        module: pytest.Module = Absent.from_parent(parent, path=module_path)
        return module


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small library: two packages of the running Python, 15 to 20 files."""
    root = tmp_path_factory.mktemp("library")
    for name in ("json", "email"):
        shutil.copytree(
            Path(sysconfig.get_path("stdlib")) / name,
            root / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return root
