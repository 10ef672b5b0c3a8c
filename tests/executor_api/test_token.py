"""What is reported of a token: as the oracle has it, ties included."""

import numpy as np
import pytest

from monolane.executor_api import describe_logprobs
from monolane.reference import log_probabilities


@pytest.mark.parametrize("count", [0, 1, 5, 20, 300])
def test_logprobs_are_the_oracles(count: int) -> None:
    rng = np.random.default_rng(1)
    logits = rng.integers(-9, 9, 300).astype(np.float32)  # many ties
    expected = log_probabilities(logits)
    best = np.argsort(-expected, kind="stable")[:count]
    found = describe_logprobs(logits, 7, count)
    assert [token for token, _ in found.top] == best.tolist()
    values = [found.logprob, *(value for _, value in found.top)]
    # Summed in float64 here, in float32 there: units in the last place of numbers up to 32.
    assert np.abs(np.array(values) - expected[[7, *best]]).max() < 1e-5


def test_results_are_float32_values() -> None:
    found = describe_logprobs(np.array([0.1, 0.2], np.float32), 0, 2)
    for value in (found.logprob, *(x for _, x in found.top)):
        assert value == float(np.float32(value))
