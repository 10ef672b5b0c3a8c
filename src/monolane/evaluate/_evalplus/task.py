"""HumanEval+ and MBPP+ as tasks: the prompt, the block that is scored, pass@k."""

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from monolane.evaluate._evalplus.block import target_function
from monolane.evaluate._evalplus.guard import STALLED, Guard
from monolane.evaluate._evalplus.problems import (
    HUMANEVAL,
    Benchmark,
    Problems,
    find_problems,
    require_evalplus,
)
from monolane.evaluate._intervals import mean_interval, percent
from monolane.evaluate._journal import Line
from monolane.evaluate._question import Decoding, Figure, Question
from monolane.evaluate._target import Subject
from monolane.evaluate._task import AskedTask, Item

# The instruction of EvalPlus's own generation (evalplus/codegen.py, Apache-2.0), so that figures
# can be compared, and the ends of what a base model continues (evalplus/provider/utility.py).
INSTRUCTION = (
    "Please provide a self-contained Python script that solves the following problem in a "
    "markdown code block:"
)
_ENDS = ("\nif __name__", "\ndef main(", "\nprint(", "\nassert ")
_ENDS_OF = {
    "humaneval": ("\ndef ", "\nclass ", "\nimport ", "\nfrom "),
    "mbpp": ('\n"""',),
}
_KS = (1, 5, 10, 100)


class CodeTask(AskedTask):
    """One of the two benchmarks; each answer is scored by EvalPlus in a guarded process."""

    def __init__(
        self,
        benchmark: Benchmark,
        data: Sequence[Path],
        limit: int | None,
        samples: int,
        decoding: Decoding,
        guard: Guard,
    ) -> None:
        require_evalplus()
        self.name, self.title, self.samples = benchmark.name, benchmark.title, samples
        self._benchmark, self._guard, self._decoding = benchmark, guard, decoding
        self._problems: Problems = find_problems(benchmark, data)
        self._rows = self._problems.rows[:limit]

    def items(self, subject: Subject) -> Sequence[Item]:
        """Return a question for each problem: an instruction, or the text to continue."""
        return [
            Item(row["task_id"], ask(row, self._benchmark, self._decoding, subject.chat), row)
            for row in self._rows
        ]

    def judge(self, item: Item, text: str) -> dict[str, Any]:
        """Score an answer; 1 if it passes the benchmark's own inputs and EvalPlus's.

        None if it got no processor to show it.
        """
        problem, answer = item.data, None
        if item.question.chat:
            code, answer = target_function(text, problem["entry_point"]), text
        else:
            code = problem["prompt"] + text
        verdict = self._guard.score(self._benchmark.dataset, problem, code, True, answer)
        if verdict["base"] == STALLED:
            return {"score": None, "base_score": None, **verdict}
        passed = verdict["base"] == "pass"
        return {
            "score": int(passed and verdict["plus"] == "pass"),
            "base_score": int(passed),
            **verdict,
        }

    def figures(self, subject: Subject, lines: Sequence[Line]) -> tuple[Figure, ...]:
        """Return pass@k on all inputs, and pass@1 on the benchmark's own."""
        wanted = [*((k, "score") for k in _KS if k <= self.samples), (1, "base_score")]
        found = (pass_at(k, key, lines) for k, key in wanted)
        return tuple(figure for figure in found if figure is not None)

    def settings(self) -> dict[str, Any]:
        """Return data, scorer, prompt and limits."""
        limits = self._guard.limits
        return {
            "data": f"{self._benchmark.title} {self._benchmark.version}",
            "data_sha256": self._problems.sha256,
            "data_is_the_release": self._problems.released,
            "scorer": f"evalplus {version('evalplus')}, HumanEval/32 mended",
            "postprocessing": "target_function block selection by CommonMark, then "
            "evalplus.sanitize with generators kept",
            "prompt_sha256": hashlib.sha256(INSTRUCTION.encode()).hexdigest(),
            "guard": self._guard.strength,
            "limits": {
                name: getattr(limits, name)
                for name in (
                    *("seconds", "least_seconds", "part_seconds"),
                    *("memory", "disk", "processes"),
                )
            },
        }

    def notes(self, lines: Sequence[Line]) -> tuple[str, ...]:
        """Return which scorer it was, of how many problems, and where EvalPlus alone differs."""
        mended = (
            "evalplus 0.3.1 as released fails HumanEval/32 whatever the code is; it is mended "
            "here as upstream did (6eb1e19), so a figure may be up to one problem higher than "
            "one by the released scorer."
        )
        least = (
            f"An input has at least {self._guard.limits.least_seconds:g} s; EvalPlus's own least "
            "is 1 s, which a busy machine misses."
        )
        generators = (
            "evalplus.sanitize as released drops helpers that yield and never return, and so fails "
            "Mbpp/630's own solution; here they are kept."
        )
        found = [generators, least, *_differing(lines)]
        if self._benchmark is HUMANEVAL:
            found.insert(0, mended)
        if len(self._rows) < len(self._problems.rows):
            found.append(
                f"The first {len(self._rows)} of {len(self._problems.rows)} problems only."
            )
        if not self._problems.released:
            found.append("The problems are not those of the release, to the bit.")
        found.append(f"What shut generated code in: {self._guard.describe()}.")
        return tuple(found)


def _differing(lines: Sequence[Line]) -> list[str]:
    """Return the answers that EvalPlus's own choice of code would score otherwise, as a note."""
    found = [
        f"{line['item']} ({'right' if line['score'] else 'wrong'} here)"
        for line in lines
        if "whole" in line and (line["whole"] == "pass") != bool(line["score"])
    ]
    if not found:
        return []
    note = (
        f"{len(found)} answers are scored otherwise if evalplus.sanitize alone chooses their code"
    )
    return [f"{note}: {', '.join(found)}."]


def ask(problem: dict[str, Any], benchmark: Benchmark, how: Decoding, chat: bool) -> Question:
    """Return the question of a problem."""
    prompt = problem["prompt"].strip()
    if chat:
        return Question(f"{INSTRUCTION}\n```python\n{prompt}\n```", how)
    stop = (*_ENDS, *_ENDS_OF[benchmark.dataset])
    return Question(problem["prompt"], how, chat=False, stop=stop)


def pass_at(k: int, key: str, lines: Sequence[Line]) -> Figure | None:
    """Return pass@k over the problems with k scored lines, in percent; None: there are none.

    Of n samples of a problem c pass: 1 - C(n - c, k) / C(n, k), the unbiased estimate of the
    Codex paper (arXiv 2107.03374).
    """
    passed: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        if line[key] is not None:
            passed[line["item"]].append(line[key])
    enough = [each for each in passed.values() if len(each) >= k]
    if not enough:
        return None
    shares = [1 - math.comb(len(each) - sum(each), k) / math.comb(len(each), k) for each in enough]
    low, high, how = mean_interval(shares).of(percent)
    metric = f"pass@{k}" if key == "score" else f"pass@{k}, base inputs"
    value = float(np.mean(shares))
    return Figure(metric, 100 * value, low, high, len(shares), f"{how}, problems")
