"""Who listens to a run, as its config says: journal, terminal, TensorBoard, Weights & Biases.

Both boards get the same names; a step that is done again after a restart or a rollback replaces
what was shown of it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monolane.errors import BackendError, MissingExtraError
from monolane.train._config import RunConfig
from monolane.train._journal import Journal
from monolane.train._record import Listeners, Observer, Observers, StepRecord
from monolane.train._terminal import Terminal

BOARD = "board"  # folder below the run's: tensorboard --logdir RUN/board


class TensorBoard:
    """Observer that writes TensorBoard's event files; ``start`` steps were done before."""

    def __init__(self, folder: Path, start: int) -> None:
        self._folder = str(folder / BOARD)
        self._last = start
        self._writer = _writer(self._folder, start + 1)

    def step(self, record: StepRecord) -> None:
        """Write a step's scalars."""
        if record.step <= self._last:
            self._writer.close()
            self._writer = _writer(self._folder, record.step)
        self._last = record.step
        for name, value in _scalars(record).items():
            self._writer.add_scalar(name, value, record.step)

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        """Write a validation's scalars."""
        for name, value in scores.items():
            self._writer.add_scalar(f"validation/{name}", value, step)

    def event(self, step: int, kind: str, text: str) -> None:
        """Write an event as text; what a checkpoint holds must not be lost by a kill after it."""
        self._writer.add_text(f"event/{kind}", text or kind, step)
        if kind == "checkpoint":
            self._writer.flush()

    def close(self) -> None:
        """Write out what is pending."""
        self._writer.close()


class WandB:
    """Observer that logs to Weights & Biases; one run there for the whole run, restarts included.

    ``WANDB_MODE=offline`` keeps it on this machine, for ``wandb sync`` later.
    """

    def __init__(self, folder: Path, project: str, config: Mapping[str, Any]) -> None:
        self._run = _wandb().init(
            project=project,
            id=_stable_id(folder),
            name=folder.resolve().name,
            dir=str(folder),
            config=dict(config),
            resume="allow",
        )
        # Its own step may never go back, ours does after a rollback: an axis like any other.
        self._run.define_metric("*", step_metric="step")

    def step(self, record: StepRecord) -> None:
        """Log a step."""
        self._run.log({"step": record.step, **_scalars(record)})

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        """Log a validation."""
        named = {f"validation/{name}": value for name, value in scores.items()}
        self._run.log({"step": step, **named})

    def event(self, step: int, kind: str, text: str) -> None:
        """Alert to what a person should see; the journal holds the rest."""
        if kind in ("spike", "rollback"):
            self._run.alert(title=f"{kind} at step {step}", text=text)

    def close(self) -> None:
        """Write out what is pending."""
        self._run.finish()


def standard_listeners(config: RunConfig, run: Path) -> Listeners:
    """Return what makes the observers of a run in folder ``run``, given the steps it has done.

    MissingExtraError or BackendError, before anything is written: a board that cannot be opened.
    """
    if os.environ.get("RANK", "0") == "0":
        check_boards(config.log.tensorboard, bool(config.log.wandb))

    def make(start: int) -> Sequence[Observer]:
        made = _observers(run, start, config.schedule.steps, config.log.tensorboard)
        if config.log.wandb:
            made.append(WandB(run, config.log.wandb, asdict(config)))
        return made

    return make


def run_observers(run: Path, start: int, steps: int, shown: bool) -> Observers:
    """Return who listens to another kind of run: its journal; terminal and board if ``shown``."""
    return Observers(_observers(run, start, steps, board=True) if shown else [Journal(run, start)])


def check_boards(tensorboard: bool = True, wandb: bool = False) -> None:
    """Raise MissingExtraError or BackendError where a board cannot be opened."""
    if tensorboard:
        _summary_writer()
    if wandb:
        _wandb()


def _observers(run: Path, start: int, steps: int, board: bool) -> list[Observer]:
    made: list[Observer] = [Journal(run, start), Terminal(steps)]
    return [*made, TensorBoard(run, start)] if board else made


def _writer(folder: str, purge: int) -> Any:
    """Open event files in which steps from ``purge`` on hide those of earlier files."""
    return _summary_writer()(folder, purge_step=purge, flush_secs=15)


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError("the board of a training run", "train") from None
    except Exception as error:  # protobuf has one of its own, in the versions that can raise it
        reason = str(error).strip().split("\n")[0]
        raise BackendError(
            "the board of a training run: expected a tensorboard that this environment's protobuf "
            f"runs, got: {reason}; pip install 'tensorboard<2.21' 'setuptools<82', or train "
            "without a board (--set log.tensorboard=false)"
        ) from error
    return SummaryWriter


def _wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("logging to Weights & Biases", "wandb") from None
    return wandb


def _scalars(record: StepRecord) -> dict[str, float]:
    scalars = {
        "train/loss": record.loss,
        "train/z_loss": record.z_loss,
        "train/gradient_norm": record.norm,
        "train/learning_rate": record.learning_rate,
        "train/tokens": record.tokens,
        "speed/tokens_per_s": record.tokens_per_s,
        "speed/seconds": record.seconds,
        "speed/waited_for_rows": record.waited,
    }
    more = {
        "speed/mfu": record.mfu,
        "memory/peak_bytes": record.memory,
        "memory/reserved_bytes": record.reserved,
    }
    return scalars | {name: value for name, value in more.items() if value is not None}


def _stable_id(folder: Path) -> str:
    """Return the id of the run at Weights & Biases, kept in the run's folder."""
    import secrets

    path = folder / "wandb-id"
    if not path.exists():
        path.write_text(secrets.token_hex(4) + "\n", encoding="ascii")
    return path.read_text(encoding="ascii").strip()
