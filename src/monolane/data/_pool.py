"""Tasks of preparation in processes of their own, and a bar that shows how far they are.

Not datatrove's executor (0.10.1): where a worker is killed, for lack of memory say, it waits for
that task for ever; here it is an error, and what is done is kept. Nor can it show progress but by
its log, or end its workers with a killed parent. Not a fork: the parent may hold torch's threads.
So a script that calls ``prepare`` needs the usual ``if __name__ == "__main__":``.
"""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from monolane._progress import Report
from monolane.data._prepare_state import Work
from monolane.errors import DataError

if TYPE_CHECKING:
    from monolane.data._stages import Stage


class Pool:
    """Worker processes for one preparation; they end with it, however it ends."""

    def __init__(self, work: Work, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._work = work
        # Nothing is ever sent: closed by us, or with us, the pipe ends the workers.
        self._reader, self._writer = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            workers, context, initializer=_begin, initargs=(work, self._reader)
        )

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._writer.close()
        self._executor.shutdown(cancel_futures=True)
        self._writer.close()
        self._reader.close()

    def run(self, stage: "Stage", progress: Report) -> None:
        """Run the tasks of a stage that are not done yet."""
        waiting = [rank for rank in range(stage.tasks) if not self._work.is_done(stage.name, rank)]
        done = stage.tasks - len(waiting)
        progress(stage.name, done, stage.tasks)
        futures = [self._executor.submit(_task, stage, rank) for rank in waiting]
        try:
            for future in as_completed(futures):
                future.result()
                done += 1
                progress(stage.name, done, stage.tasks)
        except BrokenProcessPool:
            raise DataError(
                f"{stage.name}: expected every process to live, but one was ended from outside "
                "(out of memory?); run the same command again with fewer --processes: what is done "
                "is kept"
            ) from None


_WORK: Work | None = None  # of a worker process


def _begin(work: Work, parent: "Connection[None, None]") -> None:
    """Set a worker process up, before datatrove is imported in it."""
    global _WORK
    _WORK = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    os.environ["TQDM_DISABLE"] = "1"
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    from loguru import logger
    from tqdm import tqdm

    logger.disable("datatrove")
    # Its own lock is a named semaphore, which a killed process leaves behind, with a warning.
    tqdm.set_lock(threading.RLock())


def _watch(parent: "Connection[None, None]") -> None:
    """End this process when its parent says so, or is gone."""
    parent.poll(None)
    os.kill(os.getpid(), signal.SIGKILL)


def _task(stage: "Stage", rank: int) -> None:
    assert _WORK is not None
    _WORK.finish(stage.name, rank, stage.run(_WORK, rank) or {})
