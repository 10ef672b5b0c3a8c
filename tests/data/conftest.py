"""What the tests of ``monolane.data`` share: corpora of made-up ids, and how to say a document."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from monolane.data import Corpus, Encoded, write_corpus

BOS, EOS = 1, 2
MakeCorpus = Callable[..., Corpus]


def encoded(ids: Sequence[int]) -> Encoded:
    return Encoded(np.array([BOS, *ids, EOS]), len(ids))


@pytest.fixture
def make_corpus(tmp_path: Path, tiny_model: Path) -> MakeCorpus:
    """Write a corpus: source -> lengths of its documents, bos and eos not counted."""
    made = 0

    def make(**lengths: Sequence[int]) -> Corpus:
        nonlocal made
        made += 1
        rng = np.random.default_rng(made)
        sources = {
            name: (
                [encoded(rng.integers(3, 320, count)) for count in counts],
                [encoded(rng.integers(3, 320, 5)) for _ in range(2)],
            )
            for name, counts in lengths.items()
        }
        return write_corpus(tmp_path / f"corpus-{made}", tiny_model, sources)

    return make
