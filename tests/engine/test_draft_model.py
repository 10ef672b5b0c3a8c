"""A draft model as a caller sees it: the same answers; which model it may be; what is counted."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monolane import Engine, SamplingParams
from monolane.errors import ConfigError, RequestError
from monolane.sources import find_model

PROMPT = "class Reader:\n    def __init__(self, path):\n"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A model that drafts for itself in 8 bits."""
    with Engine.load("demo", "cpu", context=300, prefix_cache="off", draft="int8") as loaded:
        yield loaded


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7, "seed": 4, "min_p": 0.05},
        {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "logit_bias": {5: 3.0}},
        {"temperature": 0.5, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
        {"stop": "return"},
    ],
    ids=["greedy", "sampled", "limited", "penalised", "stopped"],
)
@pytest.mark.usefixtures("six_drafts")
def test_the_answer_is_the_same(engine: Engine, params: dict[str, Any]) -> None:
    given: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "logprobs": 2} | params
    plain = engine.generate(PROMPT, SamplingParams(speculation="off", **given))
    assert plain.timings.drafters == {}
    for speculation in ("draft", "auto"):
        got = engine.generate(PROMPT, SamplingParams(speculation=speculation, **given))  # type: ignore[arg-type]
        assert (got.text, got.token_ids, got.logprobs, got.finish_reason) == (
            plain.text,
            plain.token_ids,
            plain.logprobs,
            plain.finish_reason,
        )
        timings = got.timings
        # The demo model in 8 bits mostly says what it says in 16, drawn with the same noise.
        of = timings.drafters["draft"]
        assert of["draft_n"] / 2 < of["draft_n_accepted"] <= of["draft_n"]
        assert sum(each["draft_n"] for each in timings.drafters.values()) == timings.draft_n


def test_a_model_with_the_same_tokenizer_from_a_folder(engine: Engine) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    with Engine.load("demo", "cpu", context=100, draft="demo") as other:
        assert other.backend.executor.drafter == "draft"
        assert other.generate("def f(", params).text == engine.generate("def f(", params).text


def test_other_tokens_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(find_model("demo"), folder)
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    vocab = data["model"]["vocab"]
    (a, i), (b, j) = list(vocab.items())[-2:]
    vocab[a], vocab[b] = j, i
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="expected a model with the same tokenizer as .* got"):
        Engine.load("demo", "cpu", draft=folder)
    path.unlink()
    with pytest.raises(ConfigError, match="other has none, and the vocabularies have"):
        Engine.load("demo", "cpu", draft=folder)


def test_where_no_model_drafts() -> None:
    with pytest.raises(RequestError, match="draft: expected backend cpu, .* got 'reference'"):
        Engine.load("demo", "reference", draft="int8")
    with pytest.raises(RequestError, match="draft: expected one rank and one device"):
        Engine.load("demo", "cpu", ranks=2, draft="int8")
    asked = pytest.raises(RequestError, match="'draft' needs a draft model")
    with Engine.load("demo", "cpu", context=64) as plain, asked:
        plain.generate("def f(", SamplingParams(speculation="draft"))
