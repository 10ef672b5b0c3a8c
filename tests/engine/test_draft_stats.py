"""Speculation as a caller sees it: the same answer, sooner; and what is counted of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from monolane import Engine, SamplingParams
from monolane.engine import Generation
from monolane.errors import RequestError

CODE = """\
class Reader:
    def __init__(self, path):
        self.path = path

    def read(self):
        with open(self.path) as file:
            return file.read()

    def lines(self):
        with open(self.path) as file:
            return file.readlines()


"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo", context=700, prefix_cache="off") as loaded:
        yield loaded


def answer(engine: Engine, speculation: str, **more: Any) -> Generation:
    given: dict[str, Any] = {"max_tokens": 150, "ignore_eos": True, "logprobs": 2} | more
    return engine.generate(CODE * 2, SamplingParams(speculation=speculation, **given))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7, "seed": 4},
        {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "logit_bias": {5: 3.0}},
        {"stop": "def lines"},
    ],
    ids=["greedy", "sampled", "limited", "stopped"],
)
def test_the_answer_is_the_same(engine: Engine, params: dict[str, Any]) -> None:
    plain = answer(engine, "off", **params)
    assert (plain.timings.draft_n, plain.timings.draft_n_accepted) == (0, 0)
    for speculation in ("suffix", "auto"):
        got = answer(engine, speculation, **params)
        assert (got.text, got.token_ids, got.logprobs) == (
            plain.text,
            plain.token_ids,
            plain.logprobs,
        )
        assert got.finish_reason == plain.finish_reason
        assert 0 <= got.timings.draft_n_accepted <= got.timings.draft_n


def test_a_stream_counts_its_drafts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts that are right, in each pass: scripted from a plain answer, whatever they cost."""
    prompt_ids = engine.prompt_ids(CODE)
    params = SamplingParams(max_tokens=40, ignore_eos=True, speculation="suffix")
    plain = engine.generate(prompt_ids, params)
    executor = engine.backend.executor
    engine.backend.truncate(0, 0)  # between epochs
    executor.script(0, drafts=[*prompt_ids, *plain.token_ids])
    monkeypatch.setattr(SamplingParams, "drafts", property(lambda params: 7))
    stream = engine.stream(prompt_ids, params)
    assert stream.result().token_ids == plain.token_ids
    engine.backend.truncate(0, 0)
    executor.script(0)
    # The prompt's pass draws one; then four passes of 8 and one of the 7 that are left.
    drafts, timings = stream.drafts, stream.timings
    assert (drafts.passes, drafts.tokens, drafts.accepted) == (5, 34, 34)
    assert drafts.accepted == sum(drafts.accepted_at)
    assert (timings.draft_n, timings.draft_n_accepted) == (34, 34)


def test_what_is_refused() -> None:
    with pytest.raises(RequestError, match="speculation: expected one of auto, off, suffix"):
        SamplingParams(speculation="fast")  # type: ignore[arg-type]


def test_reference_ignores_the_hint() -> None:
    with Engine.load("demo", "reference", context=64) as engine:
        params = {"max_tokens": 5, "ignore_eos": True}
        off, on = (
            engine.generate("def f(", SamplingParams(speculation=s, **params))  # type: ignore[arg-type]
            for s in ("off", "auto")
        )
    assert off.token_ids == on.token_ids
    assert on.timings.draft_n == 0
