"""Ranks joined by TCP: killed, stopped, their links closed or cut, at random moments.

All ranks are on this host, each a process of its own behind a wire (rank_wire.py). A link that is
closed ends for both sides; of one that is cut nobody is told, and it is closed when the error has
been raised, as a host's keepalive would. Each time: is the right rank named, how soon, has the next
request the bits of the first, and are all threads and sockets given back? A rank that was killed is
started again first, one that was stopped goes on.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from far_ranks import KEY
from rank_wire import Link, Wire
from struck import DEMO, HANGS, PATIENCE, Outcome, Strike, ask, be_in

from monolane.cpu import CpuExecutor
from monolane.errors import BackendError
from monolane.executor_api import RankAddresses
from monolane.model import Weights

KINDS = ("kill", "stop", "close", "cut")
STAGES = ("joining", "prefill", "decode")


@dataclass(frozen=True)
class Struck(Outcome):
    """What came of a fault, and was left behind."""

    held: int  # threads and sockets of all ranks, more than before, seconds after that request
    error: str = ""  # where not all is well

    @property
    def left(self) -> int:
        """Threads and sockets that were not given back."""
        return self.held


class Host:
    """A rank in a process of its own, behind a wire."""

    def __init__(self) -> None:
        self._place = "127.0.0.1:0"
        self.start()
        self.wire = Wire(int(self._place.rsplit(":", 1)[1]))

    def start(self) -> None:
        """Start it where it was, or anywhere at first."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "monolane", "rank", "--listen", self._place, "--model", "demo"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"MONOLANE_RANK_KEY": KEY.decode()},
        )
        assert self.process.stdout is not None
        self._place = self.process.stdout.readline().split()[-1]

    def kill(self) -> None:
        """End it at once."""
        with self.process:
            self.process.kill()

    def close(self) -> None:
        """End rank and wire."""
        self.kill()
        self.wire.close()


class World:
    """Rank 0 in this process, and the others on hosts of their own."""

    def __init__(self, ranks: int, patience: float = PATIENCE) -> None:
        self.hosts = [Host() for _ in range(1, ranks)]
        self.addresses = tuple(host.wire.address for host in self.hosts)
        self.executor = CpuExecutor(
            Weights.open(DEMO),
            context=1024,
            slots=1,
            workers=ranks,
            ranks=RankAddresses(self.addresses, KEY),
            patience=patience,
        )
        self.wanted = ask(self.executor)
        self.before = self.held()

    def held(self) -> int:
        """Return how many threads and sockets all ranks hold."""
        for host in self.hosts:
            _ = host.wire.links  # gives back what has ended
        return sum(map(_held, [os.getpid(), *(host.process.pid for host in self.hosts)]))

    def left(self) -> int:
        """Return how many more they hold than before; sessions may take a while to end."""
        end = time.monotonic() + 20
        while (more := self.held() - self.before) > 0 and time.monotonic() < end:
            time.sleep(0.05)
        return max(0, more)

    def close(self) -> None:
        """End all ranks."""
        self.executor.close()
        for host in self.hosts:
            host.close()


def _held(process: int) -> int:
    place = Path(f"/proc/{process}")
    files = [str(file.readlink()) for file in (place / "fd").iterdir() if file.is_symlink()]
    return len([*(place / "task").iterdir()]) + sum(name.startswith("socket:") for name in files)


def strike(world: World, rng: random.Random, kind: str, stage: str) -> Struck:
    """Bring one fault about, and look at what comes of it."""
    host = rng.randrange(len(world.hosts))
    if stage == "joining":
        world.hosts[0].wire.links[0].close()
        _run_for(world.executor, "decode")
        wait = rng.uniform(0, 0.5)
    else:
        wait = rng.uniform(0, 0.05)
    moments: list[float] = []
    struck: list[Callable[[], object]] = []  # what mends it
    names = {world.addresses[host]}

    def hit() -> None:
        time.sleep(wait)
        moment, mend = _hit(world, rng, kind, host, names)
        moments.append(moment)
        struck.append(mend)

    thread = threading.Thread(target=hit)
    thread.start()
    error = _run_for(world.executor, stage)
    named_at = time.monotonic()
    thread.join()
    struck[0]()
    named = any(name in error for name in names)
    try:
        served = np.array_equal(ask(world.executor), world.wanted)
    except BackendError as failed:
        served, error = False, f"{error}; then {failed}"
    left = world.left() if served else 0
    well = named and served and left == 0
    return Struck(
        f"{kind}, {stage}", named_at - moments[0], named, served, left, "" if well else error
    )


def _hit(
    world: World, rng: random.Random, kind: str, host: int, names: set[str]
) -> tuple[float, Callable[[], object]]:
    """Strike a rank or a link to it; return when, and what mends it; add who else may be named."""
    chosen = world.hosts[host]
    moment = time.monotonic()
    if kind == "stop":
        chosen.process.send_signal(signal.SIGSTOP)
        return moment, lambda: chosen.process.send_signal(signal.SIGCONT)
    if kind == "kill":
        chosen.kill()
        return moment, chosen.start
    link, moment = _any_link(chosen, rng), time.monotonic()
    if link.rank:  # made by another of the hosts: either may be behind
        names.add(world.addresses[link.rank - 1])
    link.dead = kind == "cut"
    if kind == "close":
        link.close()

    def mend() -> None:
        link.dead = False
        link.close()

    return moment, mend


def _any_link(host: Host, rng: random.Random) -> Link:
    end = time.monotonic() + HANGS
    while not (links := host.wire.links):
        if time.monotonic() > end:
            raise RuntimeError("nobody has joined a rank")
        time.sleep(0.001)
    return rng.choice(links)


def _run_for(executor: CpuExecutor, stage: str) -> str:
    """Do what a stage says until an error comes, and return it; empty if none does."""
    end = time.monotonic() + HANGS
    while time.monotonic() < end:
        try:
            be_in(executor, stage)
        except BackendError as error:
            return str(error)
    return ""


@contextmanager
def open_world(ranks: int, patience: float = PATIENCE) -> Iterator[Strike[Struck]]:
    """Start ranks; what strikes them or a link, at random."""
    with closing(World(ranks, patience)) as world:
        yield lambda rng: strike(world, rng, rng.choice(KINDS), rng.choice(STAGES))
