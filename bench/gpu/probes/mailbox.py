"""Probe "mailbox": eight kernels of 16 blocks at the same time, pushing 12 KB to each other.

This is the code path of eight GPUs with peer memory, run inside one GPU: system-scope sentinel
words into the peers' mailboxes. One-way latency comes from pairs, the all-to-all from everybody.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

from bench.gpu._stage import NotMeasuredError
from bench.gpu.probes._context import Context, sentinels
from bench.gpu.probes._kernels import MAILBOX
from bench.gpu.probes._test_data import KnownData
from bench.gpu.probes.waits import check_stream, check_words, round_figures, stream_values
from monolane._results import Record
from monolane.cuda._device import Launch

THREADS = 352
STATE_BYTES = 32
MAX_KERNELS = 8
BUFFERS = 2


def peers_of(kernel: int, kernels: int, pattern: str) -> int:
    """Bit mask of the kernels that `kernel` exchanges with."""
    if pattern == "pairs":
        return 1 << (kernel ^ 1)
    return ((1 << kernels) - 1) & ~(1 << kernel)


def measure(
    ctx: Context, data: KnownData, streams: Sequence[Any], pattern: str, stream: bool
) -> Record:
    """ns from the first push of a round to the last word received."""
    device, scale = ctx.device, ctx.scale
    kernels, blocks = scale.lanes // 2 * 2, scale.lane_blocks
    workers = kernels * blocks
    if workers > device.info.sms:
        raise NotMeasuredError(f"{workers} blocks need as many SMs, there are {device.info.sms}")
    peers = [peers_of(k, kernels, pattern) for k in range(kernels)]
    ring = scale.stream_slots * (scale.stream_copy + 16)
    shape = Launch(blocks, THREADS, ring + STATE_BYTES + scale.rounds * 4)
    ctx.fits("mailbox.cu", "exchange_mail", shape)
    with ctx.buffers(
        mail=sentinels(MAX_KERNELS * BUFFERS * MAX_KERNELS * scale.exchange_words),
        started=4, log=workers * scale.rounds * 4, totals=workers * 32, results=8,
        stream_sums=workers * 4, stream_chunks=workers * 4,
    ) as b:  # fmt: skip
        shared = stream_values(ctx, data, stream) | b
        launches = [
            ctx.prepare(
                "mailbox.cu", "exchange_mail", shape, MAILBOX, streams[k], own=k,
                kernels=kernels, blocks=blocks, words=scale.exchange_words, peers=peers[k],
                rounds=scale.rounds, **shared,
            )
            for k in range(kernels)
        ]  # fmt: skip
        with ctx.watched():
            device.synchronize()
            for launch in launches:
                launch()
        senders = sum(mask.bit_count() for mask in peers)
        check_words(ctx, b, senders * scale.exchange_words * scale.rounds)
        if stream:
            check_stream(ctx, data, b, workers)
        stream_copy = scale.stream_copy if stream else 0
        figures = round_figures(ctx, b, workers, scale.rounds, stream_copy)
    return figures | {"kernels": kernels, "blocks_each": blocks}


def mailbox(ctx: Context, job: str) -> None:
    """Pairs and all-to-all, idle and under the stream."""
    data = KnownData(ctx, ctx.scale.stream_run * ctx.device.info.sms)
    streams = [ctx.device.stream() for _ in range(MAX_KERNELS)]
    for pattern, stream in ctx.paced(list(product(("pairs", "all-to-all"), (False, True)))):
        labels = {"pattern": pattern, "stream": stream, "words": ctx.scale.exchange_words}
        ctx.attempt("mailbox", measure, ctx, data, streams, pattern, stream, **labels)
