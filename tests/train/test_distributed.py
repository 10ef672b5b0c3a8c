"""Two processes on CPUs: the same gradients as one, and the same bits after being killed.

Each start of torchrun takes some ten seconds, so a few starts prove several things each.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from monolane.train import Fleet, RunConfig, launch_run, load_config, train_run
from monolane.train._checkpoints import checkpoint_steps
from monolane.train._inputs import open_blend, open_corpus
from monolane.train._launch.snapshot import snapshot_environment, take_snapshot
from monolane.train._process_group import open_world

from .watching import assert_same_end, attempts, losses, ranks, wait_for

pytestmark = pytest.mark.slow

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_EPSILON = 2.0**-23  # float32
_LIMIT = 600.0  # seconds for one start

# The thread of gloo is the last to hold the tensor of the first process: the second one joins the
# sum half a second late. Letting go of it takes a second of Python.
_LEAVING = """
import os, time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from monolane.train._process_group import leave

class Held(torch.Tensor):
    def __del__(self):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            pass

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))  # keeps the group, as sharded weights do
values = torch.ones(4).as_subclass(Held)
time.sleep(0.5 * dist.get_rank())
options = dist.AllreduceOptions()
options.asyncOp = True
dist.group.WORLD.allreduce([values], options)
del values
dist.barrier()
leave()
"""


def _settings(corpus: Path) -> list[str]:
    return [f"data.corpus={corpus}", "log.tensorboard=false", "data.weights.up=2"]


def _start(*command: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    return subprocess.Popen(
        [*_TORCHRUN, *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _finish(process: subprocess.Popen[bytes]) -> None:
    try:
        _, errors = process.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the ranks, which hang on their own
        raise
    assert process.returncode == 0, errors.decode()[-4000:]


# How the journal of a run is kept: behind the step that its attempt is killed at it stands still.
_HELD_JOURNAL = """

def _held(journal: Journal, record: StepRecord, note=Journal.step) -> None:
    import sys, time
    from pathlib import Path

    note(journal, record)
    attempt = len(list((Path(sys.argv[4]) / "attempts").glob("node-0-*.log")))
    if record.step == dict(enumerate({steps}, 1)).get(attempt):
        time.sleep(3600)

Journal.step = _held
"""


def _hold(tree: Path, steps: tuple[int, ...]) -> None:
    """Have each attempt of a run from this tree wait behind a step, so that it is not over."""
    path = tree / "snapshot" / "code" / "monolane" / "train" / "_journal.py"
    path.chmod(0o644)
    path.write_text(path.read_text() + _HELD_JOURNAL.replace("{steps}", repr(steps)))


def _break(tree: Path) -> None:
    """What an edit in the middle of a run may do."""
    path = tree / "snapshot" / "code" / "monolane" / "train" / "_run.py"
    path.chmod(0o644)
    path.write_text("this is not Python\n")


def _launch(run: Path, code: Path, corpus: Path) -> "subprocess.Popen[str]":
    """Start 'monolane launch' from a tree that is not ours, so that a test may break it."""
    options = [part for value in _settings(corpus) for part in ("--set", value)]
    command = [sys.executable, "-m", "monolane", "launch", "tiny", "-o", str(run), *options]
    environment = snapshot_environment(code, {**os.environ, "OMP_NUM_THREADS": "1"})
    return subprocess.Popen(
        [*command, "--processes", "2"], env=environment, stderr=subprocess.PIPE, text=True
    )


def test_gradients_are_those_of_one_process(corpus: Path, tmp_path: Path) -> None:
    two_ranks = Path(__file__).with_name("two_ranks.py")
    _finish(_start(str(two_ranks), str(tmp_path / "two.pt"), *_settings(corpus)))
    got = torch.load(tmp_path / "two.pt")
    code: dict[str, Any] = {"__name__": "two_ranks"}
    exec(compile(two_ranks.read_text(), str(two_ranks), "exec"), code)
    config = load_config("tiny", _settings(corpus))
    with open_world(config) as world:
        expected = code["gradients"](config, world)
        muon = load_config("tiny", [*_settings(corpus), "optimizer.name=muon"])
        stepped = code["weights"](muon, world, 1)
    # Four rows are one pass in either case, so the terms have the same bits; their sum of two is
    # rounded once, and the division by the number of processes is a power of two.
    for kind in ("sharded", "copies"):
        assert got[kind].keys() == expected.keys()
        for name in expected:
            difference = torch.linalg.vector_norm(got[kind][name] - expected[name])
            assert difference <= 2 * _EPSILON * torch.linalg.vector_norm(expected[name]), name
    # Muon's directions are those of one process: each holds whole lanes. Its five rounds widen a
    # rounding of the gradient; the step itself is 3e-3 * 0.2 in size.
    for name in stepped:
        torch.testing.assert_close(got["muon"][name], stepped[name], rtol=1e-5, atol=1e-6, msg=name)


def test_killed_at_random_the_end_is_bit_identical_whatever_became_of_the_tree(
    corpus: Path, tmp_path: Path
) -> None:
    """First one rank, at which torchrun ends the other, then all at once; the launch goes on."""
    seed = random.SystemRandom().randrange(1000)
    draw = random.Random(seed)
    first, second = draw.randrange(3, 18), draw.randrange(23, 36)
    run, whole, tree = tmp_path / "run", tmp_path / "whole", tmp_path / "tree"
    take_snapshot(tree, "", [])
    _hold(tree, (first + 4, second + 4))
    process = _launch(run, tree, corpus)

    def wait(step: int) -> None:
        wait_for(lambda: process.poll() is not None or max(losses(run), default=0) >= step)
        assert process.poll() is None, process.communicate()[1]

    wait(first)
    _break(tree)
    victim = draw.randrange(2)
    os.kill(ranks(run)[victim], signal.SIGKILL)
    wait(second)
    for pid in ranks(run).values():
        os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=_LIMIT)
    assert process.returncode == 0, errors

    by_rank, by_torchrun, last = attempts(run)
    assert by_rank["reason"] == f"rank {victim} was killed by SIGKILL", seed
    assert by_torchrun["reason"].endswith(" was killed by SIGKILL"), seed
    assert (last["status"], last["last"]) == (0, 40)
    assert by_rank["last"] == by_torchrun["first"]
    assert 0 < by_torchrun["last"] == last["first"] < 40
    assert last["first"] % 10 == 0
    assert launch_run("tiny", whole, _settings(corpus), fleet=Fleet(processes=2)) == 0
    assert_same_end(run, whole, 40)
    _resume_alone(whole, tmp_path)


def _resume_alone(whole: Path, folder: Path) -> None:
    """Go on with one process from what two have kept: the same rows, the same curve."""
    import shutil

    alone = folder / "alone"
    shutil.copytree(whole, alone)
    for step in checkpoint_steps(alone)[1:]:
        shutil.rmtree(alone / "checkpoints" / f"step-{step:08d}")
    (start,) = checkpoint_steps(alone)
    assert start == 20
    got: dict[int, float] = {}

    class Ear:
        def step(self, record: Any) -> None:
            got[record.step] = record.loss

        def validation(self, step: int, scores: Any) -> None: ...
        def event(self, step: int, kind: str, text: str) -> None: ...
        def close(self) -> None: ...

    config = load_config(alone / "config.toml")
    train_run(config, alone, lambda start: (Ear(),), resume=True)
    expected = losses(whole)
    assert sorted(got) == list(range(start + 1, 41))
    # The first step reads the same weights and rows; its sums are rounded in another order.
    assert got[start + 1] == pytest.approx(expected[start + 1], rel=4 * _EPSILON * 512**0.5)
    # AdamW's normalised steps widen that: 1e-7 of a gradient, over 20 steps.
    assert [got[step] for step in sorted(got)] == pytest.approx(
        [expected[step] for step in sorted(got)], rel=1e-3
    )


def test_a_thread_that_lets_go_late_does_not_abort_the_process(tmp_path: Path) -> None:
    """With destroy_process_group() alone, two of three such ends were an abort."""
    (tmp_path / "leaving.py").write_text(_LEAVING)
    for _ in range(2):
        _finish(_start(str(tmp_path / "leaving.py")))


def test_every_world_size_reads_the_same_rows(tiny: RunConfig) -> None:
    blend = open_blend(tiny, open_corpus(tiny))
    for step in (0, 7, 39):
        whole = blend.rows(step * 8, 8)
        for world in (2, 4, 8):
            parts = [blend.rows(step * 8, 8, rank=rank, world=world) for rank in range(world)]
            for field in ("ids", "targets", "documents"):
                joined = np.concatenate([getattr(part, field) for part in parts])
                assert np.array_equal(joined, getattr(whole, field))
