"""A whole training run: its folder, its steps, and what happens between them.

    <run>/config.toml      what decides the run, every field spelled out
    <run>/log.jsonl        one line per step
    <run>/checkpoints/     see :mod:`monolane.train._checkpoints`

Each step is a pure function of the checkpoint before it and of the prepared corpus. So a run that
was killed anywhere ends in the same bits as one that was not, with as many processes; with another
number it reads the same rows in the same order, and sums in another order.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from monolane.data import Corpus, disk_told
from monolane.errors import CheckpointError, ConfigError, TrainingError
from monolane.train._ahead import Ahead
from monolane.train._checkpoints import Progress, Store, checkpoint_folder, checkpoint_steps
from monolane.train._checksums import write_durably
from monolane.train._config import SETTINGS, RunConfig, differences, load_config, write_config
from monolane.train._forecast import flops_per_token, peak_flops
from monolane.train._guard import SpikeGuard
from monolane.train._inputs import make_validator, open_blend, open_corpus
from monolane.train._interrupt import deferred_interrupt
from monolane.train._lock import held
from monolane.train._process_group import World, open_world
from monolane.train._record import Listeners, Observers, StepRecord
from monolane.train._trainer import Outcome, Trainer

CONFIG = "config.toml"

# What a resumed run may change: how the work is done and watched, not what is computed.
_FREE = ("parallel.", "compute.", "checkpoint.", "validation.", "guard.", "log.", "data.corpus")


def train_run(
    config: RunConfig,
    run: Path,
    listeners: Listeners,
    *,
    resume: bool = False,
    settings: Sequence[str] = (),
    until: int | None = None,
) -> Progress:
    """Train until ``schedule.steps``, or step ``until`` before; return where the run is then.

    ``run`` is the folder of the run, new unless ``resume`` is set, which goes on from its newest
    checkpoint. Call it in every process that ``torchrun`` started, or in one alone. On SIGINT or
    SIGTERM the step ends, the state is kept, and KeyboardInterrupt follows. ``settings`` are kept
    for :func:`kept_settings`. Raises ConfigError,
    CheckpointError or DataError before the first step, TrainingError where the loss diverges.
    """
    if resume:
        _check_resumable(config, run)
    else:
        check_new(run)
    with disk_errors_told(run), held(run), open_world(config) as world:
        return Run(config, run, world, listeners, settings).finish(until)


@contextmanager
def disk_errors_told(run: Path, again: str = "go on with --resume") -> Iterator[None]:
    """Turn what a disk refuses into a CheckpointError that says what to do, ``again`` with it."""
    with disk_told(run, CheckpointError, again):
        yield


class Run:
    """The steps of one run in this process."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        world: World,
        listeners: Listeners,
        settings: Sequence[str] = (),
    ) -> None:
        self.config = config
        self.world = world
        corpus = open_corpus(config)
        self.blend = open_blend(config, corpus)
        self.store = Store(folder, config.checkpoint.keep, world)
        newest = self.store.newest()
        if newest is not None:
            _check_corpus(folder, newest, corpus)
        self._validator = make_validator(config, corpus)
        self.trainer = Trainer(config, world, resumed=newest is not None)
        # All that can refuse a config is done: one that cannot run leaves the folder as it was.
        if world.is_first:
            folder.mkdir(parents=True, exist_ok=True)
            write_durably(folder / CONFIG, write_config(config))
            if settings:
                (folder / SETTINGS).write_text(json.dumps([*settings]) + "\n", encoding="utf-8")
        count, size = config.data.rows_per_step, world.size
        self._ahead = Ahead(
            lambda first: self.blend.rows(first, count, rank=world.rank, world=size)
        )
        self._until = config.schedule.steps
        self.guard = SpikeGuard(config.guard)
        self.progress = self._start(corpus, newest)
        self._folder = folder
        self._observers = Observers(listeners(self.progress.step) if world.is_first else ())
        self._per_token = flops_per_token(config.model, config.data.sequence_length)
        self._peak = peak_flops(world.device)

    def finish(self, until: int | None = None) -> Progress:
        """Do the steps that are left, or those before step ``until``, whose state is kept."""
        steps = self.config.schedule.steps
        self._until = steps if until is None else min(until, steps)
        kind = "resume" if self.progress.step else "start"
        processes = f"{self.world.size} process{'es' * (self.world.size > 1)}"
        self._observers.event(self.progress.step, kind, processes)
        self._say_what_is_damaged()
        if self._validator is not None and self._validator.is_empty:
            text = "the corpus holds no documents out, and no tasks are named: nothing is scored"
            self._observers.event(self.progress.step, "warning", text)
        try:
            with deferred_interrupt() as asked:
                while self.progress.step < self._until:
                    self._advance(asked)
            self.store.wait(self.progress)
            self._say_what_is_kept()
            if self.progress.step == steps:
                self._observers.event(steps, "end", "all steps are done")
            return self.progress
        except BaseException:
            self.store.settle()
            raise
        finally:
            self._ahead.close()
            self._observers.close()

    def _start(self, corpus: Corpus, newest: int | None) -> Progress:
        """Take up the newest checkpoint, or write the first one: a run can always go back."""
        if newest is None:
            self.store.drop_after(-1)
            progress = Progress(corpus=corpus.digest, guard=self.guard.state())
            self.store.save(progress, self.trainer.tensors())
            return progress
        progress = self.store.load(newest, self.trainer.tensors())
        self.store.drop_after(newest)
        self.guard.load(progress.guard)
        return progress

    def _advance(self, asked: Callable[[], int]) -> None:
        """Do one step and all that is due after it."""
        began, now = time.monotonic(), self.progress
        count = self.config.data.rows_per_step
        then = None if now.step + 1 == self._until else now.next_row + count
        rows, waited = self._ahead.take(now.next_row, then)
        outcome = self.trainer.step(now.step, rows, asked)
        seconds = time.monotonic() - began
        self.progress = replace(
            now,
            step=now.step + 1,
            next_row=now.next_row + count,
            tokens=now.tokens + self.config.data.tokens_per_step,
            seconds=now.seconds + seconds,
        )
        record = self._record(outcome, seconds, waited)
        self._observers.step(record)
        if not math.isfinite(record.norm):
            text = "the gradient is not finite: nothing was updated"
            self._observers.event(record.step, "skipped", text)
        if self.guard.observe(record):
            self._roll_back()
            return
        self._keep_and_judge(stopping=outcome.interrupted)
        if outcome.interrupted:
            self.store.wait(self.progress)
            self._say_what_is_kept()
            self._observers.event(self.progress.step, "stop", "asked to stop; the state is kept")
            raise KeyboardInterrupt

    def _record(self, outcome: Outcome, seconds: float, waited: float) -> StepRecord:
        memory, reserved = self.world.take_peaks() or (None, None)
        rate = self.config.data.tokens_per_step / seconds
        used = rate / self.world.size * self._per_token
        return StepRecord(
            step=self.progress.step,
            loss=outcome.loss,
            z_loss=outcome.z_loss,
            norm=outcome.norm,
            learning_rate=self.trainer.rate(self.progress.step - 1),
            tokens=self.progress.tokens,
            tokens_per_s=rate,
            mfu=used / self._peak if self._peak else None,
            seconds=seconds,
            waited=waited,
            memory=memory,
            reserved=reserved,
        )

    def _keep_and_judge(self, stopping: bool) -> None:
        """Validate and write a checkpoint where they are due."""
        step, last = self.progress.step, self.progress.step == self.config.schedule.steps
        better = False
        if self._validator is not None and (step % self.config.validation.every == 0 or last):
            better = self._is_best(self.trainer.evaluate(self._validator.run))
        due = step == self._until or step % self.config.checkpoint.every == 0
        if better or last or stopping or due:
            self.progress = replace(self.progress, guard=self.guard.state())
            self.store.save(self.progress, self.trainer.tensors())
        self._say_what_is_kept()

    def _say_what_is_kept(self) -> None:
        """Tell of checkpoints that have become whole: those count, not what was started."""
        for step in self.store.finished():
            self._observers.event(step, "checkpoint", "")

    def _say_what_is_damaged(self) -> None:
        """Tell of checkpoints that were passed over, and why."""
        for step, fault in self.store.damaged().items():
            self._observers.event(
                self.progress.step, "damaged", f"the checkpoint of step {step} is left out: {fault}"
            )

    def _is_best(self, scores: Mapping[str, float]) -> bool:
        """Note the scores of a validation; return whether they are the best so far."""
        self._observers.validation(self.progress.step, scores)
        score = scores.get("bits_per_byte", math.inf)
        if not score < self.progress.best_score:
            return False
        self.progress = replace(self.progress, best_step=self.progress.step, best_score=score)
        return True

    def _roll_back(self) -> None:
        """Go back before the spike, and past the rows that led to it."""
        spiked, onset = self.progress, self.guard.onset
        self._observers.event(spiked.step, "spike", f"began at step {onset}")
        self.store.wait(spiked)
        step = self.store.newest(before=onset)
        self._say_what_is_damaged()
        if step is None:
            raise TrainingError(
                f"step {spiked.step}: the loss spiked from step {onset} on, and no checkpoint is "
                "left from before; raise checkpoint.keep, or start anew with a lower learning rate"
            )
        back = self.store.load(step, self.trainer.tensors())
        self.guard.load(back.guard)
        self.progress = replace(
            back,
            next_row=spiked.next_row,
            seconds=spiked.seconds,
            skipped=(*back.skipped, (back.next_row, spiked.next_row)),
            guard=self.guard.state(),
        )
        self.store.drop_after(step)
        if self.world.is_first:  # so that a run resumed from here leaves out the same rows
            self.progress.write(checkpoint_folder(self._folder, step))
        self._observers.event(
            step, "rollback", f"rows {back.next_row} to {spiked.next_row - 1} are left out"
        )


def check_new(run: Path) -> None:
    """Raise CheckpointError if ``run`` holds a run already."""
    if (run / CONFIG).is_file() or checkpoint_steps(run):
        raise CheckpointError(
            f"{run}: expected no run there, found one; continue it with --resume, or remove the "
            "folder to start anew"
        )


def _check_corpus(run: Path, step: int, corpus: Corpus) -> None:
    """Refuse a corpus other than that of the checkpoint to go on from."""
    began = Progress.read(checkpoint_folder(run, step)).corpus
    if began != corpus.digest:
        raise CheckpointError(
            f"data.corpus: expected the corpus {began[:12]} that the run began with, got "
            f"{corpus.digest[:12]}; give its folder, or start another run"
        )


def _check_resumable(config: RunConfig, run: Path) -> None:
    """Refuse a config under which the steps already done would have been others."""
    if not (run / CONFIG).is_file():
        raise CheckpointError(
            f"{run}: expected a run to continue, found none; start without --resume"
        )
    kept = load_config(run / CONFIG)
    done = max(checkpoint_steps(run), default=0)
    differing = {
        name: values
        for name, values in differences(kept, config).items()
        if not name.startswith(_FREE)
    }
    # Another length is the same run until either's decay, or its long rows, begin.
    if done <= min(one.schedule.first_change for one in (kept, config)):
        for name in ("steps", "decay", "short_until"):
            differing.pop(f"schedule.{name}", None)
    if differing:
        name, (before, now) = next(iter(differing.items()))
        more = f" (and {len(differing) - 1} more fields)" if len(differing) > 1 else ""
        raise ConfigError(
            f"{name}: expected {before!r}, with which the run in {run} did its {done} steps, got "
            f"{now!r}{more}; resume with {run / CONFIG}, or start another run"
        )
