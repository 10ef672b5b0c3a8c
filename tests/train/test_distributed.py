"""Two processes on CPUs: the same gradients as one, and the same bits after being killed.

Each start of torchrun takes some ten seconds, so a few starts prove several things each.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from monolane.train import RunConfig, load_config, read_weights, train_run
from monolane.train._checkpoints import checkpoint_steps
from monolane.train._inputs import open_blend, open_corpus
from monolane.train._process_group import open_world

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


def _train(
    corpus: Path, run: Path, *options: str, hold: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a training, which stands still behind a step, if it is to be killed before."""
    settings = [part for one in _settings(corpus) for part in ("--set", one)]
    start = ["-m", "monolane"]
    if hold is not None:
        start = [str(Path(__file__).with_name("held.py")), f"{hold}"]
    return _start(*start, "train", "tiny", str(run), *settings, *options)


def _lines(run: Path) -> list[dict[str, Any]]:
    path = run / "log.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _curve(run: Path) -> dict[int, tuple[float, float]]:
    """Loss and norm by step, with the seven digits that the journal keeps."""
    return {line["step"]: (line["loss"], line["norm"]) for line in _lines(run) if "loss" in line}


def _wait_for(run: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _LIMIT
    while max(_curve(run), default=0) < step:
        assert process.poll() is None, process.communicate()[1].decode()[-4000:]
        assert time.monotonic() < until
        time.sleep(0.005)


def _workers(process: subprocess.Popen[bytes]) -> list[int]:
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def _kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


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


def test_killed_at_random_the_curve_is_bit_identical(corpus: Path, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1000)
    draw = random.Random(seed)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    _finish(_train(corpus, whole))
    assert sorted(_curve(whole)) == list(range(1, 41))

    first, second = draw.randrange(3, 18), draw.randrange(21, 36)
    process = _train(corpus, killed, hold=first + 4)
    _wait_for(killed, first, process)
    _kill([draw.choice(_workers(process))])  # one rank: torchrun ends the other
    process.communicate(timeout=_LIMIT)
    assert process.returncode != 0

    process = _train(corpus, killed, "--resume", hold=second + 4)
    _wait_for(killed, second, process)
    _kill([*_workers(process), process.pid])  # all at once
    process.communicate(timeout=_LIMIT)
    kept = checkpoint_steps(killed)[-1]

    _finish(_train(corpus, killed, "--resume"))
    assert _curve(killed) == _curve(whole), f"seed {seed}: killed at {first}, {second}"
    expected, got = read_weights(whole, 40), read_weights(killed, 40)
    assert all(torch.equal(expected[name], got[name]) for name in expected), f"seed {seed}"
    assert kept % 10 == 0

    _resume_alone(corpus, whole, tmp_path)


def _resume_alone(corpus: Path, whole: Path, folder: Path) -> None:
    """Go on with one process from what two have kept: the same rows, the same curve."""
    import shutil

    alone = folder / "alone"
    shutil.copytree(whole, alone)
    for step in checkpoint_steps(alone)[1:]:
        shutil.rmtree(alone / "checkpoints" / f"step-{step:08d}")
    (start,) = checkpoint_steps(alone)
    assert start == 20
    losses: dict[int, float] = {}

    class Ear:
        def step(self, record: Any) -> None:
            losses[record.step] = record.loss

        def validation(self, step: int, scores: Any) -> None: ...
        def event(self, step: int, kind: str, text: str) -> None: ...
        def close(self) -> None: ...

    config = load_config(alone / "config.toml")
    train_run(config, alone, lambda start: (Ear(),), resume=True)
    expected = _curve(whole)
    assert sorted(losses) == list(range(start + 1, 41))
    # The first step reads the same weights and rows; its sums are rounded in another order.
    assert losses[start + 1] == pytest.approx(expected[start + 1][0], rel=4 * _EPSILON * 512**0.5)
    # AdamW's normalised steps widen that: 1e-7 of a gradient, over 20 steps.
    assert [losses[step] for step in sorted(losses)] == pytest.approx(
        [expected[step][0] for step in sorted(losses)], rel=1e-3
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
