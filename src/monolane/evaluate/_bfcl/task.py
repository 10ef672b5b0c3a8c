"""BFCL: whether a server's model calls the right function, with the right arguments."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from monolane.errors import BackendError, RequestError
from monolane.evaluate._bfcl.checker import (
    CATEGORIES,
    Call,
    Case,
    as_tools,
    check,
    read_cases,
    require_bfcl,
)
from monolane.evaluate._intervals import mean_interval, percent
from monolane.evaluate._journal import Journal, Line
from monolane.evaluate._missing import MissingTask
from monolane.evaluate._question import Decoding, Figure
from monolane.evaluate._target import ServerSubject, Subject
from monolane.evaluate._task import Outcome, Progress, Shown, Task

# In the words of OpenAI's server, vLLM's and ours, for functions that the context cannot hold.
_TOO_LONG = "maximum context length"
# BFCL has functions that nothing can be called with, such as an integer of an enum of strings.
_REFUSED = "HTTP 400"
TOOL_CHOICES = ("auto", "required")
BFCL_TASKS = tuple(f"bfcl_{category}" for category in CATEGORIES)


class CallsTask(Task):
    """The categories of BFCL that are asked for, one line of the journal for each case.

    choice: "auto", or "required", where all but calls is kept out of an answer.
    skip_missing: without a server the outcome says so, and has no figures.
    """

    name, title = "bfcl", "Tool calls (BFCL v4, one turn, Python)"

    def __init__(
        self,
        names: Sequence[str],
        limit: int | None,
        decoding: Decoding,
        choice: str = "auto",
        skip_missing: bool = False,
    ) -> None:
        require_bfcl()
        categories = [name.removeprefix("bfcl_") for name in names] or CATEGORIES
        if choice == "required":  # no answer could be right where no function helps
            categories = [name for name in categories if "irrelevance" not in name]
        self._cases = {category: read_cases(category, limit) for category in categories}
        if not self._cases:
            raise RequestError(
                "--tool-choice required: expected a category in which a call can be right, "
                f"got {', '.join(names)}"
            )
        self._decoding, self._limit, self._choice = decoding, limit, choice
        self._skip_missing = skip_missing

    def run(self, subject: Subject, folder: Path, progress: Progress) -> Outcome:
        """Ask and check what the journal does not have; RequestError without a server."""
        if not isinstance(subject, ServerSubject):
            why = (
                "bfcl: expected --base-url: tools are shown to a model, and read from its answer, "
                "by a server; 'monolane serve' is one"
            )
            if self._skip_missing:
                return MissingTask(self.name, why).run(subject, folder, progress)
            raise RequestError(why)
        settings = {
            "task": self.name,
            "checker": f"bfcl-eval {version('bfcl-eval')}, ast_checker",
            "max_tokens": self._decoding.max_tokens,
            "temperature": self._decoding.temperature,
            "tool_choice": self._choice,
        }
        found: dict[str, list[Line]] = {}
        done, total = 0, sum(map(len, self._cases.values()))
        with Journal(folder / f"{self.name}.jsonl", {**subject.about, **settings}) as journal:
            progress(self.name, done, total)
            for category, cases in self._cases.items():
                lines = found[category] = []
                for case in cases:
                    line = journal.get(case.key)
                    lines.append(line or journal.add(case.key, **self._ask(subject, case)))
                    done += 1
                    progress(self.name, done, total)
        every = [line for lines in found.values() for line in lines]
        figures = [self._figure(name, lines) for name, lines in {"all": every, **found}.items()]
        about = (
            "The mean is over all cases. BFCL's leaderboard weighs categories otherwise, and has "
            "more of them (several turns, Java, JavaScript, memory, search)."
        )
        notes = [about]
        if long := sum(line.get("error") == _TOO_LONG for line in every):
            notes.append(f"{long} cases are longer than the model's context, and count as wrong.")
        if refused := sum(line.get("error") == _REFUSED for line in every):
            notes.append(f"{refused} cases were refused by the server, and count as wrong.")
        if self._limit is not None:
            notes.append(f"The first {self._limit} cases of a category only.")
        items = tuple(map(_shown, every))
        return Outcome(self.name, self.title, tuple(figures), settings, {}, tuple(notes), items)

    def _ask(self, subject: ServerSubject, case: Case) -> dict[str, Any]:
        try:
            message = subject.chat_with_tools(
                case.messages, as_tools(case), self._choice, self._decoding
            )
        except BackendError as error:
            for reason in (_TOO_LONG, _REFUSED):
                if reason in str(error):
                    return {"answer": None, "score": 0, "error": reason, "said": str(error)[:400]}
            raise
        answer = {"content": message.get("content"), "tool_calls": message.get("tool_calls")}
        return {"answer": answer, **judge(case, message.get("tool_calls"))}

    def _figure(self, name: str, lines: Sequence[Line]) -> Figure:
        scores = [line["score"] for line in lines]
        low, high, how = mean_interval(scores).of(percent)
        share = sum(scores) / len(scores)
        metric = f"{name}: accuracy" + (", calls required" if self._choice == "required" else "")
        return Figure(metric, 100 * share, low, high, len(scores), f"{how}, cases")


def _shown(line: Line) -> Shown:
    answer = line["answer"] or {}
    calls = answer.get("tool_calls")
    said = answer.get("content") or ""
    said += "".join(f"\n{json.dumps(call.get('function', call))}" for call in calls or ())
    return Shown(line["item"], said.strip(), line["score"], note=str(line.get("error") or ""))


def judge(case: Case, tool_calls: Any) -> dict[str, Any]:
    """Return the score of a message's calls, and what is wrong with them.

    A call that cannot be read is none, as in BFCL: where no function helps, that is right.
    """
    calls = read_calls(tool_calls)
    if calls is None and "relevance" not in case.category:
        return {"score": 0, "error": "arguments that are no JSON object"}
    return check(case, calls or ())


def read_calls(tool_calls: Any) -> list[Call] | None:
    """Return the calls of a message; None if arguments are no JSON object."""
    found: list[Call] = []
    for call in tool_calls or ():
        try:
            arguments = json.loads(call["function"]["arguments"])
        except (ValueError, KeyError, TypeError):
            return None
        if not isinstance(arguments, dict):
            return None
        found.append({call["function"]["name"]: arguments})
    return found
