"""The long-context tasks as rows of the report: prompts that fill a context as far as they can."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monolane.errors import RequestError
from monolane.evaluate._intervals import mean_interval, percent
from monolane.evaluate._journal import Journal, Line
from monolane.evaluate._question import Decoding, Figure, Question
from monolane.evaluate._ruler.tasks import LONG_TASKS, LongTask, match_all
from monolane.evaluate._target import Subject
from monolane.evaluate._task import Item, Outcome, Progress, Task, show, speed_of

SAMPLES = 500  # of each task at each length, as in the released evaluation
_FULL = 0.95  # of the tokens that a prompt may have: sentences differ in length
_VERSION = 1  # of the prompts: another number, other prompts


class LongContextTask(Task):
    """All eleven, or those named, at each length; greedy."""

    name, title = "ruler", "Long context, in the manner of RULER"

    def __init__(
        self, names: Sequence[str], lengths: Sequence[int], limit: int | None, seed: int
    ) -> None:
        self._tasks = [task for task in LONG_TASKS if not names or task.name in names]
        self._lengths, self._samples, self._seed = sorted(set(lengths)), limit or SAMPLES, seed
        if not self._lengths or self._lengths[0] < 128:
            raise RequestError(f"--lengths: expected 128 tokens or more, got {lengths}")

    def run(self, subject: Subject, folder: Path, progress: Progress) -> Outcome:
        """Ask what is not asked yet; a task that fits no prompt into a length is left out."""
        settings = {
            "task": self.name,
            "prompts": _VERSION,
            "seed": self._seed,
            "temperature": 0.0,
            "haystack": "Python's help topics, or repeated sentences",
            "scoring": "share of the wanted strings in the answer",
        }
        lines: dict[tuple[str, int], list[Line]] = defaultdict(list)
        notes: list[str] = []
        done, total = 0, len(self._tasks) * len(self._lengths) * self._samples
        with Journal(folder / f"{self.name}.jsonl", {**subject.about, **settings}) as journal:
            progress(self.name, 0, total)
            for length in self._lengths:
                for task in self._tasks:
                    try:
                        for line in self._ask_all(subject, task, length, journal):
                            lines[task.name, length].append(line)
                            done += 1
                            progress(self.name, done, total)
                    except DoesNotFitError as error:
                        notes.append(str(error))
                        done += self._samples
        figures = tuple(_figure(*key, each) for key, each in lines.items())
        every = [line for each in lines.values() for line in each]
        speed = speed_of(every)
        items = tuple(show(line, note=f"wanted: {', '.join(line['wanted'])}") for line in every)
        notes.append(
            "Prompts are made here: other words, sentences and haystack than RULER's own, so "
            "figures are near those of other harnesses, not equal to them."
        )
        settings |= {"lengths": self._lengths, "samples": self._samples}
        return Outcome(self.name, self.title, figures, settings, speed, tuple(notes), items)

    def _ask_all(
        self, subject: Subject, task: LongTask, length: int, journal: Journal
    ) -> Iterator[Line]:
        size = 0
        for sample in range(self._samples):
            key = f"{task.name} at {length}"
            line = journal.get(key, sample)
            if line is None:
                item, size = fit(subject, task, length, self._seed, sample, size)
                answer = subject.ask(item.question)
                score = match_all(answer.text, item.data.wanted)
                line = journal.add(
                    key, sample, answer=asdict(answer), score=score, wanted=list(item.data.wanted)
                )
            yield line


class DoesNotFitError(RequestError):
    """No prompt of a task is as short as asked for."""


def fit(
    subject: Subject, task: LongTask, length: int, seed: int, sample: int, near: int = 0
) -> tuple[Item, int]:
    """Return a prompt that fills ``length`` tokens, its answer counted, and its size.

    The largest that fits, by halving. From ``near``, the size of another sample, it is sought
    downwards first, and taken if it is nearly full. DoesNotFitError if the smallest is too long.
    """
    most = length - task.max_tokens
    if subject.context is not None and subject.context < length:
        raise DoesNotFitError(
            f"{task.name} at {length}: left out, the model's context is {subject.context}"
        )

    def attempt(size: int) -> tuple[Item, int]:
        rng = random.Random(f"{seed} {task.name} {length} {sample}")
        prompt = task.build(rng, size)
        question = Question(prompt.text, Decoding(task.max_tokens), subject.chat, prompt.begun)
        return Item(task.name, question, prompt), subject.count(question)

    size = near
    while size >= task.least:
        item, tokens = attempt(size)
        if tokens <= most:
            if tokens >= _FULL * most:
                return item, size
            break
        size -= max(1, size // 100)
    # A line, a sentence or a word has a token at least.
    low, high = max(size, task.least), length
    item, tokens = attempt(low)
    if tokens > most:
        raise DoesNotFitError(
            f"{task.name} at {length}: left out, its shortest prompt has {tokens} tokens and its "
            f"answer {task.max_tokens} more"
        )
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        other, tokens = attempt(middle)
        if tokens <= most:
            low, item = middle, other
        else:
            high = middle
    return item, low


def _figure(name: str, length: int, lines: Sequence[Line]) -> Figure:
    scores = [line["score"] for line in lines]
    low, high, how = mean_interval(scores).of(percent)
    about: dict[str, Any] = {"task": name, "length": length}
    value = 100 * sum(scores) / len(scores)
    return Figure(f"{name} at {length}", value, low, high, len(scores), how, "%", None, about)
