"""Log-probabilities of a given text: against the reference, and however the prompt is cut."""

from pathlib import Path

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import RequestError
from monolane.reference import log_probabilities


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("length", [1, 2, 64, 65, 90])
def test_prompt_logprobs_are_the_models(tiny_model: Path, backend: str, length: int) -> None:
    ids = [int(i) for i in np.random.default_rng(length).integers(3, 320, length)]
    params = SamplingParams(max_tokens=3, logprobs=2, prompt_logprobs=5, ignore_eos=True)
    with Engine.load(tiny_model, backend) as engine:
        answer = engine.generate(ids, params)
        logits = engine.logits(ids)
        plain = engine.generate(ids, SamplingParams(max_tokens=3, ignore_eos=True))
    assert answer.token_ids == plain.token_ids
    assert [one.token_id for one in answer.prompt_logprobs] == ids[1:]
    for row, one in zip(logits, answer.prompt_logprobs, strict=False):
        wanted = log_probabilities(row)
        # Both sum 320 float64 terms; the result is rounded to float32 in one of the two.
        assert one.logprob == pytest.approx(float(wanted[one.token_id]), abs=1e-5)
        best = np.argsort(-row, kind="stable")[:5]
        assert [token for token, _ in one.top] == best.tolist()
        for token, logprob in one.top:
            assert logprob == pytest.approx(float(wanted[token]), abs=1e-5)
        assert (one.token_id == best[0]) == (one.logprob == one.top[0][1])


def test_without_alternatives(tiny_model: Path) -> None:
    with Engine.load(tiny_model) as engine:
        answer = engine.generate([5, 6, 7], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert [one.top for one in answer.prompt_logprobs] == [(), ()]
    assert answer.logprobs == ()


def test_the_range_is_checked() -> None:
    with pytest.raises(RequestError, match="prompt_logprobs: expected an integer from 0 to 20"):
        SamplingParams(prompt_logprobs=21)
