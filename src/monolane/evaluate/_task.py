"""What a task is, and how one of questions is run: item by item, each kept when it is done."""

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from monolane.evaluate._journal import Journal, Line
from monolane.evaluate._question import Decoding, Figure, Question
from monolane.evaluate._target import Subject, describe_question

# Called with a task's name, and how many of its items are done of how many.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Shown:
    """One answer as the report shows it; ``score`` from 0 to 1, None where there is none.

    ``asked``: the question, where it says more than the item's name; ``note``: why it failed, or
    what would have been right.
    """

    item: str
    said: str
    score: float | None
    asked: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task found: figures, and what a reader has to know to repeat or doubt them."""

    task: str
    title: str
    figures: tuple[Figure, ...]
    settings: Mapping[str, Any]
    speed: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    answers: tuple[Shown, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


class Task(ABC):
    """One row of the report, or several; ``name`` is also its journal's."""

    name: str
    title: str

    @abstractmethod
    def run(self, subject: Subject, folder: Path, progress: Progress) -> Outcome:
        """Do what is not done yet, and sum up."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question; ``key`` names it in the journal, ``data`` is the task's own."""

    key: str
    question: Question
    data: Any = None


class AskedTask(Task):
    """A task of questions whose answers are scored one by one, from 0 to 1."""

    samples = 1

    @abstractmethod
    def items(self, subject: Subject) -> Sequence[Item]:
        """Return the questions, in a fixed order."""

    @abstractmethod
    def judge(self, item: Item, text: str) -> dict[str, Any]:
        """Return {"score": ...} and what else is to be kept of a scored answer.

        A score of None says that this machine kept it from being found: another run tries again.
        """

    @abstractmethod
    def figures(self, subject: Subject, lines: Sequence[Line]) -> tuple[Figure, ...]:
        """Sum up."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what, beside the subject, decides answers and scores."""

    def notes(self, lines: Sequence[Line]) -> tuple[str, ...]:
        """Return what a reader has to know."""
        return ()

    def run(self, subject: Subject, folder: Path, progress: Progress) -> Outcome:
        """Ask what the journal does not have yet, judge what has no score there, and sum up."""
        items = self.items(subject)
        first = describe_question(items[0].question) if items else {}
        settings = {"task": self.name, **self.settings(), **first}
        lines: list[Line] = []
        shown: list[Shown] = []
        total = len(items) * self.samples
        with Journal(folder / f"{self.name}.jsonl", {**subject.about, **settings}) as journal:
            progress(self.name, 0, total)
            for item in items:
                for sample in range(self.samples):
                    line = journal.get(item.key, sample)
                    if line is None or line["score"] is None:
                        line = self._do(subject, item, sample, journal, line)
                    lines.append(line)
                    shown.append(show(line, item.question.text))
                    progress(self.name, len(lines), total)
        return Outcome(
            self.name,
            self.title,
            self.figures(subject, lines),
            settings,
            speed_of(lines),
            (*unscored(lines), *self.notes(lines)),
            tuple(shown),
        )

    def _do(
        self, subject: Subject, item: Item, sample: int, journal: Journal, before: Line | None
    ) -> Line:
        """Keep an answer, that of a line ``before`` if there is one, with its score."""
        answer = before["answer"] if before else asdict(subject.ask(item.question, sample))
        return journal.add(item.key, sample, answer=answer, **self.judge(item, answer["text"]))


def show(line: Line, asked: str = "", note: str = "") -> Shown:
    """Return what the report shows of a line with an answer."""
    item = line["item"] + (f", sample {line['sample'] + 1}" if line["sample"] else "")
    return Shown(item, line["answer"]["text"], line["score"], asked, note)


def unscored(lines: Sequence[Line]) -> tuple[str, ...]:
    """Return what a reader has to know of answers that the machine kept from being scored."""
    count = sum(line["score"] is None for line in lines)
    if not count:
        return ()
    note = (
        f"{count} of {len(lines)} answers have no score and count nowhere: their scorer got no "
        "processor to run on. The same command scores them, on a machine with time for it."
    )
    return (note,)


def speed_of(lines: Sequence[Line]) -> dict[str, Any]:
    """Return how fast answers came; ``clock`` says of what part of a request."""
    answers = [line["answer"] for line in lines]
    if not answers:
        return {}
    decode = all(answer["decode"] for answer in answers)
    speeds = [
        (answer["tokens"] - decode) / answer["seconds"]
        for answer in answers
        if answer["tokens"] > 1 and answer["seconds"] > 0
    ]
    return {
        "answers": len(answers),
        "prompt_tokens": sum(answer["prompt_tokens"] for answer in answers),
        "tokens": sum(answer["tokens"] for answer in answers),
        "cut": sum(answer["finish_reason"] == "length" for answer in answers),
        "median_tokens_per_s": round(statistics.median(speeds), 2) if speeds else None,
        "clock": "decoding" if decode else "whole requests",
    }


def greedy(max_tokens: int) -> Decoding:
    """Return the decoding that the released figures were taken with."""
    return Decoding(max_tokens)
