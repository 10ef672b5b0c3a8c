"""``SamplingParams.thinking``: the part before the text, told apart and counted."""

from collections.abc import Iterator

import pytest

from monolane import Engine, SamplingParams
from monolane.engine import Guide
from monolane.text import Thinking

ASKED = Thinking("<think>", "</think>")


class Says:
    """A constraint that has a model say these tokens, and nothing else."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = tuple(ids)

    def step(self, _: int | None) -> Guide:
        return Guide(None, self._ids)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo") as engine:
        yield engine


@pytest.mark.parametrize("singly", [False, True])  # with log-probabilities tokens come one by one
@pytest.mark.parametrize(
    ("thinking", "text", "thought", "answer"),
    [
        (None, "<think>a</think>b", "", "<think>a</think>b"),
        (ASKED, "<think>\nfor x\n\nin\n</think>\n\nreturn x", "for x\n\nin", "return x"),
        (ASKED, "return x", "", "return x"),
        (Thinking("<think>", "</think>", opened=True), "for x</think>return", "for x", "return"),
    ],
)
def test_thinking_and_text(
    engine: Engine,
    thinking: Thinking | None,
    text: str,
    thought: str,
    answer: str,
    singly: bool,
) -> None:
    params = SamplingParams(thinking=thinking, stop=["\n\n"], logprobs=0 if singly else None)
    ids = engine.tokenizer.encode(text, add_special_tokens=False)
    stream = engine.stream("x = ", params, Says(ids))
    pieces = list(stream)
    assert "".join(piece.thinking for piece in pieces) == thought
    assert "".join(piece.text for piece in pieces) == answer
    # A token may hold the end of the mark and what follows it.
    before = engine.tokenizer.encode(text.partition("</think>")[0], add_special_tokens=False)
    mark = engine.tokenizer.encode("</think>", add_special_tokens=False)
    least, most = (len(before), len(before) + len(mark)) if thought else (-1, 0)
    assert least < stream.thinking_tokens <= most
    whole = engine.generate("x = ", params, Says(ids))
    assert (whole.thinking, whole.text) == (thought, answer)
