"""Who trains a run: one launcher, or one ``monolane train``, at a time in each folder.

The lock is a file of the run, ``attempts/node-<n>.lock``, locked by the kernel, which lets go when
its holder dies in whatever way. A launcher holds its node's; ``train`` without one holds node 0's.
The processes of a launcher end with it: they watch it, keep their state and stop.
"""

import fcntl
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from monolane._env import LAUNCHER
from monolane.errors import TrainingError

ATTEMPTS = "attempts"  # folder below the run's
_GRACE = 60.0  # seconds that a process may take to keep its state when its launcher is gone


@contextmanager
def locked(path: Path, launcher: int = 0) -> Iterator[int]:
    """Hold the lock file ``path``, and give its descriptor; who inherits that holds it too.

    TrainingError where somebody else does, unless that is ``launcher``, a process id.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(file, 32, 0).strip()
            if not launcher or holder != f"{launcher}".encode():
                raise TrainingError(
                    f"{path.parent.parent}: expected nobody to run it, but a launcher, a training "
                    f"or processes that they left behind do (process {holder.decode() or '?'}); "
                    f"stop them first (their lock is {path.name}: see 'fuser {path}')"
                ) from None
        yield file
    finally:
        os.close(file)


@contextmanager
def held(run: Path) -> Iterator[None]:
    """Hold a run while this process trains it, and end with its launcher if it has one."""
    launcher = LAUNCHER.get()
    if launcher:
        watch(launcher, _stop)
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    folder = run / ATTEMPTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "node-0.lock"
    try:
        with locked(path, launcher):
            try:
                yield
            except BaseException:
                if {*run.iterdir()} == {folder} and {*folder.iterdir()} == {path}:
                    path.unlink()  # a config that cannot run leaves nothing behind
                raise
    finally:
        for empty in (folder, run):
            with suppress(OSError):
                empty.rmdir()


def watch(process: int, gone: Callable[[], None]) -> None:
    """Call ``gone``, in a thread, when a process has ended (Linux; elsewhere nothing is done)."""
    if not hasattr(os, "pidfd_open"):
        return
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        gone()
        return

    def wait() -> None:
        select.select([descriptor], [], [])
        os.close(descriptor)
        gone()

    threading.Thread(target=wait, name="monolane-launcher", daemon=True).start()


def _stop() -> None:
    """Ask this process to end its step and keep its state; see that it ends."""
    os.kill(os.getpid(), signal.SIGTERM)
    killer = threading.Timer(_GRACE, os.kill, (os.getpid(), signal.SIGKILL))
    killer.daemon = True
    killer.start()
