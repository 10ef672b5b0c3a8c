"""Probe "mailbox": eight kernels of 16 blocks at the same time, pushing 12 KB to each other.

This is the code path of eight GPUs with peer memory, run inside one GPU: system-scope sentinel
words into the peers' mailboxes. One-way latency comes from pairs, the all-to-all from everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from bench._results import Record
from bench.gpu.probes import _structs
from bench.gpu.probes._context import Context, Probe, expect_equal, free_all
from bench.gpu.probes._device import Buffer, Launch
from bench.gpu.probes._errors import NotMeasuredError
from bench.gpu.probes._test_data import TestData
from bench.gpu.probes.waits import check_stream, round_figures

THREADS = 352
STATE_BYTES = 32
MAX_KERNELS = 8
BUFFERS = 2


@dataclass(frozen=True)
class Exchange:
    """Who sends to whom."""

    pattern: str  # "pairs" | "all-to-all"
    stream: bool

    def peers(self, kernel: int, kernels: int) -> int:
        """Bit mask of the kernels that `kernel` exchanges with."""
        if self.pattern == "pairs":
            return 1 << (kernel ^ 1)
        return ((1 << kernels) - 1) & ~(1 << kernel)


class Mail:
    """Launches all kernels and checks what they received."""

    def __init__(self, ctx: Context, data: TestData) -> None:
        self._ctx, self._data = ctx, data
        self._streams = [ctx.device.stream() for _ in range(MAX_KERNELS)]

    def measure(self, exchange: Exchange) -> Record:
        """ns from the first push of a round to the last word received."""
        ctx, device, scale = self._ctx, self._ctx.device, self._ctx.scale
        kernels, blocks = scale.lanes // 2 * 2, scale.lane_blocks
        workers = kernels * blocks
        if workers > device.info.sm_count:
            raise NotMeasuredError(
                f"{workers} blocks need as many SMs, there are {device.info.sm_count}"
            )
        ring = scale.stream_slots * (scale.stream_copy + 16)
        shape = Launch(blocks, THREADS, ring + STATE_BYTES + scale.rounds * 4)
        kernel = device.kernel("mailbox.cu", "exchange_mail")
        ctx.fits(kernel, shape)
        b = self._buffers(workers)
        try:
            ctx.clear_fault()
            device.synchronize()
            for k in range(kernels):
                params = self._params(b, exchange, k, kernels)
                device.launch(kernel, shape, params, self._streams[k])
            device.synchronize()
            ctx.check_fault()
            self._check(b, exchange, kernels, workers)
            totals = device.download(b["totals"], np.uint64, workers * 4).reshape(workers, 4)
            log = device.download(b["log"], np.uint32, workers * scale.rounds)
            figures = round_figures(
                totals,
                log.reshape(workers, scale.rounds),
                scale.stream_copy if exchange.stream else 0,
            )
            return figures | {"kernels": kernels, "blocks_each": blocks}
        finally:
            free_all(device, b.values())

    def _buffers(self, workers: int) -> dict[str, Buffer]:
        device, scale = self._ctx.device, self._ctx.scale
        mail = device.allocate(MAX_KERNELS * BUFFERS * MAX_KERNELS * scale.exchange_words * 4)
        device.fill(mail, 0xFFFFFFFF)  # the sentinel: nothing received yet
        sizes = {
            "started": 4, "log": workers * scale.rounds * 4, "totals": workers * 32, "results": 8,
            "stream_sums": workers * 4, "stream_chunks": workers * 4,
        }  # fmt: skip
        return {"mail": mail} | {name: device.zeros(size) for name, size in sizes.items()}

    def _params(self, b: dict[str, Buffer], exchange: Exchange, k: int, kernels: int) -> bytes:
        scale = self._ctx.scale
        return _structs.MAILBOX.pack(
            stream_from=self._data.buffer.address, mail=b["mail"].address,
            started=b["started"].address, log=b["log"].address, totals=b["totals"].address,
            results=b["results"].address, stream_sums=b["stream_sums"].address,
            stream_chunks=b["stream_chunks"].address, fault=self._ctx.fault.address,
            watchdog_cycles=scale.watchdog_cycles, run_bytes=scale.stream_run,
            warm_cycles=scale.warm_cycles, own=k, kernels=kernels, blocks=scale.lane_blocks,
            words=scale.exchange_words, peers=exchange.peers(k, kernels), rounds=scale.rounds,
            stream=int(exchange.stream), slots=scale.stream_slots, copy_bytes=scale.stream_copy,
            unused=0,
        )  # fmt: skip

    def _check(self, b: dict[str, Buffer], exchange: Exchange, kernels: int, workers: int) -> None:
        wrong, checked = self._ctx.device.download(b["results"], np.uint32, 2).tolist()
        expect_equal("wrong words", wrong, 0)
        senders = sum(exchange.peers(k, kernels).bit_count() for k in range(kernels))
        expected = senders * self._ctx.scale.exchange_words * self._ctx.scale.rounds
        expect_equal("words checked", checked, expected & 0xFFFFFFFF)
        if exchange.stream:
            check_stream(self._ctx, self._data, b["stream_sums"], b["stream_chunks"], workers)


class Mailbox(Probe):
    """Pairs and all-to-all, idle and under the stream."""

    name = "mailbox"
    weight = 1.0

    def run(self, ctx: Context) -> None:
        """Four configurations."""
        data = TestData(ctx, ctx.scale.stream_run * ctx.device.info.sm_count)
        mail = Mail(ctx, data)
        for pattern, stream in ctx.paced(list(product(("pairs", "all-to-all"), (False, True)))):
            ctx.attempt(
                "mailbox",
                mail.measure,
                Exchange(pattern, stream),
                pattern=pattern,
                stream=stream,
                words=ctx.scale.exchange_words,
            )
