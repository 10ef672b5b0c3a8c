"""One step of a run among processes and on devices that are not there: what it takes and sends.

The step is the trainer's own, with FSDP and the optimizer, on tensors that have shapes and no
numbers (torch's FakeTensorMode) and in a group of processes that torch pretends. Memory is what the
tensors of one process would hold; the gaps that an allocator leaves, and what a kernel uses inside,
are not in it. Layers are not compiled here, so fused ones take less.
"""

import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._guards import active_fake_mode
from torch._subclasses import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from monolane.data import Rows
from monolane.errors import ConfigError
from monolane.train._config import RunConfig
from monolane.train._forecast import BANDWIDTHS, GIB, PEAKS, mean_keys
from monolane.train._process_group import World, make_mesh
from monolane.train._traffic import Traffic
from monolane.train._trainer import Trainer

_sharding: Any = import_module("torch.distributed.tensor._sharding_prop")
_GROUPS = ("c10d", "_c10d_functional")  # whose operations talk to other processes
_NO_CALLS = ("wait_tensor.default", "monitored_barrier_.default")
# Two interfaces of torch spell the same collectives.
_NAMES = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
}


@dataclass(frozen=True)
class Rehearsal:
    """What one process holds and says in a step."""

    peak_bytes: int  # of all tensors, at the step's peak
    kept_bytes: int  # before and behind it: weights and optimizer state
    calls: dict[str, int] = field(default_factory=dict)  # of collectives, by name
    moved: dict[str, int] = field(default_factory=dict)  # bytes of what they put together, by name
    kernels: dict[tuple[int, int], int] = field(default_factory=dict)  # by FLOPs and bytes
    tokens: int = 0  # of this process

    def seconds(self, device: str) -> float:
        """Return the seconds of the kernels at a device's peaks; ``device``: a name in PEAKS."""
        flops, bandwidth = PEAKS[device], BANDWIDTHS[device]
        pairs = self.kernels.items()
        return sum(n * max(work / flops, size / bandwidth) for (work, size), n in pairs)

    def text(self, forecast: float, device: str) -> str:
        """Return this as lines for people, beside a ``forecast`` of the peak in bytes."""
        lines = [
            "One step, rehearsed: no numbers are computed, the other processes are pretended, and",
            "layers are not compiled.",
            (
                f"memory at the peak   {self.peak_bytes / GIB:.2f} GiB, of which "
                f"{self.kept_bytes / GIB:.2f} are kept from step to step; forecast "
                f"{forecast / GIB:.2f}"
            ),
        ]
        lines += [
            f"{name.replace('_', '-'):<20} {count:,} calls, {self.moved[name] / GIB:.2f} GiB whole"
            for name, count in sorted(self.calls.items())
        ]
        work = sum(count * flops for (flops, _), count in self.kernels.items())
        size = sum(count * moved for (_, moved), count in self.kernels.items())
        computed, moved = work / PEAKS[device], size / BANDWIDTHS[device]
        rate = self.tokens / self.seconds(device)
        lines += [
            f"{'arithmetic':<20} {work / 1e12:,.4g} TFLOP: {computed:.4g} s of one {device}",
            f"{'traffic':<20} {size / GIB:,.4g} GiB, as compiled: {moved:.4g} s",
            f"{'rate':<20} {rate:,.0f} tokens/s of one {device} at most",
        ]
        return "\n".join(lines) + "\n"


def rehearse(config: RunConfig, size: int, rank: int = 0) -> Rehearsal:
    """Return what a step takes of process ``rank`` of ``size``; ConfigError where they do not fit.

    No other process group may be open in this process.
    """
    if dist.is_initialized():
        raise ConfigError("a rehearsal: expected no open process group, found one; leave it first")
    count = config.rows_per_process(size)
    shard = config.shard(size)
    config = replace(config, compute=replace(config.compute, compile=False, attention="sdpa"))
    config = replace(config, model=replace(config.model, init_from=""))
    shape = (count, config.data.sequence_length)
    ids = np.zeros(shape, np.int64)
    rows = Rows(ids, ids, np.zeros(shape, np.int32), np.zeros(count, np.int64))
    with (
        _pretended(size, rank, shard) as world,
        FakeTensorMode(allow_non_fake_inputs=True),
        _Watch(_causal(config)) as watch,
    ):
        return _step(config, rows, world, watch)


def _step(config: RunConfig, rows: Rows, world: World, watch: "_Watch") -> Rehearsal:
    trainer = Trainer(config, world, resumed=True)
    kept = watch.held
    watch.begin()
    # As in Trainer.step, but for the numbers, of which there are none.
    losses, counted = trainer.add_gradients(config.schedule.short_until, rows)
    world.total(losses, counted)
    trainer.update(0.0, trainer.norm(), finite=True)
    kernels = dict(watch.traffic.kernels())
    return Rehearsal(watch.peak, kept, dict(watch.calls), dict(watch.moved), kernels, rows.ids.size)


def _causal(config: RunConfig) -> float:
    """Return the share of all pairs of tokens that masks and windows leave: of layers the mean."""
    length = config.data.sequence_length
    keys = [mean_keys(length, min(window or length, length)) for window in config.model.windows]
    return sum(keys) / len(keys) / length


@contextmanager
def _pretended(size: int, rank: int, shard: int) -> Iterator[World]:
    """Be one of so many processes, of which the others do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of hooks on what has no gradient
            device = torch.device("cpu")
            yield World(rank, size, device, make_mesh(device, size, shard), None)
    finally:
        dist.destroy_process_group()


class _Watch(TorchDispatchMode):
    """Counts the bytes of all storages that are alive, collectives, and what kernels do."""

    def __init__(self, causal: float) -> None:
        super().__init__()
        self.traffic = Traffic(causal)
        self.held = self.peak = 0
        self.calls: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()
        self._sizes: dict[int, int] = {}  # of each storage that is known, by its id
        self._resize = torch.UntypedStorage.resize_
        self._mode: Any = None  # that of the tensors which count

    def begin(self) -> None:
        """Forget what was seen, but for what is held."""
        self.peak = self.held
        self.calls.clear()
        self.moved.clear()
        self.traffic.begin()

    def __enter__(self) -> "_Watch":
        """Begin to watch, also FSDP's way to free a tensor, which no dispatch sees."""
        resize, self._mode = self._resize, active_fake_mode()

        def watched(storage: torch.UntypedStorage, size: int) -> None:
            resize(storage, size)
            if id(storage) in self._sizes:
                self._set(id(storage), size)

        torch.UntypedStorage.resize_ = watched  # type: ignore[method-assign, assignment]
        # DTensor tries the shapes of whole tensors: in a mode of its own, they do not count.
        self._detect = _sharding.detect_fake_mode
        _sharding.detect_fake_mode = lambda: None
        super().__enter__()
        return self

    def __exit__(self, *caught: Any) -> None:
        """End to watch."""
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        _sharding.detect_fake_mode = self._detect
        super().__exit__(*caught)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what is asked, and note it."""
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # its parts come next
        found = func(*args, **(kwargs or {}))
        if active_fake_mode() is not self._mode:
            return found
        if func.namespace == "aten":
            self.traffic.note(func, args, kwargs, found)
        if func.namespace in _GROUPS and func.__name__ not in _NO_CALLS:
            name = _NAMES[func.__name__.partition(".")[0]]
            tensors = [x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)]
            sizes = [x.numel() * x.element_size() for x in tensors]
            self.calls[name] += 1
            self.moved[name] += sum(sizes) if name == "all_reduce" else max(sizes)
        for tensor in tree_iter(found):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self._note(tensor.untyped_storage())
        return found

    def _note(self, storage: torch.UntypedStorage) -> None:
        if id(storage) not in self._sizes:
            self._sizes[id(storage)] = 0
            weakref.finalize(storage, self._forget, id(storage))
        self._set(id(storage), storage.nbytes())

    def _set(self, storage: int, size: int) -> None:
        self.held += size - self._sizes[storage]
        self._sizes[storage] = size
        self.peak = max(self.peak, self.held)

    def _forget(self, storage: int) -> None:
        self.held -= self._sizes.pop(storage)
