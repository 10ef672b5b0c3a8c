"""The launch scripts: checked by shellcheck, and run with stand-ins for ssh and Slurm."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "training"


def test_shellcheck_has_nothing_to_say() -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("needs shellcheck: apt-get install shellcheck")
    scripts = sorted(map(str, FOLDER.iterdir()))
    assert len(scripts) == 2
    subprocess.run([shellcheck, *scripts], check=True)


def _command(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


def _slurm(folder: Path, *, ends: int) -> "subprocess.CompletedProcess[str]":
    """Run the Slurm script on 'three nodes' whose launchers end with a status."""
    bin_ = folder / "bin"
    bin_.mkdir()
    _command(
        bin_,
        "scontrol",
        f'[[ $1 == show ]] && printf "first\\nsecond\\n" || echo "$@" >{folder}/queue',
    )
    _command(bin_, "srun", f'printf "%s\\n" "$@" >{folder}/srun; SLURM_NODEID=2 "${{@:2}}"')
    _command(bin_, "monolane", f'printf "%s\\n" "$@" >{folder}/monolane; exit {ends}')
    environment = {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_JOB_ID": "41007",
        "SLURM_GPUS_ON_NODE": "4",
    }
    command = ["bash", str(FOLDER / "slurm.sbatch"), "my config.toml", "run", "--restarts", "9"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_under_slurm_each_node_has_a_launcher(tmp_path: Path) -> None:
    assert _slurm(tmp_path, ends=0).returncode == 0
    arguments = (tmp_path / "monolane").read_text().splitlines()
    assert arguments == [
        *("launch", "my config.toml", "run", "--restarts", "9", "--nodes", "3"),
        *("--address", "first:29507", "--processes", "4", "--grace", "300", "--node", "2"),
    ]
    assert not (tmp_path / "queue").exists()


def test_under_slurm_a_stopped_run_is_queued_again_and_a_failed_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "stopped").mkdir()
    (tmp_path / "failed").mkdir()
    assert _slurm(tmp_path / "stopped", ends=128 + signal.SIGUSR1).returncode == 0
    assert (tmp_path / "stopped" / "queue").read_text() == "requeue 41007\n"
    assert _slurm(tmp_path / "failed", ends=1).returncode == 1
    assert not (tmp_path / "failed" / "queue").exists()


def _free_port() -> int:
    """Return a port that nobody is given by chance before it is used: below those of the system."""
    while True:
        port = random.randrange(20_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _losses(run: Path) -> dict[int, float]:
    path = run / "log.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    values = [json.loads(line) for line in lines if line.endswith("\n")]
    return {value["step"]: value["loss"] for value in values if "loss" in value}


def _rank(run: Path, rank: int) -> int:
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            here = f"{run}".encode() in (path / "cmdline").read_bytes()
            if here and f"RANK={rank}".encode() in (path / "environ").read_bytes().split(b"\0"):
                return int(path.name)
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.slow  # four launchers and torchruns: a minute or two where others compute
def test_two_nodes_over_ssh_restart_together(tmp_path: Path) -> None:
    """ssh is a shell on this machine; both 'nodes' lose their attempt when one loses a rank."""
    pytest.importorskip("torch")
    import numpy as np

    from monolane.data import Encoded, write_corpus

    monolane_demo = Path(__file__).parents[2] / "src" / "monolane" / "demo"
    documents = [Encoded(np.array([1, *range(10, 300), 2]), 1000) for _ in range(40)]
    write_corpus(tmp_path / "corpus", monolane_demo, {"up": (documents, [])})
    _command(tmp_path, "ssh", 'exec bash -c "$3"')
    settings = [f"data.corpus={tmp_path}/corpus", "log.tensorboard=false", "schedule.steps=100"]
    settings += ["model.vocab_size=2048"]
    run = tmp_path / "run"
    command = [str(FOLDER / "over_ssh.sh"), "127.0.0.1 localhost", "tiny", str(run)]
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PORT": f"{_free_port()}",
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
    }
    options = [part for value in settings for part in ("--set", value)]
    process = subprocess.Popen(
        [*command, *options], env=environment, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 900
    while process.poll() is None and max(_losses(run), default=0) < 12:  # of 100: amid the run
        assert time.monotonic() < until
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[1]
    os.kill(_rank(run, 1), signal.SIGKILL)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    assert list(_losses(run)) == list(range(1, 101))
    for node in (0, 1):
        lines = (run / "attempts" / f"node-{node}.jsonl").read_text().splitlines()
        reasons = [json.loads(line)["reason"] for line in lines]
        assert reasons[-1] == "finished"
        assert len(reasons) == 2
        if node == 1:
            assert reasons[0] == "rank 1 was killed by SIGKILL"
