"""This machine's cores: which of them the process may use, how near and how fast they are.

Workers share every phase of a pass equally, so the slowest is what all wait for. One thread per
core therefore, on fast cores only, and no more than the process gets time for.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from monolane._cgroup import processor_share, read_text

# What a core must have of the best one's capacity, and of its highest clock, to be worth a worker.
# Equal cores differ by some 10 %; Intel's small cores have 0.5 to 0.8 of the large ones' clock and
# half of their vectors, Arm's 0.3 to 0.6 of their capacity. A choice, not a measurement.
_FAST = 0.75


@dataclass(frozen=True, slots=True)
class Core:
    """A core and its hardware threads, of those that the process may use."""

    threads: tuple[int, ...]  # numbers of Linux's processors, lowest first
    package: int = 0
    node: int = 0  # of memory
    fast: bool = True


@dataclass(frozen=True, slots=True)
class Processor:
    """The cores that the process may use, near ones beside each other, and its share of time."""

    cores: tuple[Core, ...]
    share: float | None = None  # how many processors' time its control groups give it; None: all

    @property
    def fast(self) -> tuple[Core, ...]:
        """The cores that are worth a worker."""
        return tuple(core for core in self.cores if core.fast)

    @property
    def threads(self) -> int:
        """Hardware threads of all cores."""
        return sum(len(core.threads) for core in self.cores)

    @property
    def workers(self) -> int:
        """How many threads compute best together: at least 1.

        A share of time is rounded to the nearest number: docs/cpu.md has the measurements.
        """
        fast = len(self.fast)
        return fast if self.share is None else max(1, min(fast, int(self.share + 0.5)))

    def place(self, workers: int) -> list[int]:
        """Return the processor of each worker; none where Linux had better choose.

        Workers are pinned where they fill the fast cores, or all hardware threads. Fewer are not,
        since another process may have chosen the same cores; nor are those of a container that gets
        less time than it has cores, since other containers have those cores, too.
        """
        if self.share is not None and self.share < workers:
            return []
        if workers == len(self.fast):
            return [core.threads[0] for core in self.fast]
        if workers == self.threads:
            return [thread for core in self.cores for thread in core.threads]
        return []

    def describe(self) -> str:
        """Say how many cores have workers, and why not more."""
        left_out = []
        if more := self.threads - len(self.cores):
            left_out.append(f"{more} second threads of cores")
        if slow := len(self.cores) - len(self.fast):
            left_out.append(f"{slow} slow cores")
        if self.workers < len(self.fast):
            left_out.append(f"what a limit of {self.share:g} processors' time leaves")
        return f"{self.workers} workers" + (f", without {' and '.join(left_out)}" * bool(left_out))


def read_processor(root: Path = Path("/"), allowed: Iterable[int] | None = None) -> Processor:
    """Return the cores as Linux describes them below /sys, of those in the affinity mask.

    root     where /sys and /proc lie
    allowed  numbers of the processors that may be used; None: those of this process
    """
    folder = root / "sys/devices/system/cpu"
    groups: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(usable_processors() if allowed is None else allowed):
        siblings = _numbers(read_text(folder / f"cpu{cpu}/topology/thread_siblings_list"))
        groups.setdefault(tuple(siblings) or (cpu,), []).append(cpu)
    slow = _slow(root, folder, {threads[0] for threads in groups.values()})
    cores = [
        Core(
            tuple(threads),
            package=_number(folder / f"cpu{threads[0]}/topology/physical_package_id"),
            node=_node(folder / f"cpu{threads[0]}"),
            fast=threads[0] not in slow,
        )
        for threads in groups.values()
    ]
    cores.sort(key=lambda core: (core.package, core.node, core.threads))
    return Processor(tuple(cores), processor_share(root))


def _slow(root: Path, folder: Path, cpus: set[int]) -> set[int]:
    """Return those of the processors that are too slow beside the others."""
    found = cpus & set(
        _numbers(read_text(root / "sys/devices/cpu_atom/cpus"))
    )  # Intel's small cores
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        rates = {cpu: _number(folder / f"cpu{cpu}" / name) for cpu in cpus - found}
        best = max(rates.values(), default=0)
        found |= {cpu for cpu, rate in rates.items() if rate < _FAST * best}
    return found if found < cpus else set()


def usable_processors() -> set[int]:
    """Return the numbers of the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _node(folder: Path) -> int:
    """Return the memory node of a processor, which links to it; 0 where none is known."""
    return min((int(x.name[4:]) for x in folder.glob("node[0-9]*")), default=0)


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list such as 0-3,8."""
    spans = (span.split("-") for span in text.split(",") if span)
    return [x for span in spans for x in range(int(span[0]), int(span[-1]) + 1)]


def _number(path: Path) -> int:
    text = read_text(path)
    return int(text) if text.isdecimal() else 0
