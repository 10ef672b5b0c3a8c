from types import SimpleNamespace

import pytest
import tokenizers
import torch

from monolane.data import train_vocabulary
from monolane.train._demo.card import write_sample
from monolane.train._demo.material import EOS


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    return train_vocabulary([" ".join(f"name_{chr(97 + n % 26)}{n}" for n in range(2000))], 280)


class _Fixed(torch.nn.Module):
    """The same logits at every position."""

    def __init__(self, logits: dict[int, float]) -> None:
        super().__init__()
        self.logits_V = torch.full((280,), -100.0)
        for token, value in logits.items():
            self.logits_V[token] = value

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits_V.expand(*input_ids.shape, -1))


def test_greedy_takes_the_likeliest(tokenizer: tokenizers.Tokenizer) -> None:
    a, b = tokenizer.token_to_id("a"), tokenizer.token_to_id("b")
    sample = write_sample(_Fixed({a: 1.0, b: 0.9}), tokenizer, "x", tokens=5)
    assert (sample.prompt, sample.text) == ("x", "aaaaa")


def test_the_end_of_a_file_ends_a_sample(tokenizer: tokenizers.Tokenizer) -> None:
    assert write_sample(_Fixed({EOS: 1.0}), tokenizer, "x", tokens=5).text == ""


def test_a_seed_repeats_and_the_temperature_counts(tokenizer: tokenizers.Tokenizer) -> None:
    a, b = tokenizer.token_to_id("a"), tokenizer.token_to_id("b")
    model = _Fixed({a: 1.0, b: 0.0})

    def share(temperature: float, seed: int) -> float:
        sample = write_sample(model, tokenizer, "x", tokens=400, temperature=temperature, seed=seed)
        return sample.text.count("a") / 400

    # Probability of "a": sigmoid(1 / temperature); standard deviation at most 0.025.
    assert share(1.0, 0) == pytest.approx(0.731, abs=0.1)
    assert share(0.25, 0) == pytest.approx(0.982, abs=0.04)
    assert share(1.0, 1) == share(1.0, 1)
