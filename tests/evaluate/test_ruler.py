"""The long-context tasks: a solver that reads the prompt finds what is wanted; prompts fill."""

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import RequestError
from monolane.evaluate import Answer, EvalOptions, Question, Subject, evaluate, make_tasks
from monolane.evaluate._ruler.task import DoesNotFitError, fit
from monolane.evaluate._ruler.tasks import LONG_TASKS, match_all

NAMES = {
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2",
    "niah_multikey_3", "niah_multiquery", "niah_multivalue", "vt", "cwe", "fwe",
}  # fmt: skip
BY_NAME = {task.name: task for task in LONG_TASKS}


def solve(name: str, text: str) -> str:
    """Answer from the prompt alone."""
    if name == "vt":
        links = re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text)
        known = {re.findall(r"have the value (\d+)", text)[0]}
        for variable, value in links:
            if value in known:
                known.add(variable)
        return " ".join(known)
    if name == "cwe":
        counts = Counter(re.findall(r"\d+\. (\S+)", text))
        return " ".join(word for word, _ in counts.most_common(10))
    if name == "fwe":
        body = text.split("\n\n")[1]
        counts = Counter(word for word in body.split() if word != "...")
        return " ".join(word for word, _ in counts.most_common(3))
    needles = re.findall(r"One of the special magic \w+ for (\S+) is: (\S+)\.", text)
    asked = text.rpartition("\n\n")[2]
    return " ".join(v for key, v in needles if re.search(rf"(?<![\w-]){key}(?![\w-])", asked))


class Words(Subject):
    """A subject that reads, whose tokens are words; ``solves``: whether it answers at all."""

    name, chat, context = "words", True, 4096

    def __init__(self, solves: bool = True) -> None:
        self.about: dict[str, Any] = {"model": "words", "solves": solves}
        self.solves, self.asked = solves, 0

    def ask(self, question: Question, sample: int = 0) -> Answer:
        self.asked += 1
        marks = {"VAR": "vt", "numbered list": "cwe", "coded text": "fwe", "magic": "niah"}
        kind = next(kind for mark, kind in marks.items() if mark in question.text)
        found = solve(kind, question.text) if self.solves else "no"
        return Answer(found, "stop", self.count(question), 1, 0.1)

    def count(self, question: Question) -> int:
        return len(f"{question.text} {question.begun}".split())


def test_there_are_the_eleven() -> None:
    assert set(BY_NAME) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("size", [1, 20, 200, 3000])
def test_a_reader_finds_the_answer(name: str, size: int) -> None:
    for seed in range(3):
        prompt = BY_NAME[name].build(random.Random(f"{seed}"), size)
        answer = solve(name, prompt.text)
        assert match_all(answer, prompt.wanted) == 1
        assert match_all("none of it", prompt.wanted) == 0
        assert len(set(prompt.wanted)) == len(prompt.wanted)
        if "niah" in name:  # what is wanted, and nothing else that is hidden
            assert len(answer.split()) == len(prompt.wanted)


def test_the_same_seed_makes_the_same_prompt() -> None:
    for task in LONG_TASKS:
        one, same, other = (task.build(random.Random(s), 50).text for s in ("1", "1", "2"))
        assert one == same != other


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_prompt_fills_its_length(name: str) -> None:
    subject, task = Words(), BY_NAME[name]
    size = 0
    for sample in range(2):
        item, size = fit(subject, task, 2048, 0, sample, size)
        tokens = subject.count(item.question) + task.max_tokens
        assert tokens <= 2048
        assert tokens >= 0.9 * 2048


def test_what_fits_no_prompt_is_left_out_and_ends() -> None:
    with pytest.raises(DoesNotFitError, match="shortest prompt"):
        fit(Words(), BY_NAME["cwe"], 200, 0, 0)
    with pytest.raises(DoesNotFitError, match="context is 4096"):
        fit(Words(), BY_NAME["vt"], 8192, 0, 0)


def test_reader_and_deaf_are_scored_and_a_second_run_asks_nothing(tmp_path: Path) -> None:
    options = EvalOptions(tasks=("ruler",), lengths=(1024, 8192), limit=2)
    for solves, value in ((True, 100.0), (False, 0.0)):
        for asked in (22, 0):
            subject = Words(solves)
            report = evaluate(subject, make_tasks(options), tmp_path / str(solves))
            assert subject.asked == asked
        (task,) = report["tasks"]
        assert {figure["value"] for figure in task["figures"]} == {value}
        assert {figure["metric"] for figure in task["figures"]} == {f"{n} at 1024" for n in NAMES}
        assert sum("left out" in note for note in task["notes"]) == 11
    with pytest.raises(RequestError, match="same settings"):
        evaluate(Words(True), make_tasks(options), tmp_path / "False")
