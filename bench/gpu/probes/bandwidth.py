"""Probe "read": what the memory delivers, by mechanism, ring, copy size, blocks and order.

The question behind it: how small may the ring be, and is one contiguous run per SM as fast as
interleaved chunks? Every launch moves gigabytes, so L2 (60 MB on an H200) cannot help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from bench.gpu._stage import NotMeasuredError, expect_equal, summary
from bench.gpu.probes._context import Context
from bench.gpu.probes._kernels import BANDWIDTH, Buffer
from bench.gpu.probes._test_data import TestData, wrapped_sum
from monolane._results import Record
from monolane.cuda._device import Launch

MOST_READERS = 16
ASYNC_GROUPS = 8
ASYNC_THREADS = 128
POISON = 0xDEADBEEF


@dataclass(frozen=True)
class Variant:
    """One way to move the buffer."""

    kernel: str
    blocks: int
    threads: int
    chunk: int  # bytes
    slots: int  # of the ring; 0 where there is none
    interleaved: bool
    evict_first: bool = True

    @property
    def shared(self) -> int:
        """Dynamic shared memory; the same sum as `ring_footprint`."""
        barriers = self.slots * 16 if "bulk" in self.kernel else 0
        return self.slots * self.chunk + barriers

    def labels(self) -> dict[str, object]:
        """How the record names it."""
        return {
            "mechanism": self.kernel.split("_", 1)[1].rstrip("_0123456789"),
            "kernel": self.kernel,
            "blocks": self.blocks,
            "threads": self.threads,
            "ring_bytes": self.slots * self.chunk,
            "copy_bytes": 16 if "bulk" not in self.kernel else self.chunk,
            "order": "interleaved" if self.interleaved else "contiguous",
            "evict_first": self.evict_first,
        }


def share(block: int, blocks: int, chunks: int, interleaved: bool) -> range:
    """The chunks of one block: the twin of `share_of` in bandwidth.cu."""
    if interleaved:
        return range(block, chunks, blocks)
    return range(chunks * block // blocks, chunks * (block + 1) // blocks)


def bulk_readers(slots: int) -> int:
    """Reading warps for a ring: they must divide the slots (see ring.cuh)."""
    return max(n for n in range(1, MOST_READERS + 1) if slots % n == 0)


def _bulk(ring: int, copy: int, blocks: int, interleaved: bool, evict_first: bool) -> Variant:
    slots = ring // copy
    threads = 32 * (1 + bulk_readers(slots))
    return Variant("read_bulk", blocks, threads, copy, slots, interleaved, evict_first)


def _block_counts(ctx: Context) -> list[int]:
    sms = ctx.device.info.sms
    return sorted({min(b, sms) for b in ctx.scale.blocks} | {sms})


def read_variants(ctx: Context) -> Iterator[Variant]:
    """All readers, the plain ones first."""
    scale, counts = ctx.scale, _block_counts(ctx)
    for (threads, unroll), blocks, order in product(
        scale.plain_shapes, [*counts, 2 * counts[-1]], (False, True)
    ):
        if blocks * threads <= counts[-1] * 2048:
            chunk = threads * 16 * unroll
            yield Variant(f"read_plain_{unroll}", blocks, threads, chunk, 0, order)
    for ring, blocks, order in product(scale.rings, counts, (False, True)):
        yield Variant(
            "read_async", blocks, ASYNC_THREADS, ring // ASYNC_GROUPS, ASYNC_GROUPS, order
        )
    for ring, copy, blocks, order in product(scale.rings, scale.copies, counts, (False, True)):
        if ring // copy >= 2:
            yield _bulk(ring, copy, blocks, order, evict_first=True)
    ring, copy = scale.rings[-2], scale.copies[-2]
    for order in (False, True):
        yield _bulk(ring, copy, counts[-1], order, evict_first=False)


def copy_variants(ctx: Context) -> Iterator[Variant]:
    """All copiers."""
    scale, counts = ctx.scale, _block_counts(ctx)
    for blocks, order in product((counts[-1], 2 * counts[-1]), (False, True)):
        threads = scale.plain_shapes[0][0]
        yield Variant("copy_plain", blocks, threads, threads * 16 * 4, 0, order)
    for kernel, threads in (("copy_async", ASYNC_THREADS), ("copy_bulk", 32)):
        for ring, blocks, order in product(scale.rings, counts[-2:], (False, True)):
            yield Variant(kernel, blocks, threads, ring // ASYNC_GROUPS, ASYNC_GROUPS, order)


class Mover:
    """Launches one variant over the test data and checks what it did."""

    def __init__(self, ctx: Context, data: TestData, target: Buffer | None) -> None:
        self._ctx, self._data, self._target = ctx, data, target
        self._sums = ctx.device.zeros(2 * 4 * max(ctx.device.info.sms, 1024))

    def region(self, variant: Variant) -> int:
        """Bytes that the variant can move whole and whose sum is known."""
        limit = self._target.nbytes if self._target else self._data.nbytes
        unit = math.lcm(variant.chunk, self._data.granule)
        return limit // unit * unit

    def measure(self, variant: Variant) -> Record:
        """GB/s of the variant, after its check."""
        ctx = self._ctx
        shape = Launch(variant.blocks, variant.threads, variant.shared)
        ctx.fits("bandwidth.cu", variant.kernel, shape, resident=False)
        nbytes = self.region(variant)
        if nbytes == 0:
            raise NotMeasuredError(f"the buffer holds no multiple of {variant.chunk} bytes")
        launch = ctx.prepare(
            "bandwidth.cu", variant.kernel, shape, BANDWIDTH, **{"from": self._data.buffer},
            to=self._target or 0, sums=self._sums, chunks=nbytes // variant.chunk,
            chunk_bytes=variant.chunk, interleaved=variant.interleaved, slots=variant.slots,
            evict_first=variant.evict_first,
        )  # fmt: skip
        return self._figures(launch, nbytes)

    def driver_copy(self) -> Record:
        """The driver's own device-to-device copy, the figure others quote."""
        target, data = self._target, self._data
        assert target is not None
        nbytes = min(target.nbytes, data.nbytes)
        return self._figures(lambda: self._ctx.device.copy(target, data.buffer, nbytes), nbytes)

    def _figures(self, launch: Callable[[], None], nbytes: int) -> Record:
        ctx = self._ctx

        def before() -> None:
            ctx.clear_fault()
            ctx.device.fill(self._sums, 0)

        if self._target:
            ctx.device.fill(self._target, POISON, nbytes)
        times = ctx.time_ms(launch, ctx.budget.repeats(ctx.scale.repeats), before)
        ctx.check_fault()
        if self._target:
            self._data.check_copy(self._target, nbytes)
        else:
            self._check_sum(nbytes)
        moved = nbytes * (2 if self._target else 1)
        figures = summary([moved / ms / 1e6 for ms in times])
        return figures | {"unit": "GB/s", "gb_per_s": figures["median"], "bytes_moved": moved}

    def _check_sum(self, nbytes: int) -> None:
        sums = self._ctx.device.download(self._sums, np.uint32, self._sums.nbytes // 4)
        expect_equal("sum of all words read", wrapped_sum(sums), self._data.expected_sum(0, nbytes))


def read(ctx: Context, job: str) -> None:
    """Reads, then copies."""
    nbytes = min(ctx.scale.read_bytes, ctx.device.info.free_bytes // 4)
    data = TestData(ctx, nbytes)
    copies, reads = list(copy_variants(ctx)), list(read_variants(ctx))
    total = len(reads) + len(copies)
    reader = Mover(ctx, data, None)
    for i, variant in enumerate(reads):
        ctx.budget.progress = i / total
        ctx.attempt("read_bandwidth", reader.measure, variant, **variant.labels())
    target = ctx.device.allocate(min(ctx.scale.copy_bytes, data.nbytes))
    copier = Mover(ctx, data, target)
    ctx.attempt("copy_bandwidth", copier.driver_copy, mechanism="driver")
    for i, variant in enumerate(copies):
        ctx.budget.progress = (len(reads) + i) / total
        ctx.attempt("copy_bandwidth", copier.measure, variant, **variant.labels())
