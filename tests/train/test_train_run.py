"""Whole runs in one process: the same bits whether or not something disturbed them."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from monolane.data import Encoded, write_corpus
from monolane.errors import CheckpointError, ConfigError, DataError, TrainingError
from monolane.train import Observer, RunConfig, StepRecord, read_weights, train_run
from monolane.train._checkpoints import checkpoint_steps
from monolane.train._guard import SpikeGuard


class Ear:
    """Observer that remembers, and may act after a step."""

    def __init__(self, at: int = -1, act: Callable[[], object] = lambda: None) -> None:
        self.records: dict[int, StepRecord] = {}
        self.events: list[tuple[int, str]] = []
        self.scores: dict[int, Mapping[str, float]] = {}
        self.closed = False
        self._at, self._act = at, act

    def __call__(self, start: int) -> Sequence[Observer]:
        return (self,)

    def step(self, record: StepRecord) -> None:
        self.records[record.step] = record
        if record.step == self._at:
            self._act()

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        self.scores[step] = scores

    def event(self, step: int, kind: str, text: str) -> None:
        self.events.append((step, kind))

    def close(self) -> None:
        self.closed = True

    def curve(self) -> dict[int, tuple[float, float]]:
        return {step: (record.loss, record.norm) for step, record in self.records.items()}


class Killed(BaseException):
    """Stands for SIGKILL: nothing gets to tidy up."""


def _kill() -> None:
    raise Killed


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunConfig, Ear]:
    """A run that nothing disturbed, with a validation every 16 steps."""
    from monolane.train import load_config

    settings = [f"data.corpus={corpus}", "log.tensorboard=false", "validation.every=16"]
    config = load_config("tiny", [*settings, "data.weights.up=2", "data.weights.down=1"])
    folder, ear = tmp_path_factory.mktemp("whole") / "run", Ear()
    train_run(config, folder, ear)
    return folder, config, ear


def _same_weights(one: Path, other: Path, step: int) -> bool:
    expected, got = read_weights(one, step), read_weights(other, step)
    assert expected.keys() == got.keys()
    return all(torch.equal(expected[name], got[name]) for name in expected)


def test_a_run_learns_and_says_so(whole: tuple[Path, RunConfig, Ear]) -> None:
    folder, _, ear = whole
    losses = [record.loss for record in ear.records.values()]
    assert list(ear.records) == list(range(1, 41))
    assert losses[0] == pytest.approx(6.24, abs=0.1)  # ln 512
    assert losses[-1] < losses[0] - 0.5
    last = ear.records[40]
    assert last.tokens == 40 * 8 * 64
    assert last.mfu is None  # the peak of a CPU is not known
    assert last.learning_rate == pytest.approx(3e-3 / 13)  # 12 steps of decay, the last one
    assert set(ear.scores) == {16, 32, 40}
    assert ear.scores[40]["bits_per_byte"] < ear.scores[16]["bits_per_byte"]
    assert set(ear.scores[40]) == {"bits_per_byte", "bits_per_byte/up"}
    assert (ear.events[0], ear.events[-1]) == ((0, "start"), (40, "end"))
    assert ear.closed
    assert checkpoint_steps(folder) == [30, 32, 40]  # those due, and the better ones
    assert (30, "checkpoint") in ear.events


def test_killed_twice_it_ends_in_the_same_bits(
    whole: tuple[Path, RunConfig, Ear], tmp_path: Path
) -> None:
    _, config, undisturbed = whole
    run, ears = tmp_path / "run", [Ear(7, _interrupt), Ear(23, _kill), Ear()]
    with pytest.raises(KeyboardInterrupt):
        train_run(config, run, ears[0])
    assert checkpoint_steps(run)[-1] == 8  # asked after step 7, it ended the next
    with pytest.raises(Killed):
        train_run(config, run, ears[1], resume=True)
    train_run(config, run, ears[2], resume=True)
    assert ears[1].events[0] == (8, "resume")
    # Steps after the last whole checkpoint, at 20, are lost and done again.
    assert min(ears[2].records) == 21
    curve = ears[0].curve() | ears[1].curve() | ears[2].curve()
    assert curve == undisturbed.curve()  # bit for bit
    assert ears[2].scores[40] == undisturbed.scores[40]
    assert _same_weights(whole[0], run, 40)


def test_a_second_run_is_not_started_over_the_first(whole: tuple[Path, RunConfig, Ear]) -> None:
    folder, config, _ = whole
    with pytest.raises(CheckpointError, match="found one; continue it with --resume"):
        train_run(config, folder, Ear())


def test_nothing_to_resume_is_said(tiny: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="found none; start without --resume"):
        train_run(tiny, tmp_path / "none", Ear(), resume=True)


def test_another_run_cannot_be_resumed(whole: tuple[Path, RunConfig, Ear], tmp_path: Path) -> None:
    folder, config, _ = whole
    with pytest.raises(ConfigError, match=r"seed: expected 0, with which the run in .* 40 steps"):
        train_run(replace(config, seed=1), folder, Ear(), resume=True)
    longer = replace(config, schedule=replace(config.schedule, steps=80))
    with pytest.raises(ConfigError, match=r"schedule\.steps: expected 40, with which .* got 80"):
        train_run(longer, folder, Ear(), resume=True)


def test_what_is_refused_leaves_the_folder_as_it_was(
    tiny: RunConfig, corpus: Path, tmp_path: Path
) -> None:
    run, folder = tmp_path / "run", tmp_path / "other"
    none = replace(tiny, validation=replace(tiny.validation, every=1, tasks=("nonsense",)))
    with pytest.raises(ConfigError, match=r"validation\."):
        train_run(replace(none, data=replace(none.data, sequence_length=4)), run, Ear())
    assert not run.exists()
    config = replace(tiny, schedule=replace(tiny.schedule, steps=2, warmup=0, decay=0))
    train_run(config, run, Ear(), until=1)
    kept = (run / "config.toml").read_bytes()
    documents = [Encoded(np.array([1, *range(10, 200), 2]), 800)]
    write_corpus(folder, corpus, dict.fromkeys(("up", "down"), (documents, documents)))
    other = replace(config, data=replace(config.data, corpus=str(folder)))
    with pytest.raises(CheckpointError, match=r"data\.corpus: expected the corpus .* that the run"):
        train_run(other, run, Ear(), resume=True)
    foreign = replace(config.validation, every=1, sources=("sideways",))
    with pytest.raises(ConfigError, match="sideways"):
        train_run(replace(config, validation=foreign), run, Ear(), resume=True)
    assert (run / "config.toml").read_bytes() == kept
    assert train_run(config, run, Ear(), resume=True).step == 2


def test_a_run_may_be_lengthened_before_its_decay(tiny: RunConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train_run(tiny, run, Ear(3, _interrupt))
    ear = Ear()
    other = replace(tiny, schedule=replace(tiny.schedule, steps=6, decay=2))
    assert train_run(other, run, ear, resume=True).step == 6
    assert sorted(ear.records) == [5, 6]  # asked after step 3, it ended step 4


def test_a_spike_is_left_out_and_stays_left_out(
    tiny: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rollback the bad rows are skipped, also by a run that is killed right after it."""
    tiny = replace(tiny, schedule=replace(tiny.schedule, steps=20, decay=4))
    observe = SpikeGuard.observe

    def spiked(guard: SpikeGuard, record: StepRecord) -> bool:
        if record.step == 14 and record.tokens == 14 * 8 * 64 and not guard.state()["rollbacks"]:
            guard._rollbacks.append(14)
            guard.onset = 13
            return True
        return observe(guard, record)

    monkeypatch.setattr(SpikeGuard, "observe", spiked)
    ear, run = Ear(), tmp_path / "run"
    progress = train_run(tiny, run, ear)
    assert (14, "spike") in ear.events
    assert (10, "rollback") in ear.events
    # Four steps' rows were read for nothing: 80 to 111.
    assert progress.skipped == ((80, 112),)
    assert progress.next_row == 20 * 8 + 32
    assert progress.tokens == 20 * 8 * 64

    killed, again = Ear(11, _kill), tmp_path / "again"
    calls = 0

    def second_time() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # step 11 again, after the rollback and before any new checkpoint
            _kill()

    killed._act = second_time
    with pytest.raises(Killed):
        train_run(tiny, again, killed)
    resumed = Ear()
    assert train_run(tiny, again, resumed, resume=True).skipped == ((80, 112),)
    assert (14, "spike") not in resumed.events
    assert all(resumed.curve()[step] == ear.curve()[step] for step in resumed.curve())
    assert _same_weights(run, again, 20)


def test_a_run_that_cannot_go_back_says_so(
    tiny: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always(guard: SpikeGuard, record: StepRecord) -> bool:
        guard.onset = 0
        return True

    monkeypatch.setattr(SpikeGuard, "observe", always)
    ear = Ear()
    with pytest.raises(TrainingError, match="no checkpoint is left from before; raise checkpoint"):
        train_run(tiny, tmp_path / "run", ear)
    assert ear.closed


def test_missing_and_misfit_data_is_refused(tiny: RunConfig, tmp_path: Path) -> None:
    def run(**fields: object) -> None:
        config = replace(tiny, data=replace(tiny.data, **fields))  # type: ignore[arg-type]
        train_run(config, tmp_path / "run", Ear())

    with pytest.raises(ConfigError, match="data.corpus: expected the folder of a prepared corpus"):
        run(corpus="")
    with pytest.raises(DataError, match="expected a prepared corpus"):
        run(corpus=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="data.stage: expected one of no stage at all, as the"):
        run(weights={}, stage="two")
    small = replace(tiny, model=replace(tiny.model, vocab_size=256))
    with pytest.raises(ConfigError, match="model.vocab_size: expected at least the 512 tokens"):
        train_run(small, tmp_path / "run", Ear())
