"""Probe "mailbox": eight kernels of 16 blocks at the same time, pushing 12 KB to each other.

This is the code path of eight GPUs with peer memory, run inside one GPU: system-scope sentinel
words into the peers' mailboxes. One-way latency comes from pairs, the all-to-all from everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from bench.gpu._stage import NotMeasuredError, expect_equal
from bench.gpu.probes._context import Context, sentinels
from bench.gpu.probes._kernels import MAILBOX, Buffer
from bench.gpu.probes._test_data import TestData
from bench.gpu.probes.waits import check_stream, round_figures, stream_values
from monolane._results import Record
from monolane.cuda._device import Launch

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
        if workers > device.info.sms:
            raise NotMeasuredError(
                f"{workers} blocks need as many SMs, there are {device.info.sms}"
            )
        ring = scale.stream_slots * (scale.stream_copy + 16)
        shape = Launch(blocks, THREADS, ring + STATE_BYTES + scale.rounds * 4)
        ctx.fits("mailbox.cu", "exchange_mail", shape)
        with ctx.buffers(
            mail=sentinels(MAX_KERNELS * BUFFERS * MAX_KERNELS * scale.exchange_words),
            started=4, log=workers * scale.rounds * 4, totals=workers * 32, results=8,
            stream_sums=workers * 4, stream_chunks=workers * 4,
        ) as b:  # fmt: skip
            shared = stream_values(ctx, self._data, exchange.stream) | b
            launches = [
                ctx.prepare(
                    "mailbox.cu", "exchange_mail", shape, MAILBOX, self._streams[k], own=k,
                    kernels=kernels, blocks=blocks, words=scale.exchange_words,
                    peers=exchange.peers(k, kernels), rounds=scale.rounds, **shared,
                )
                for k in range(kernels)
            ]  # fmt: skip
            ctx.clear_fault()
            device.synchronize()
            for launch in launches:
                launch()
            device.synchronize()
            ctx.check_fault()
            self._check(b, exchange, kernels, workers)
            stream_copy = scale.stream_copy if exchange.stream else 0
            figures = round_figures(ctx, b, workers, scale.rounds, stream_copy)
        return figures | {"kernels": kernels, "blocks_each": blocks}

    def _check(self, b: dict[str, Buffer], exchange: Exchange, kernels: int, workers: int) -> None:
        wrong, checked = self._ctx.device.download(b["results"], np.uint32, 2).tolist()
        expect_equal("wrong words", wrong, 0)
        senders = sum(exchange.peers(k, kernels).bit_count() for k in range(kernels))
        expected = senders * self._ctx.scale.exchange_words * self._ctx.scale.rounds
        expect_equal("words checked", checked, expected & 0xFFFFFFFF)
        if exchange.stream:
            check_stream(self._ctx, self._data, b, workers)


def mailbox(ctx: Context, job: str) -> None:
    """Pairs and all-to-all, idle and under the stream."""
    mail = Mail(ctx, TestData(ctx, ctx.scale.stream_run * ctx.device.info.sms))
    for pattern, stream in ctx.paced(list(product(("pairs", "all-to-all"), (False, True)))):
        labels = {"pattern": pattern, "stream": stream, "words": ctx.scale.exchange_words}
        ctx.attempt("mailbox", mail.measure, Exchange(pattern, stream), **labels)
