"""What the kernels of a step compute, and what they move between memory and arithmetic.

A Laneformer's lanes have streams of their own: L * D numbers a token, where an ordinary decoder has
D. All that is done to them but the products is bound by memory, so small models with many lanes
stay far below the share of a device's peak that large ones reach, and no MFU can be guessed.

Operations are seen one by one, and put together as torch.compile does: a product of matrices, or
attention, is a kernel; all between two of them is one, too, which reads what it takes once, and
writes what outlives it. So a step takes, at best, the sum over its kernels of what takes longer,
their arithmetic or their traffic.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

# On CPUs, where steps are rehearsed, attention has operations of its own.
_ATTENTION: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention_for_cpu": sdpa_flop,
    "_scaled_dot_product_flash_attention_for_cpu_backward": sdpa_backward_flop,
}
_NOTHING_MOVES = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")

Kernels = Counter[tuple[int, int]]  # how many of each: (FLOPs, bytes)


class Storages:
    """Numbers the storages that are alive; an id is taken again by the next one."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by id
        self._count = 0

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage."""
        storage = tensor.untyped_storage()
        if id(storage) not in self._numbers:
            self._count += 1
            self._numbers[id(storage)] = self._count
            weakref.finalize(storage, self._numbers.pop, id(storage))
        return self._numbers[id(storage)]

    def alive(self) -> set[int]:
        """Return the numbers of those that are there."""
        return set(self._numbers.values())


class Traffic:
    """Sums up operations as they come."""

    def __init__(self, causal: float) -> None:
        """``causal``: the share of all pairs of tokens that attention's mask leaves."""
        self._causal = causal
        self._storages = Storages()
        self.begin()

    def begin(self) -> None:
        """Forget what was seen."""
        self._kernels: Kernels = Counter()
        self._read: dict[tuple[int, int, int], int] = {}  # bytes, by storage, offset and size
        self._made: dict[int, int] = {}  # bytes that the fused kernel writes, by storage

    def kernels(self) -> Kernels:
        """Return all kernels so far."""
        self._end_fused()
        return self._kernels

    def note(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        """Take in an operation and what it has returned."""
        packet = func._overloadpacket
        name = packet.__name__
        given, made = [*_tensors((args, kwargs))], [*_tensors(found)]
        if name in _NOTHING_MOVES or not made:
            return
        known = set(map(self._storages.number, given))
        changed = func._schema.is_mutable
        if not changed and known.issuperset(map(self._storages.number, made)):
            return  # a view
        count = flop_registry.get(packet) or _ATTENTION.get(name)
        if count is None:
            if name != "embedding":  # reads as much as it writes, and not the whole table
                self._note_reads(given)
            self._made |= {self._storages.number(x): _size(x) for x in made}
            return
        self._end_fused()
        flops = int(count(*args, **(kwargs or {}), out_val=found))
        if "attention" in name:
            flops = int(flops * self._causal)
        self._kernels[flops, sum(map(_size, given)) + sum(map(_size, made))] += 1

    def _note_reads(self, given: list[torch.Tensor]) -> None:
        for x in given:
            storage = self._storages.number(x)
            if storage not in self._made:
                self._read[storage, int(x.storage_offset()), x.numel()] = _size(x)

    def _end_fused(self) -> None:
        """End the kernel of what lies between two products."""
        alive = self._storages.alive() if self._made else set()
        moved = sum(self._read.values())
        moved += sum(size for storage, size in self._made.items() if storage in alive)
        if moved:
            self._kernels[0, moved] += 1
        self._read, self._made = {}, {}


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (x for x in tree_iter(tree) if isinstance(x, torch.Tensor) and x.device.type != "meta")


def _size(tensor: torch.Tensor) -> int:
    """Return the bytes that reading a tensor takes; one that is spread out has fewer numbers."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
