"""Launches a run so that it ends by itself: isolated from the tree, started again after a crash.

The first launch keeps code and config in the run's folder; every process, also of later launches,
runs those, whatever the tree has become. One launcher at a time holds a node's part of a run
(``_lock.py``).
"""

import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from monolane.errors import ConfigError, TrainingError
from monolane.train._config import RunConfig, load_config, write_config
from monolane.train._launch.snapshot import SNAPSHOT, Snapshot, has_snapshot, take_snapshot
from monolane.train._launch.supervisor import Fleet, RestartPolicy, Supervisor
from monolane.train._lock import ATTEMPTS, locked
from monolane.train._loggers import check_boards
from monolane.train._run import CONFIG, disk_errors_told
from monolane.train._terminal import Terminal

_POLL = 0.25  # seconds between looks for the snapshot
_SNAPSHOT_WAIT = 600.0  # seconds that other nodes give the first one


def launch_run(
    name: str | Path,
    run: Path,
    overrides: Iterable[str] = (),
    *,
    fleet: Fleet | None = None,
    policy: RestartPolicy | None = None,
) -> int:
    """Train the config ``name`` in the folder ``run`` until it is done; return the exit status.

    The first launch keeps code and config in ``run``; each later one goes on from there and with
    those. 0: all steps are done; 128 + n: stopped by signal n, the state is kept. ConfigError where
    the config is another than the run's; TrainingError where the run fails again and again, or is
    being run already; CheckpointError where the disk refuses. A run that never began keeps no
    config: it may be launched with another.
    """
    fleet, policy = fleet or Fleet(), policy or RestartPolicy()
    config = load_config(name, overrides)
    if fleet.node == 0:
        check_boards(config.log.tensorboard, bool(config.log.wandb))
    run = run.resolve()
    with disk_errors_told(run, "launch again"), _node_held(run, fleet.node) as lock:
        about = _snapshot(run, config, fleet)

        def command() -> list[str]:
            there = ["--resume"] if (run / CONFIG).is_file() else []
            train = ["train", str(run / SNAPSHOT / "config.toml"), "--output", str(run), *there]
            return fleet.command(train)

        terminal = Terminal(config.schedule.steps)
        try:
            work = Path(about.folder)
            return Supervisor(run, work, command, fleet, policy, terminal, lock).supervise()
        finally:
            terminal.close()
            if fleet.node == 0 and not (run / CONFIG).is_file():  # it never began
                shutil.rmtree(run / SNAPSHOT, ignore_errors=True)


@contextmanager
def _node_held(run: Path, node: int) -> Iterator[int]:
    (run / ATTEMPTS).mkdir(parents=True, exist_ok=True)
    with locked(run / ATTEMPTS / f"node-{node}.lock") as lock:
        yield lock


def _snapshot(run: Path, config: RunConfig, fleet: Fleet) -> Snapshot:
    """Return the run's snapshot; the first node takes it where there is none."""
    if not has_snapshot(run):
        if fleet.node == 0:
            return take_snapshot(run, write_config(config), sys.argv)
        until = time.monotonic() + _SNAPSHOT_WAIT
        while not has_snapshot(run):
            if time.monotonic() > until:
                raise TrainingError(
                    f"{run}: expected a snapshot from node 0 within {_SNAPSHOT_WAIT:g} s, found "
                    "none; is the folder on a disk that all nodes share, and is node 0 launched?"
                )
            time.sleep(_POLL)
    about = Snapshot.read(run)
    if load_config(run / SNAPSHOT / "config.toml") != config:
        raise ConfigError(
            f"{run}: expected the config that the run began with, got another; launch it with "
            f"{run / SNAPSHOT / 'config.toml'}, or use another folder"
        )
    return about
