"""The processes of a run: who we are, on which device, and how we talk to the others.

One process is a world of size 1 that goes the same way as a thousand: sharded over one device, the
weights are whole. So no step of a run has a second form that only a laptop takes.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from monolane.errors import BackendError
from monolane.train._config import Compute, RunConfig

_WORLDS = count()  # that this process has joined so far; the same on every process


@dataclass(frozen=True)
class World:
    """This process among the others."""

    rank: int
    size: int  # W, processes; each has one device
    device: torch.device
    mesh: DeviceMesh  # ("shard",), or ("replicate", "shard") where several copies are kept
    files: Any  # a process group on CPUs, for checkpoints that are written in the background

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for the run: log, board, card."""
        return self.rank == 0

    def total(self, *values: float | Tensor) -> Tensor:
        """Return the sums of these values [N] over all processes, with the same bits on each.

        Tensors are float64 ones [n] on the device, which is not waited for.
        """
        parts = [
            one
            if isinstance(one, Tensor)
            else torch.tensor([one], dtype=torch.float64).to(self.device, non_blocking=True)
            for one in values
        ]
        total = torch.cat(parts)
        dist.all_reduce(total)
        return total

    def take_peaks(self) -> tuple[int, int] | None:
        """Return a GPU's bytes that tensors took at the peak since the last call, and torch held.

        None on a CPU.
        """
        if self.device.type != "cuda":
            return None
        peaks = (
            torch.cuda.max_memory_allocated(self.device),
            torch.cuda.max_memory_reserved(self.device),
        )
        torch.cuda.reset_peak_memory_stats(self.device)
        return peaks

    def tell(self, value: Any) -> Any:
        """Return the first process's ``value`` on every process."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.files)
        return box[0]

    def wait(self) -> None:
        """Return when every process is here."""
        dist.barrier(group=self.files)


@contextmanager
def open_world(config: RunConfig) -> Iterator[World]:
    """Join the processes that ``torchrun`` started; without it, be a world of one.

    Raises ConfigError where the sections of ``config`` do not fit the processes, BackendError where
    the device that it wants is not here.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    shard = config.shard(size)
    config.rows_per_process(size)
    device = pick_device(config.compute)
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    _join(rank, size, device)
    try:
        world = World(
            rank, size, device, make_mesh(device, size, shard), dist.new_group(backend="gloo")
        )
        yield world
        world.wait()  # who leaves first would close connections that others still read from
    finally:
        leave()


def leave() -> None:
    """Destroy the process groups, then wait until their threads hold nothing of Python's.

    A thread of gloo may let go of its last tensor a moment after the collective has ended. If
    the interpreter is being finalized by then, asking for its lock ends that thread from inside
    a destructor, and the whole process with "terminate called without an active exception", after
    all has gone well (pytorch issue 190489). Destroying a group joins its threads only where
    nothing refers to it any more, and meshes and sharded weights do.
    """
    dist.destroy_process_group()
    quiet, deadline = 0, time.monotonic() + 5  # seconds: of a thread that computes something else
    while quiet < 3 and time.monotonic() < deadline:  # one look may fall between two waits
        time.sleep(0.001)  # gives the interpreter's lock away
        quiet = 0 if _threads_run() else quiet + 1


def _threads_run() -> bool:
    """Return whether another thread of this process has work; without /proc, False."""
    mine = threading.get_native_id()
    for task in Path("/proc/self/task").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state == "R" and int(task.name) != mine:
                return True
    return False


def pick_device(compute: Compute) -> torch.device:
    """Return the device of this process; BackendError if it is not here."""
    wanted = compute.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BackendError(
            "compute.device: expected a GPU that torch can use, found none; install a torch build "
            "for this GPU, or use --set compute.device=cpu"
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _join(rank: int, size: int, device: torch.device) -> None:
    # Checkpoints are written over gloo while nccl computes: both are needed on a GPU.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store: Store = HashStore()
    if "WORLD_SIZE" in os.environ:
        # Names of its own for each world: addresses of one that this process has left would
        # otherwise be taken for the new one's, and all would wait for each other.
        common, _, _ = next(rendezvous("env://"))
        store = PrefixStore(f"world{next(_WORLDS)}", common)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=size,
        device_id=device if device.type == "cuda" else None,
    )


def make_mesh(device: torch.device, size: int, shard: int) -> DeviceMesh:
    """Return how ``size`` processes stand, of which each ``shard`` share a copy of the weights."""
    if shard == size:
        return init_device_mesh(device.type, (size,), mesh_dim_names=("shard",))
    return init_device_mesh(
        device.type, (size // shard, shard), mesh_dim_names=("replicate", "shard")
    )
