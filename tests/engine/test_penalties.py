"""Penalties through the engine: prefixes, interruptions and constraints do not change a token."""

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.reference import choose, count_seen

PARAMS = SamplingParams(
    max_tokens=40,
    temperature=0.7,
    top_k=40,
    top_p=0.95,
    min_p=0.01,
    seed=9,
    ignore_eos=True,
    frequency_penalty=0.6,
    presence_penalty=0.3,
    repetition_penalty=1.2,
    logit_bias={10: 1.5},
)
TEXT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n"


@pytest.fixture(scope="module", params=["reference", "cpu"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The demo model: its own text repeats itself."""
    return Engine.load("demo", request.param, dtype="float32", context=256, max_sequences=2)


def test_tokens_are_the_oracles(engine: Engine) -> None:
    prompt = engine.prompt_ids(TEXT)
    answer = engine.generate(prompt, PARAMS)
    ids = [*prompt, *answer.token_ids]
    logits = engine.logits(ids)
    for i in range(len(prompt), len(ids)):
        seen = count_seen(ids[:i], len(prompt))
        assert ids[i] == choose(logits[i - 1], PARAMS.draw, i, seen=seen)


def test_interruptions_and_known_prefixes_change_nothing(engine: Engine) -> None:
    alone = engine.generate(TEXT, PARAMS).token_ids
    drawn: list[int] = []
    with engine.stream(TEXT, PARAMS) as stream:
        for piece in stream:
            drawn += piece.token_ids
            if len(drawn) % 3 == 1:  # a request that comes ends the epoch
                engine.generate("x", SamplingParams(max_tokens=1))
    assert tuple(drawn) == alone
    if engine.backend.executor.keeps_prefixes:
        again = engine.generate(TEXT, PARAMS)
        assert again.timings.cache_n > 0
        assert again.token_ids == alone


def test_they_break_a_loop_and_leave_logprobs_alone(engine: Engine) -> None:
    greedy = SamplingParams(max_tokens=60, ignore_eos=True, logprobs=0)
    loop = engine.generate("x = [1, 1, 1, 1, 1, 1, 1, 1,", greedy)
    strict = SamplingParams(max_tokens=60, ignore_eos=True, logprobs=0, frequency_penalty=2)
    varied = engine.generate("x = [1, 1, 1, 1, 1, 1, 1, 1,", strict)
    assert len(set(varied.token_ids)) > 2 * len(set(loop.token_ids))
    ids = [*engine.prompt_ids("x = [1, 1, 1, 1, 1, 1, 1, 1,"), *varied.token_ids]
    rows = engine.logits(ids)[-61:-1].astype(np.float64)
    for row, one in zip(rows, varied.logprobs, strict=True):
        exact = row[one.token_id] - row.max() - np.log(np.exp(row - row.max()).sum())
        assert abs(one.logprob - exact) < 1e-4
