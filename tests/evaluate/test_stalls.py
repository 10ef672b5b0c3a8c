"""Samples that got no processor: tried again, with more time, and never a model's failure."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monolane.evaluate import (
    Answer,
    EvalOptions,
    Guard,
    Limits,
    Question,
    Subject,
    evaluate,
    make_tasks,
)
from monolane.evaluate._evalplus import scorer
from monolane.evaluate._evalplus.turns import Turns, Watch

PROBLEMS = Path(__file__).parent / "problems"
FAILED = {"base": "fail", "plus": "fail"}
PASSED = {"base": "pass", "plus": "pass"}
Tries = list[Limits]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tries]:
    """What the guard's processes are to find, run by run; the last run comes again and again."""

    def set_runs(*found: tuple[dict[str, str], Turns]) -> Tries:
        asked: Tries = []

        def run(guard: Guard, job: bytes, folder: str, limits: Limits) -> Any:
            asked.append(limits)
            return found[min(len(asked), len(found)) - 1]

        monkeypatch.setattr(Guard, "_run", run)
        return asked

    return set_runs


def score(guard: Guard) -> Any:
    return guard.score("humaneval", {}, "", sanitize=False)


def test_a_sample_that_waited_is_tried_again_with_more_time(runs: Callable[..., Tries]) -> None:
    asked = runs((FAILED, Turns(ran=0.2, waited=9.9)), (PASSED, Turns(ran=0.5, waited=20.0)))
    assert score(Guard()) == PASSED
    assert [limits.least_seconds for limits in asked] == [10, 30]
    assert [limits.part_seconds for limits in asked] == [60, 180]
    assert [limits.seconds for limits in asked] == [300, 900]


def test_what_never_gets_a_processor_has_no_score(runs: Callable[..., Tries]) -> None:
    asked = runs((FAILED, Turns(ran=1.0, waited=500.0)))
    verdict = score(Guard())
    assert verdict["base"] == verdict["plus"] == "stalled"
    assert "waited 500 s for a processor and ran 1.0 s" in verdict["reason"]
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("turns", "tries"),
    [
        (Turns(ran=0.0, waited=0.0), 1),  # sleeps
        (Turns(ran=0.1, waited=4.9), 1),  # is wrong, on a busy machine
        (Turns(ran=30.0, waited=200.0), 2),  # loops, on a very busy machine
    ],
)
def test_a_failure_with_the_time_that_was_due_counts(
    runs: Callable[..., Tries], turns: Turns, tries: int
) -> None:
    asked = runs((FAILED, turns))
    assert score(Guard()) == FAILED
    assert len(asked) == tries


# Three processes and a thread run for 0.3 s each, say so, and stay until their input ends.
SPIN = """
import os, sys, threading, time

def spin():
    begin = time.thread_time()
    while time.thread_time() - begin < 0.3:
        pass
    os.write(1, b"x")
    os.read(0, 1)

for _ in range(3):
    if os.fork() == 0:
        spin()
        os._exit(0)
threading.Thread(target=spin).start()
"""


def test_the_time_of_threads_and_children_is_seen_together() -> None:
    for depth, least, most in ((0, 1.2, 60), (1, 0.9, 1.2), (2, 0.0, 0.0)):
        process = subprocess.Popen(
            [sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        watch = Watch(process.pid, depth)
        assert process.stdout.read(4) == b"xxxx"
        turns = watch.end()
        process.communicate()
        assert least <= turns.ran <= most, depth  # three children: a sample cannot starve itself
        assert turns.waited >= 0


def test_a_part_has_the_time_that_the_limits_say(guard: Guard) -> None:
    problem = {
        "task_id": "Test/0",
        "prompt": "",
        "entry_point": "f",
        "atol": 0,
        "canonical_solution": "def f(): pass",
        "base_input": [[]],
        "plus_input": [],
    }
    limits = Limits(seconds=240, least_seconds=60, part_seconds=1)
    code = "def f():\n    while True: pass\n"
    verdict = Guard(limits, guard.strength).score("humaneval", problem, code, sanitize=False)
    assert verdict["base"] == "timeout"  # by the limit of an input it would be "fail", 60 s later


@pytest.mark.parametrize(
    ("canonical", "most"),
    [
        ([0.1, 0.1], 21),  # EvalPlus's: 10 s an input
        ([5.0, 5.0, 5.0, 5.0], 61),  # its cap of 60 s
        ([20.0, 20.0, 20.0, 20.0], 161),  # the machine is so slow that the canonical code took 80 s
    ],
)
def test_a_part_has_twice_the_time_of_the_canonical_code(
    canonical: list[float], most: float
) -> None:
    names: dict[str, Any] = {
        "part_seconds": 60,
        "ref_time": canonical,
        "time_limits": [max(10, 4 * seconds) for seconds in canonical],
    }
    exec(scorer._OUR_CAP, names)
    assert names["timeout"] == most


class Silent(Subject):
    """A subject that counts how often it was asked."""

    name, chat, context, about = "silent", True, None, {"model": "silent"}
    asked = 0

    def ask(self, question: Question, sample: int = 0) -> Answer:
        self.asked += 1
        return Answer("pass", "stop", 1, 1, 0.1)

    def count(self, question: Question) -> int:
        return 1


def test_an_answer_without_a_score_is_scored_by_the_next_run(
    runs: Callable[..., Tries], tmp_path: Path
) -> None:
    pytest.importorskip("evalplus", reason="needs evalplus: pip install 'monolane[eval]'")
    options = EvalOptions(tasks=("humaneval+",), data=(PROBLEMS,), limit=2)
    subject = Silent()
    starved = Turns(ran=0.0, waited=1000.0)
    runs((PASSED, Turns()), (FAILED, starved))
    (task,) = evaluate(subject, make_tasks(options), tmp_path)["tasks"]
    assert [(figure["value"], figure["count"]) for figure in task["figures"]] == [(100, 1)] * 2
    assert "1 of 2 answers have no score" in task["notes"][0]
    runs((FAILED, Turns()))
    (task,) = evaluate(subject, make_tasks(options), tmp_path)["tasks"]
    assert [(figure["value"], figure["count"]) for figure in task["figures"]] == [(50, 2)] * 2
    assert not any("no score" in note for note in task["notes"])
    assert subject.asked == 2
