"""Loops are noticed soon; tables, code and laughter are none."""

from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest

from monolane.sources import find_model
from monolane.text import Loop, Repetition, Tokenizer, find_loop

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.open(find_model("demo"))


def first_loop(ids: list[int]) -> tuple[int, Loop] | None:
    """Return after how many tokens a loop is noticed, and which."""
    repetition = Repetition()
    for count, token in enumerate(ids, 1):
        if loop := repetition.add([token]):
            return count, loop
    return None


@pytest.mark.parametrize("period", [1, 2, 3, 17, 64, 65, 200, 256])
def test_a_loop_is_noticed_once_it_has_said_enough(period: int) -> None:
    rng = np.random.default_rng(period)
    before = rng.integers(1000, size=100).tolist()
    unit = (1000 + np.arange(period)).tolist()
    found = first_loop([*before, *islice(cycle(unit), 2000)])
    assert found is not None
    count, loop = found
    enough = 100 + max(256, 4 * period)
    assert enough <= count < enough + 32
    assert loop.period == period
    assert loop.times == (count - 100) // period


def test_a_period_may_repeat_within_itself() -> None:
    unit = [1, 2, 1, 2, 1, 2, 1, 3] * 2 + [4]
    found = first_loop(list(islice(cycle(unit), 600)))
    assert found is not None
    assert found[1].period == len(unit)


def test_what_ends_in_another_way_is_no_loop() -> None:
    assert find_loop([*[7] * 400, 8]) is None
    assert find_loop([7] * 255) is None
    assert find_loop([7] * 256) == Loop(1, 256)
    assert find_loop([]) is None


def test_pieces_of_several_tokens_are_counted_alike() -> None:
    repetition = Repetition()
    found = [repetition.add([5, 6, 7, 8] * 10) for _ in range(7)]
    assert [x is not None for x in found] == [False] * 6 + [True]


# As SmolLM2-135M answered "What is the capital of France?" with int8 activations, and the demo
# model "x = 1" greedily.
LOOPS = ("L'Étoile, la Marseur" + ", la France" * 200, "# 1." + "0" * 400)


@pytest.mark.parametrize("text", LOOPS)
def test_real_loops_are_noticed(text: str, tokenizer: Tokenizer) -> None:
    assert first_loop(tokenizer.encode(text)) is not None


LEGITIMATE = {
    "laughter": "ha " * 100,
    "a rule": "=" * 200 + "\n" + "-" * 200,
    "an empty Sudoku": "grid = [\n" + "    [0, 0, 0, 0, 0, 0, 0, 0, 0],\n" * 9 + "]\n",
    "the head of a table": "|" + " name |" * 20 + "\n|" + " --- |" * 20 + "\n",
    "a table": "".join(f"| {i} | {i * i} | yes |\n" for i in range(200)),
    "a list": "\n".join(f"- item {i}: to be done" for i in range(300)),
    "counting": ", ".join(map(str, range(400))),
    "a song": "".join(
        f"{n} bottles of beer on the wall, take one down.\n" for n in range(99, 0, -1)
    ),
    "code": "".join(f"    elif kind == {i}:\n        return {i}\n" for i in range(150)),
}


@pytest.mark.parametrize("what", LEGITIMATE)
def test_what_people_ask_for_is_no_loop(what: str, tokenizer: Tokenizer) -> None:
    assert first_loop(tokenizer.encode(LEGITIMATE[what])) is None


def test_no_page_and_no_program_of_the_project_is_one(tokenizer: Tokenizer) -> None:
    folders = (("docs", "*.md"), ("src/monolane/cli", "*.py"), ("csrc", "*.cpp"))
    files = [path for folder, kind in folders for path in (ROOT / folder).rglob(kind)]
    assert len(files) > 80
    for path in files:
        found = first_loop(tokenizer.encode(path.read_text(encoding="utf-8")))
        assert found is None, (path, found)
