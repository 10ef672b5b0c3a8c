"""CORE: 22 tasks of choice and continuation, each accuracy centred on what a guess gets right."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from monolane.errors import RequestError
from monolane.evaluate._core.bundle import TASKS, Part, read_bundle
from monolane.evaluate._core.prompts import scored_tokens
from monolane.evaluate._intervals import BOOTSTRAP, mean_interval, percent, resampled_shares
from monolane.evaluate._journal import Journal
from monolane.evaluate._question import Figure
from monolane.evaluate._target import ScoringSubject, Subject
from monolane.evaluate._task import Outcome, Progress, Shown, Task

_VERSION = 1  # of prompts and scoring: another number, other scores


class CoreTask(Task):
    """All tasks of a bundle; one line of the journal for each item."""

    name, title = "core", "CORE (DCLM, centred accuracy, as nanochat assembles it)"

    def __init__(self, data: Sequence[Path], limit: int | None) -> None:
        """Read the bundle; DataError, RequestError as ``read_bundle``."""
        self._bundle, self._limit = read_bundle(data, limit), limit

    def run(self, subject: Subject, folder: Path, progress: Progress) -> Outcome:
        """Score what the journal does not have, and sum up."""
        if not isinstance(subject, ScoringSubject):
            raise RequestError("core: expected an engine, or a server that gives log-probabilities")
        settings = {
            "task": self.name,
            "prompts": _VERSION,
            "data_sha256": self._bundle.sha256,
            "limit": self._limit,  # also of the items that solved ones are drawn from
        }
        about = {key: value for key, value in subject.about.items() if key != "chat"}
        scores: list[list[int]] = []
        shown: list[Shown] = []
        done, total = 0, sum(len(part.rows) for part in self._bundle.parts)
        with Journal(folder / f"{self.name}.jsonl", {**about, **settings}) as journal:
            progress(self.name, 0, total)
            for part in self._bundle.parts:
                found: list[int] = []
                scores.append(found)
                for number in range(len(part.rows)):
                    key = f"{part.label} {number}"
                    line = journal.get(key) or journal.add(key, **judge(subject, part, number))
                    found.append(line["score"])
                    nats = ", ".join(f"{each:.3f}" for each in line["nats"])
                    shown.append(Shown(key, f"nats a token: {nats}", line["score"]))
                    done += 1
                    progress(self.name, done, total)
        figures = figures_of(self._bundle.parts, scores)
        notes = self._notes()
        return Outcome(self.name, self.title, figures, settings, {}, notes, tuple(shown))

    def _notes(self) -> tuple[str, ...]:
        notes = ["Nothing is asked as a chat; one bos stands before each text."]
        if len(self._bundle.parts) != TASKS:
            count = len(self._bundle.parts)
            notes.append(f"The mean is over {count} tasks: CORE has {TASKS}.")
        if self._limit is not None:
            notes.append(f"{self._limit} items of a task at most, drawn as nanochat draws them.")
        return tuple(notes)


def judge(subject: ScoringSubject, part: Part, number: int) -> dict[str, Any]:
    """Return {"score": 1 or 0, "nats": mean log-likelihood a token of each way}.

    Of several ways the likeliest has to be the right one, by the mean over its tokens. A
    continuation has to be what greedy decoding says, token for token.
    """

    def encode(text: str) -> list[int]:
        return [subject.first_id, *subject.token_ids(text, special=False)]

    # A server answers with a token at least.
    most = None if subject.context is None else subject.context - 1
    nats, greedy = [], True
    for way in scored_tokens(part, number, encode):
        ids = way.ids if most is None else way.ids[-most:]
        each, greedy = subject.score(ids, min(way.count, len(ids) - 1))
        nats.append(float(np.mean(each)))
    if part.kind == "language_modeling":
        return {"score": int(greedy), "nats": nats}
    return {"score": int(nats.index(max(nats)) == part.rows[number]["gold"]), "nats": nats}


def figures_of(parts: Sequence[Part], scores: Sequence[Sequence[int]]) -> tuple[Figure, ...]:
    """Return CORE, the mean of the centred accuracies, then those, then the accuracies."""
    counts = np.array([len(each) for each in scores])
    shares = np.array([np.mean(each) for each in scores])
    guessed = np.array([part.baseline for part in parts])
    drawn = _centred(resampled_shares(shares, counts), guessed).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    alone = counts.max() == 1  # drawn again it is itself, and tells nothing
    core = Figure(
        "CORE",
        float(_centred(shares, guessed).mean()),
        None if alone else float(low),
        None if alone else float(high),
        int(counts.sum()),
        f"{BOOTSTRAP}, items of each task",
        "",
    )
    figures = []
    for i, part in enumerate(parts):
        found, count = mean_interval(scores[i]), int(counts[i])
        about = {"kind": part.kind, "shots": part.shots, "random_baseline": part.baseline}
        for metric, unit, scaled in (
            ("centred", "", partial(_centred, guessed=part.baseline)),
            ("accuracy", "%", percent),
        ):
            value, metric = float(scaled(shares[i])), f"{part.label}: {metric}"
            low, high, how = found.of(scaled)
            shown = f"{how}, items"
            figures.append(Figure(metric, value, low, high, count, shown, unit, None, about))
    return core, *figures


def _centred(share: Any, guessed: Any) -> Any:
    """Return 0 for what a guess gets right, 1 for all."""
    return (share - guessed) / (1 - guessed)
