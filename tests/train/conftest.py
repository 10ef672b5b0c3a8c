"""What the tests of ``monolane.train`` share."""

import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

if all(map(find_spec, ("torch", "transformers", "tomli_w"))):
    import numpy as np
    import torch

    from monolane.data import Encoded, train_vocabulary, write_corpus, write_vocabulary
    from monolane.train import DemoRecipe, RunConfig, load_config

    # Tests of several packages may run at once; one thread each is also the reproducible choice.
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

    @pytest.fixture(scope="session")
    def corpus(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
        """A prepared corpus of two sources: stretches that count up and down, 1 to 200 tokens."""
        folder = tmp_path_factory.mktemp("corpus")
        texts = (path.read_text(encoding="utf-8") for path in sorted(library.rglob("*.py")))
        write_vocabulary(train_vocabulary(texts, 512), folder / "vocabulary", 64)
        generator = np.random.default_rng(0)

        def documents(count: int, step: int) -> list[Encoded]:
            made = []
            for length in generator.integers(1, 200, count):
                start = int(generator.integers(0, 480))
                inner = 10 + (start + step * np.arange(length)) % 480
                made.append(Encoded(np.array([1, *inner, 2]), 4 * int(length)))
            return made

        sources = {"up": (documents(60, 1), documents(6, 1)), "down": (documents(40, -1), [])}
        write_corpus(folder / "prepared", folder / "vocabulary", sources)
        return folder / "prepared"

    @pytest.fixture
    def tiny(corpus: Path) -> RunConfig:
        """The shipped ``tiny`` config on the corpus of two sources, without a board."""
        weights = ["data.weights.up=2", "data.weights.down=1"]
        return load_config("tiny", [f"data.corpus={corpus}", "log.tensorboard=false", *weights])


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
