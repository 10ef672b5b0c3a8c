"""Small tasks with right answers: what a language model knows, in numbers between chance and 1.

A task is a JSONL file; a line is an example of one of three kinds:

    {"context": "1 + 1 =", "choices": [" 2", " 3"], "answer": 0}         which continuation
    {"contexts": ["a dog", "dogs"], "continuation": " barks", "answer": 0}   which context (schema)
    {"context": "a b a b a", "target": " b"}                             write exactly this

Of several, the one counts as chosen whose continuation costs the fewest nats per byte; ``target``
must be what greedy decoding would write. A task's accuracy is *centred*: 0 is chance, 1 is all
right, below 0 is worse than chance; so tasks of different kinds may be averaged. It is the way of
DataComp-LM's CORE, with tasks that are ours and small: the numbers do not compare with CORE's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from monolane._toml import read_file, shipped_files
from monolane.errors import ConfigError
from monolane.train._evaluate import ROWS, Window, score_windows

_KINDS = ({"context", "choices", "answer"}, {"contexts", "continuation", "answer"})
_SHIPPED = ("monolane.train", "tasks", ".jsonl")
_EXACT = {"context", "target"}


@dataclass(frozen=True)
class Example:
    """Pairs of context and continuation, and which one is right; a single pair is to be written."""

    pairs: tuple[tuple[str, str], ...]
    answer: int

    @property
    def chance(self) -> float:
        """Accuracy of a random choice; nobody writes a text by chance."""
        return 1 / len(self.pairs) if len(self.pairs) > 1 else 0.0


@dataclass(frozen=True)
class Task:
    """A named list of examples."""

    name: str
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class TaskScore:
    """How a model did on a task."""

    accuracy: float
    chance: float

    @property
    def centred(self) -> float:
        """Accuracy on a scale where chance is 0 and all right is 1."""
        return (self.accuracy - self.chance) / (1 - self.chance)


def shipped_tasks() -> tuple[str, ...]:
    """Names of the tasks that come with the package."""
    return shipped_files(*_SHIPPED)


def load_task(name: str | Path) -> Task:
    """Read a task: a JSONL file, or the name of a shipped one."""
    try:
        text, origin = read_file(name, *_SHIPPED)
    except ConfigError as error:
        raise ConfigError(f"validation.tasks: {error}") from None
    return Task(Path(name).stem, _examples(text, origin))


def score_tasks(
    model: torch.nn.Module,
    tasks: Sequence[Task],
    tokenizer: Tokenizer,
    context: int,
    rows: int = ROWS,
) -> dict[str, TaskScore]:
    """Score tasks on all processes together; each calls this with the same tasks."""
    pairs = [pair for task in tasks for example in task.examples for pair in example.pairs]
    windows = [_window(pair, tokenizer, context) for pair in pairs]
    # Windows of like length share a pass; the order of results is put right again.
    order = sorted(range(len(windows)), key=lambda at: len(windows[at].ids))
    scores = score_windows(model, [windows[at] for at in order], rows)
    cost, greedy = np.empty(len(pairs)), np.empty(len(pairs), dtype=bool)
    for place, at in enumerate(order):
        cost[at] = scores.nats[place] / len(pairs[at][1].encode())
        greedy[at] = scores.greedy[place]
    results, start = {}, 0
    for task in tasks:
        right = 0
        for example in task.examples:
            end = start + len(example.pairs)
            right += _is_right(example, cost[start:end], greedy[start:end])
            start = end
        chance = sum(example.chance for example in task.examples) / len(task.examples)
        results[task.name] = TaskScore(right / len(task.examples), chance)
    return results


def centred_accuracy(scores: Mapping[str, TaskScore]) -> float:
    """Return the mean of the tasks' centred accuracies."""
    return sum(score.centred for score in scores.values()) / len(scores)


def _is_right(example: Example, cost: np.ndarray, greedy: np.ndarray) -> bool:
    if len(example.pairs) == 1:
        return bool(greedy[0])
    others = np.delete(cost, example.answer)
    return bool((cost[example.answer] < others).all())  # NaN and ties are wrong


def _window(pair: tuple[str, str], tokenizer: Tokenizer, context: int) -> Window:
    """Return the ids of context and continuation, scored from the continuation's first token.

    A token that holds the end of the one and the beginning of the other belongs to the latter.
    """
    encoding = tokenizer.encode("".join(pair))
    start = len(pair[0])
    first = next(at for at, (_, end) in enumerate(encoding.offsets) if end > start)
    if len(encoding.ids) > context:
        raise ConfigError(
            f"task example {pair[0][:40]!r}: expected at most {context} tokens, as the model was "
            f"made for, got {len(encoding.ids)}; leave this task out"
        )
    return Window(np.array(encoding.ids), max(first, 1))


def _examples(text: str, origin: str) -> tuple[Example, ...]:
    examples = []
    # Not splitlines: JSON may hold U+2028 and other ends of a line as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            examples.append(_example(json.loads(line)))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ConfigError(
                f"{origin}: line {number}: expected an example of a task "
                f"(see docs/training-runs.md), got {line[:60]!r}: {error}; mend the line"
            ) from None
    if not examples:
        raise ConfigError(f"{origin}: expected examples, one per line, found none")
    return tuple(examples)


def _example(value: dict[str, Any]) -> Example:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    if value.keys() == _EXACT:
        return Example(((value["context"], _some(value["target"])),), 0)
    if value.keys() == _KINDS[0]:
        pairs = [(value["context"], _some(choice)) for choice in value["choices"]]
    elif value.keys() == _KINDS[1]:
        pairs = [(context, _some(value["continuation"])) for context in value["contexts"]]
    else:
        raise ValueError(f"fields {sorted(value)} are of no kind")
    if len(pairs) < 2 or not 0 <= value["answer"] < len(pairs):
        raise ValueError(f"answer {value['answer']} of {len(pairs)} choices")
    return Example(tuple(pairs), value["answer"])


def _some(text: str) -> str:
    if not text:
        raise ValueError("a continuation is empty")
    return text
