"""Scores are checked against a model whose probabilities are known, and against one long pass."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from monolane.train import DemoRecipe
from monolane.train._demo import new_model
from monolane.train._evaluate import Score, score_documents


class _Uniform(torch.nn.Module):
    """Gives each of 8 tokens the same probability, and remembers the widths it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        self.widths.append(input_ids.shape[1])
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 8))


@pytest.mark.parametrize("length", [2, 9, 10, 11, 15, 16, 100, 1001])
def test_every_token_but_the_first_is_scored_once(length: int) -> None:
    document = np.zeros(length, dtype=np.uint16)
    model = _Uniform()
    (score,) = score_documents(model, [document], [50], context=10)
    assert score.tokens == length - 1
    assert score.bits == pytest.approx(3.0 * (length - 1))  # log2(8) each
    assert score.bits_per_byte == pytest.approx(3.0 * (length - 1) / 50)
    assert max(model.widths) <= 10


def test_a_document_within_one_window_is_scored_exactly(recipe: DemoRecipe) -> None:
    model = new_model(recipe).eval()
    ids = np.arange(1, 60, dtype=np.uint16)
    (score,) = score_documents(model, [ids], [1], recipe.context)
    tensor = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.inference_mode():
        loss = model(input_ids=tensor, labels=tensor).loss
    assert score.bits == pytest.approx(float(loss) * 58 / math.log(2), rel=1e-5)


def test_windows_padded_together_score_as_alone(recipe: DemoRecipe) -> None:
    model = new_model(recipe).eval()
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 500, 150).astype(np.uint16)  # windows 0..63, 32..95, 64..127, 96..149
    (score,) = score_documents(model, [ids], [1], recipe.context)
    expected = 0.0
    for start, first in ((0, 1), (32, 64), (64, 96), (96, 128)):
        window = torch.from_numpy(ids[start : start + 64].astype(np.int64))
        with torch.inference_mode():
            log_TV = model(input_ids=window[None]).logits[0].log_softmax(-1)
        for place in range(first - start, len(window)):
            expected -= float(log_TV[place - 1, window[place]])
    assert score.bits == pytest.approx(expected / math.log(2), rel=1e-5)


def test_scores_add_up() -> None:
    total = Score(8.0, 4, 2) + Score(2.0, 1, 3)
    assert total == Score(10.0, 5, 5)
    assert total.bits_per_byte == 2.0
