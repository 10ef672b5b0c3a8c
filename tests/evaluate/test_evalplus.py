"""HumanEval+ and MBPP+: which block is scored, what passes, pass@k."""

import gzip
import json
from math import comb
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import DataError
from monolane.evaluate import EvalOptions, Guard, make_tasks
from monolane.evaluate._evalplus.block import target_function
from monolane.evaluate._evalplus.problems import HUMANEVAL, MBPP, find_problems
from monolane.evaluate._evalplus.task import _differing, ask, pass_at
from monolane.evaluate._task import unscored

PROBLEMS = Path(__file__).parent / "problems"
CASES = ("HumanEval/2", "HumanEval/32", "HumanEval/53", "Mbpp/2", "Mbpp/3", "Mbpp/120")


def dataset(task: str) -> str:
    return "humaneval" if task.startswith("HumanEval") else "mbpp"


@pytest.mark.parametrize("task", CASES)
def test_the_canonical_solution_passes_as_a_chat_would_give_it(
    guard: Guard, problems: dict[str, dict[str, Any]], task: str
) -> None:
    problem = problems[task]
    solution = problem["prompt"] + problem["canonical_solution"]
    answer = f"Try this:\n```python\n{solution}\n```\nExample:\n```python\nprint(1)\n```\n"
    code = target_function(answer, problem["entry_point"])
    verdict = guard.score(dataset(task), problem, code, sanitize=True)
    assert (verdict["base"], verdict["plus"]) == ("pass", "pass")


@pytest.mark.parametrize("task", CASES)
def test_a_mutant_fails(guard: Guard, problems: dict[str, dict[str, Any]], task: str) -> None:
    problem = problems[task]
    name = problem["entry_point"]
    mutant = f"""{problem["prompt"]}{problem["canonical_solution"]}
_right = {name}
def {name}(*given):
    found = _right(*given)
    return not found if isinstance(found, bool) else (found, found)
"""
    verdict = guard.score(dataset(task), problem, mutant, sanitize=False)
    assert verdict["base"] == "fail"
    assert verdict["plus"] == "fail"


def test_the_first_block_that_defines_the_function_is_taken() -> None:
    blocks = ("x = g(1)", "def g(a):\n    return a", "def g(a):\n    return 2")
    answer = "".join(f"Text\n```python\n{block}\n```\n" for block in blocks)
    assert target_function(answer, "g") == blocks[1] + "\n"
    assert target_function(answer.replace("def g", "def h"), "g") == blocks[0] + "\n"
    assert target_function("```\nprint(1)\n```", "g") == "```\nprint(1)\n```"
    assert target_function("cut:\n~~~py\ndef g(a):\n    retu", "g") == "def g(a):\n    retu"
    assert target_function("```\ndef gg(a): 1\n```", "g") == "```\ndef gg(a): 1\n```"


FENCED = '''def g(a):
    """What was asked for.

    ```python
    g(1)
    ```
    """
    return a
'''


def test_a_fence_in_a_docstring_does_not_close_its_block() -> None:
    """CommonMark, 4.5: a closing fence is indented by three spaces at most."""
    answer = f"Here.\n\n```python\n{FENCED}```\n\nThat is it.\n"
    assert target_function(answer, "g") == FENCED
    listed = "".join(f"   {line}\n" if line else "\n" for line in FENCED.splitlines())
    assert (
        target_function(f"1. The function:\n\n   ```python\n{listed}   ```\n\n2. All.", "g")
        == FENCED
    )
    assert target_function(f"~~~~py\n{FENCED}~~~\n~~~~", "g") == f"{FENCED}~~~\n"


def test_answers_that_evalplus_alone_scores_otherwise_are_named(
    guard: Guard, problems: dict[str, dict[str, Any]]
) -> None:
    """Of two blocks that define the function, EvalPlus takes the longer text that is Python."""
    problem = problems[CASES[0]]
    name = problem["entry_point"]
    right = problem["prompt"] + problem["canonical_solution"]
    wrong = f"def {name}(*given):\n    return None\n"
    answer = f"```python\n{right}\n```\nNot:\n```python\n{wrong}\n```\n"
    code = target_function(answer, name)
    verdict = guard.score(dataset(CASES[0]), problem, code, True, answer)
    assert (verdict["base"], verdict["plus"]) == ("pass", "pass")
    lines: list[dict[str, Any]] = [
        {"item": "a", "score": 1, "whole": "fail"},
        {"item": "b", "score": 0, "whole": "pass"},
        {"item": "c", "score": 1, "whole": "pass"},
        {"item": "d", "score": 0},
    ]
    (note,) = _differing(lines)
    assert note.startswith("2 answers ")
    assert note.endswith(": a (right here), b (wrong here).")


def test_pass_at_k_is_the_unbiased_estimate() -> None:
    lines: list[dict[str, Any]] = [
        {"item": item, "score": int(i < c)} for item, c in (("a", 3), ("b", 0)) for i in range(5)
    ]
    figure = pass_at(2, "score", lines)
    assert figure.value == pytest.approx(100 * (1 - comb(2, 2) / comb(5, 2)) / 2)
    assert figure is not None
    assert figure.count == 2
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low <= figure.value <= figure.high


def test_samples_that_are_all_alike_still_leave_an_interval() -> None:
    for passed, bound in ((0, (0.0, 65.76)), (1, (34.24, 100.0))):
        lines = [{"item": item, "score": passed} for item in "ab" for _ in range(5)]
        figure = pass_at(1, "score", lines)
        assert figure is not None
        assert (figure.low, figure.high) == pytest.approx(bound, abs=0.01)
        assert figure.interval == "Wilson 95 %, problems"


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path, packed = tmp_path / "he.jsonl.gz", bytearray(gzip.compress(b"{}" * 500))
    packed[10] = 0xFF  # a kind of block that there is not
    path.write_bytes(packed)
    with pytest.raises(DataError, match="he.jsonl.gz: Error -3 while decompressing"):
        find_problems(HUMANEVAL, [path])


def test_what_has_no_score_counts_nowhere() -> None:
    lines: list[dict[str, Any]] = [
        {"item": "a", "score": 1},
        {"item": "a", "score": None},
        {"item": "b", "score": None},
        {"item": "c", "score": 0},
    ]
    figure = pass_at(1, "score", lines)
    assert figure is not None
    assert (figure.value, figure.count) == (50, 2)
    assert pass_at(2, "score", lines) is None
    assert "2 of 4 answers" in unscored(lines)[0]
    assert unscored(lines[:1]) == ()


def test_data_is_told_apart_by_its_ids(tmp_path: Path) -> None:
    assert {row["task_id"] for row in find_problems(MBPP, [PROBLEMS]).rows} == set(CASES[3:])
    assert not find_problems(HUMANEVAL, [PROBLEMS]).released
    with pytest.raises(DataError, match="problems of MBPP"):
        find_problems(MBPP, [PROBLEMS / "humaneval.jsonl"])
    plain = tmp_path / "HumanEval.jsonl"  # without EvalPlus's inputs
    plain.write_text(json.dumps({"task_id": "HumanEval/0", "prompt": ""}) + "\n")
    with pytest.raises(DataError, match="HumanEval"):
        find_problems(HUMANEVAL, [plain])
    with pytest.raises(DataError, match="forbids"):
        find_problems(HUMANEVAL, [])


def test_the_report_names_what_shut_code_in(guard: Guard) -> None:
    for each in (guard, Guard(strength="weak"), Guard(maker="namespaces")):
        options = EvalOptions(tasks=("humaneval+",), data=(PROBLEMS,), guard=each)
        (task,) = make_tasks(options)
        assert f"What shut generated code in: {each.describe()}." in task.notes(())
    assert "no namespaces" in Guard(strength="weak").describe()
    assert "of our own" in Guard(maker="namespaces").describe()
    made_by = "bubblewrap" if Guard(maker="bubblewrap").refusal() == "" else "namespaces"
    assert guard.describe().startswith(made_by)


def test_a_chat_is_asked_and_a_base_model_goes_on(problems: dict[str, dict[str, Any]]) -> None:
    problem, how = problems["HumanEval/2"], EvalOptions(tasks=("humaneval+",)).decoding
    asked = ask(problem, HUMANEVAL, how, chat=True)
    assert asked.text.endswith("\n```")
    assert problem["prompt"].strip() in asked.text
    continued = ask(problem, HUMANEVAL, how, chat=False)
    assert continued.text == problem["prompt"]
    assert "\ndef " in continued.stop


def test_a_helper_that_yields_is_part_of_an_answer(guard: Guard) -> None:
    code = "def halves(n):\n    yield n / 2\n\n\ndef f(n):\n    return list(halves(n))\n"
    problem = {
        "task_id": "Test/0",
        "prompt": "",
        "entry_point": "f",
        "atol": 0,
        "canonical_solution": code,
        "base_input": [[3]],
        "plus_input": [[5]],
    }
    verdict = guard.score("humaneval", problem, f"{code}\nprint(f(1))\n", sanitize=True)
    assert (verdict["base"], verdict["plus"]) == ("pass", "pass")
    assert "print" not in verdict["code"]
