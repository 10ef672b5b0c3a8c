"""What Transformers' Trainer is told, and tells, between the steps of a fine-tuning.

It has callbacks for that. This one drops gradients that are not finite, seals checkpoints, keeps
the state when a signal asks to stop, scores held-out chats, and passes each step on to journal,
terminal and board, as pre-training does.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from monolane.train import Observers, StepRecord, write_seal
from monolane.tune._run_state import Gradients, checkpoint_path

Report = Callable[[int, dict[str, float]], None]  # (step, what the Trainer logs of it)
Score = Callable[[Any], dict[str, float]]  # of the model, by name


class Watch(TrainerCallback):
    """Looks after the steps of one run."""

    def __init__(
        self,
        run: Path,
        observers: Observers,
        asked: Callable[[], int],
        tokens_per_step: float,
        report: Report | None,
        score: Score | None,
        score_every: int,
    ) -> None:
        self.losses: list[float] = []  # of each step since the start or the resumption
        self._run = run
        self._observers = observers
        self._asked = asked
        self._tokens_per_step = tokens_per_step  # on average: rows are packed unevenly
        self._report = report
        self._score = score
        self._score_every = score_every
        self._gradients = Gradients()
        self._skipped = False
        self._began = time.monotonic()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note when a step begins."""
        self._began = time.monotonic()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Drop a gradient that is not finite."""
        step = state.global_step + 1
        self._skipped = not self._gradients.usable(kwargs["model"].parameters(), step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score where it is due; keep the state and stop where a signal asked for it."""
        step, last = state.global_step, state.global_step == state.max_steps
        if self._skipped:
            text = "the gradient is not finite: nothing was updated"
            self._observers.event(step, "skipped", text)
        due = self._score_every and step % self._score_every == 0
        if self._score is not None and (due or last):
            self._observers.validation(step, self._score(kwargs["model"]))
        if self._asked():
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Seal what was just written."""
        folder = checkpoint_path(self._run, state.global_step)
        write_seal(folder, [path for path in folder.rglob("*") if path.is_file()])
        self._observers.event(state.global_step, "checkpoint", "")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Take one step's log; the summary at the end has no loss of a step."""
        if "loss" not in (logs or {}):
            return
        self.losses.append(logs["loss"])
        seconds = max(time.monotonic() - self._began, 1e-9)
        self._observers.step(
            StepRecord(
                step=state.global_step,
                loss=logs["loss"],
                z_loss=0.0,
                norm=float(logs.get("grad_norm", 0.0)),
                learning_rate=logs["learning_rate"],
                tokens=round(state.global_step * self._tokens_per_step),
                tokens_per_s=self._tokens_per_step / seconds,
                mfu=None,
                seconds=seconds,
            )
        )
        if self._report is not None:
            self._report(state.global_step, logs)
