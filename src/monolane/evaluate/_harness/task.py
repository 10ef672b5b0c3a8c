"""Any task of lm-eval's, multiple choice above all, on an engine or a server."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from monolane.errors import BackendError, DataError, MissingExtraError, RequestError
from monolane.evaluate._intervals import mean_interval, percent
from monolane.evaluate._journal import Journal
from monolane.evaluate._question import Figure
from monolane.evaluate._target import EngineSubject, ServerSubject, Subject
from monolane.evaluate._task import Outcome, Progress, Shown, Task
from monolane.sources import proxy_told


def require_harness() -> None:
    """Raise MissingExtraError if lm-eval is not installed."""
    if find_spec("lm_eval") is None:
        raise MissingExtraError("multiple choice and other tasks of lm-eval's", "lmeval")


class HarnessTask(Task):
    """One task, group or tag of lm-eval's; each request is a line of the journal."""

    def __init__(
        self, name: str, include: Sequence[Path], few_shot: int | None, limit: int | None
    ) -> None:
        """Load its data. RequestError: no such task; DataError: its data cannot be had."""
        require_harness()
        os.environ.setdefault("TQDM_DISABLE", "1")  # the bars of lm-eval and of its data sets
        self.name, self.title = name, f"{name} (lm-eval {version('lm-eval')})"
        self._few_shot, self._limit = few_shot, limit
        self._manager, self._tasks = _load(name, tuple(include))

    def run(self, subject: Subject, folder: Path, progress: Progress) -> Outcome:
        """Ask what the journal does not have, and have lm-eval score it all."""
        from lm_eval import simple_evaluate

        from monolane.evaluate._harness.models import EngineModel, KeptModel, ServerModel

        settings = {
            "task": self.name,
            "lm_eval": version("lm-eval"),
            "few_shot": "the task's own" if self._few_shot is None else self._few_shot,
        }
        model = (
            EngineModel(subject.engine)
            if isinstance(subject, EngineSubject)
            else ServerModel(subject)
            if isinstance(subject, ServerSubject)
            else None
        )
        if model is None:
            raise RequestError(f"{self.name}: expected an engine or a server")
        about = {key: value for key, value in subject.about.items() if key != "chat"}
        with Journal(folder / f"{self.name}.jsonl", {**about, **settings}) as journal:
            try:
                found = simple_evaluate(
                    KeptModel(model, journal, lambda done, of: progress(self.name, done, of)),
                    tasks=self._tasks,
                    task_manager=self._manager,
                    num_fewshot=self._few_shot,
                    limit=self._limit,
                    bootstrap_iters=0,  # the intervals are ours
                )
            except OSError as error:  # of lm-eval's client, after its own retries
                proxy = (
                    "" if not isinstance(subject, ServerSubject) else proxy_told(subject.target.url)
                )
                raise BackendError(
                    f"{self.name}: lm-eval's client: {error!s:.300}.{proxy}"
                ) from None
        assert found is not None  # there is one process
        data = {"data_sha256": _hash_of(found["samples"])}
        figures = tuple(read_figures(self.name, found))
        notes = () if self._limit is None else (f"The first {self._limit} items of a task only.",)
        items = tuple(_shown(found["samples"]))
        return Outcome(self.name, self.title, figures, settings | data, {}, notes, items)


def read_figures(name: str, found: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield what lm-eval found: ``name``'s own figures first, then those of its tasks.

    A mean of scores from 0 to 1 is a share, in percent, with an interval of ours.
    """
    rows: Mapping[str, Mapping[str, Any]] = found["results"]
    for task in sorted(rows, key=lambda each: each != name):
        leaves = list(_leaves(task, found["group_subtasks"]))
        for key, value in rows[task].items():
            metric, _, chosen = key.partition(",")
            if not chosen or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            shown = metric if chosen == "none" else f"{metric} ({chosen})"
            shown = shown if task == name else f"{task}: {shown}"
            samples = [
                sample[metric]
                for leaf in leaves
                for sample in found["samples"].get(leaf, ())
                if metric in sample and sample.get("filter", chosen) == chosen
            ]
            yield _figure(shown, float(value), samples)


def _shown(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Shown]:
    """Yield each sample that lm-eval scored, by the first of its metrics that is a number."""
    for task, each in samples.items():
        for sample in each:
            values = (sample.get(name) for name in sample.get("metrics", ()))
            score = next((float(x) for x in values if isinstance(x, int | float)), None)
            said = "\n".join(str(answer) for answer in sample.get("filtered_resps", ()))
            note = f"wanted: {sample['target']}" if sample.get("target") not in (None, "") else ""
            yield Shown(f"{task} {sample['doc_id']}", said, score, note=note)


def _figure(metric: str, value: float, samples: Sequence[Any]) -> Figure:
    scores = [float(each) for each in samples if isinstance(each, int | float)]
    share = bool(scores) and len(scores) == len(samples) and 0 <= min(scores) <= max(scores) <= 1
    if not share or abs(float(np.mean(scores)) - value) > 1e-9:  # or lm-eval weighs them otherwise
        return Figure(metric, value, None, None, len(samples), unit="")
    low, high, how = mean_interval(scores).of(percent)
    return Figure(metric, 100 * value, low, high, len(scores), f"{how}, items")


def _leaves(task: str, members: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the tasks that a group is made of, or the task itself."""
    if not members.get(task):
        yield task
    for member in members.get(task, ()):
        yield from _leaves(member, members)


def _hash_of(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    whole = hashlib.sha256()
    for task in sorted(samples):
        for sample in samples[task]:
            whole.update(f"{task} {sample['doc_hash']} {sample['prompt_hash']}\n".encode())
    return whole.hexdigest()


def _load(name: str, include: tuple[Path, ...]) -> tuple[Any, list[Any]]:
    """Return lm-eval's index of tasks, and the group or tasks of this name, with their data."""
    for path in include:
        if not path.is_dir():
            raise RequestError(f"--include {path}: expected a folder of lm-eval's task files")
    # One's own folders first: the index of lm-eval's own tasks takes seconds.
    manager = _index(include, own=False) if include else None
    if manager is None or name not in manager.all_tasks:
        manager = _index(include, own=True)
    if name not in manager.all_tasks:
        raise RequestError(
            f"--tasks: expected a task of monolane's, of lm-eval {version('lm-eval')} or of "
            f"--include, got {name!r}; 'lm-eval ls tasks' lists lm-eval's"
        )
    try:
        loaded = manager.load([name])
    except Exception as error:  # whatever the libraries raise that fetch and read data sets
        raise DataError(
            f"{name}: lm-eval could not load its data ({type(error).__name__}: {error!s:.200}); it "
            "fetches them from hubs: on a machine without network give --include a folder with a "
            "task file whose dataset_path is json, and whose data_files are here"
        ) from None
    group = loaded["groups"].get(name)
    return manager, [group] if group is not None else list(loaded["tasks"].values())


@lru_cache(maxsize=4)
def _index(include: tuple[Path, ...], own: bool) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=list(include) or None, include_defaults=own)
