"""Probe "waits": what a dependency among SMs costs, by primitive, idle and under a weight stream.

A round publishes this block's words and ends when it has those of all members: with one word it is
a barrier, with 192 words of 16 blocks (or 24 of 128) it is the 12 KB exchange of the residual.
Rounds follow each other, so a block's time includes the skew of its peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from bench.gpu._stage import (
    CheckError,
    NotMeasuredError,
    distribution,
    expect,
    expect_equal,
)
from bench.gpu.probes._context import Context, ns_per_cycle, sentinels
from bench.gpu.probes._kernels import GRID_SYNC, WAITS, Buffer
from bench.gpu.probes._scale import Scale
from bench.gpu.probes._test_data import TestData
from bench.gpu.probes.topology import active_clusters, gpc_sets
from monolane._results import Record
from monolane.cuda._device import Launch
from monolane.errors import BackendError

METHODS = {  # enum Method of waits.cu
    "sentinel, re-arm before": 0,
    "sentinel, re-arm after": 1,
    "counter": 2,
    "cluster barrier": 3,
    "remote mbarrier": 4,
}
THREADS = 416
STATE_BYTES = 48
MAX_WORDS = 4 * 4 * 256  # of one exchange, by the kernel's registers
IDLE = 0xFFFFFFFF
SM_IDS = 1024


@dataclass(frozen=True)
class Wait:
    """One configuration: `groups` groups of `members` blocks; `ranks` places them on SMs."""

    method: str
    groups: int
    members: int
    words: int
    stream: bool
    rounds: int
    ranks: tuple[int, ...] | None = field(default=None, repr=False)
    placement: str = "block index"

    @property
    def participants(self) -> int:
        """Blocks that do rounds."""
        return self.groups * self.members

    @property
    def in_cluster(self) -> bool:
        """The methods that need each group to be a cluster."""
        return METHODS[self.method] >= 3

    def labels(self) -> dict[str, object]:
        """How the record names it."""
        return {
            "method": self.method,
            "groups": self.groups,
            "members": self.members,
            "words_per_block": self.words,
            "stream": self.stream,
            "placement": self.placement,
        }


def shared_bytes(ctx: Context, wait: Wait) -> int:
    """Dynamic shared memory: ring, state, log, and the words that cluster methods exchange."""
    scale: Scale = ctx.scale
    ring = scale.stream_slots * (scale.stream_copy + 16)
    own = 2 * wait.members * wait.words * 4 if wait.in_cluster else 0
    return ring + STATE_BYTES + wait.rounds * 4 + own


class Rounds:
    """Launches one configuration and checks everything that it reports."""

    def __init__(self, ctx: Context, data: TestData) -> None:
        self._ctx, self._data = ctx, data

    def measure(self, wait: Wait) -> Record:
        """The distribution of the rounds' times in ns."""
        ctx, sms = self._ctx, self._ctx.device.info.sms
        if wait.words > 1 and wait.members * wait.words > MAX_WORDS:
            raise NotMeasuredError(f"more than {MAX_WORDS} words do not fit the probe's registers")
        if wait.participants > sms:
            raise NotMeasuredError(f"{wait.participants} blocks, {sms} SMs")
        n, grid = wait.participants, wait.participants if wait.in_cluster else sms
        cluster = wait.members if wait.in_cluster else 1
        shape = Launch(grid, THREADS, shared_bytes(ctx, wait), cluster=cluster)
        ctx.fits("waits.cu", "waits", shape)
        ranks = np.full(SM_IDS, IDLE, np.uint32)  # SM ids may have gaps
        ranks[: len(wait.ranks or ())] = wait.ranks or ()
        with ctx.buffers(
            words_base=sentinels(wait.groups * 4 * wait.members * wait.words),
            counters=wait.groups * 128, claims=n * 4, finished=4, log=n * wait.rounds * 4,
            totals=n * 32, results=8, stream_sums=grid * 4, stream_chunks=grid * 4, ranks=ranks,
        ) as b:  # fmt: skip
            table = b["ranks"] if wait.ranks is not None else 0
            values = stream_values(ctx, self._data, wait.stream) | b | {"rank_of_sm": table}
            del values["ranks"]
            ctx.run(
                "waits.cu", "waits", shape, WAITS, method=METHODS[wait.method],
                groups=wait.groups, members=wait.members, words=wait.words, rounds=wait.rounds,
                **values,
            )  # fmt: skip
            self._check(wait, b, grid)
            stream_copy = ctx.scale.stream_copy if wait.stream else 0
            return round_figures(ctx, b, n, wait.rounds, stream_copy)

    def _check(self, wait: Wait, b: dict[str, Buffer], grid: int) -> None:
        device, n = self._ctx.device, wait.participants
        claims = device.download(b["claims"], np.uint32, n)
        expect(
            bool((claims == 1).all()), f"ranks were taken {claims.tolist()} times, not once each"
        )
        wrong, checked = device.download(b["results"], np.uint32, 2).tolist()
        expect_equal("wrong words", wrong, 0)
        expected = n * wait.rounds * wait.members * wait.words
        expect_equal("words checked (modulo 2^32)", checked, expected & 0xFFFFFFFF)
        if wait.stream:
            check_stream(self._ctx, self._data, b, grid)


def stream_values(ctx: Context, data: TestData, stream: bool) -> dict[str, int | Buffer]:
    """The fields of the background stream, in the params of a kernel that has one."""
    scale = ctx.scale
    return {
        "stream_from": data.buffer, "run_bytes": scale.stream_run, "stream": int(stream),
        "slots": scale.stream_slots, "copy_bytes": scale.stream_copy,
        "warm_cycles": scale.warm_cycles,
    }  # fmt: skip


def check_stream(ctx: Context, data: TestData, b: dict[str, Buffer], blocks: int) -> None:
    """Every block's background stream read whole passes of its own run, and every word of them."""
    run, copy = ctx.scale.stream_run, ctx.scale.stream_copy
    got = ctx.device.download(b["stream_sums"], np.uint32, blocks)
    count = ctx.device.download(b["stream_chunks"], np.uint32, blocks)
    for block in range(blocks):
        passes, rest = divmod(int(count[block]) * copy, run)
        expect(passes > 0 and rest == 0, f"block {block} streamed {count[block]} chunks")
        expected = passes * data.expected_sum(block * run, run) & 0xFFFFFFFF
        expect_equal(f"sum of block {block}'s stream", int(got[block]), expected)


def round_figures(
    ctx: Context, b: dict[str, Buffer], blocks: int, rounds: int, stream_copy: int = 0
) -> Record:
    """ns per round over blocks and rounds, less the first tenth (start-up skew)."""
    totals = ctx.table(b["totals"], np.uint64, blocks, 4)
    log = ctx.table(b["log"], np.uint32, blocks, rounds)
    scale = ns_per_cycle(totals)
    settled = log[:, rounds // 10 :].astype(np.float64) * scale
    expect(bool((settled > 0).all()), "a round took no time")
    record: Record = distribution(settled) | {"unit": "ns", "rounds": rounds}
    record["period_ns"] = float(np.median(totals[:, 0]) * scale / rounds)
    record["sm_mhz"] = 1e3 / scale
    if stream_copy:
        chunks = totals[:, 2].astype(np.float64)
        rate = chunks * stream_copy / (totals[:, 0].astype(np.float64) * scale)
        record["stream_gb_per_s_of_participants"] = float(rate.sum())
    return record


def gpc_ranks(sets: Sequence[Sequence[int]], members: int, groups: int, sms: int) -> list[int]:
    """Ranks by SM such that every group lies within one GPC; fewer groups where they do not fit."""
    ranks = [IDLE] * sms
    rank = 0
    for gpc in sets:
        for first in range(0, len(gpc) - members + 1, members):
            if rank == groups * members:
                return ranks
            for sm in gpc[first : first + members]:
                ranks[sm] = rank
                rank += 1
    return ranks


def pair_ranks(a: int, b: int, sms: int) -> tuple[int, ...]:
    """Two SMs exchange, all others stay out."""
    ranks = [IDLE] * sms
    ranks[a], ranks[b] = 0, 1
    return tuple(ranks)


def grid_sync(ctx: Context) -> Record:
    """ns per round over the whole device, by the barrier of cooperative groups."""
    n, rounds = ctx.device.info.sms, ctx.scale.rounds
    shape = Launch(n, 256, cooperative=True)
    try:
        ctx.device.kernel("grid_sync.cu", "grid_sync")
    except BackendError as error:
        raise NotMeasuredError(f"grid_sync.cu needs the toolkit's headers: {error}") from error
    with ctx.buffers(words=n * 8, log=n * rounds * 4, totals=n * 32, results=8) as b:
        ctx.run("grid_sync.cu", "grid_sync", shape, GRID_SYNC, rounds=rounds, **b)
        wrong, checked = ctx.device.download(b["results"], np.uint32, 2).tolist()
        expect_equal("wrong words", wrong, 0)
        expect_equal("words checked", checked, n * n * rounds)
        return round_figures(ctx, b, n, rounds)


def waits(ctx: Context, job: str) -> None:
    """Groups of a lane's size, the whole device, pairs at different distances."""
    sms = ctx.device.info.sms
    rounds = Rounds(ctx, TestData(ctx, ctx.scale.stream_run * sms))
    sets = _sets(ctx)
    for wait in ctx.paced([*_configurations(ctx, sets), *_cluster_configurations(ctx)]):
        ctx.attempt("wait", rounds.measure, wait, **wait.labels())
    _say_what_is_left_out(ctx)
    ctx.attempt(
        "wait", grid_sync, ctx, method="cooperative groups", groups=1, members=sms,
        words_per_block=1, stream=False, placement="block index",
    )  # fmt: skip
    _distances(ctx, rounds, sets)


def _sets(ctx: Context) -> list[list[int]]:
    try:
        return gpc_sets(ctx)
    except (CheckError, BackendError) as error:
        ctx.skip("wait", f"the GPC map failed: {error}", placement="GPC")
        return []


def _configurations(ctx: Context, sets: list[list[int]]) -> list[Wait]:
    scale, sms = ctx.scale, ctx.device.info.sms
    lane = scale.lane_blocks
    lanes = min(scale.lanes, sms // lane)
    by_gpc = tuple(gpc_ranks(sets, lane, lanes, sms))
    gpc_groups = sum(1 for r in by_gpc if r != IDLE) // lane
    out = []
    plain = [m for m, number in METHODS.items() if number < 3]
    for stream, method in product((False, True), plain):
        for words in (1, scale.exchange_words // lane):
            out.append(Wait(method, lanes, lane, words, stream, scale.rounds))
            if gpc_groups:
                out.append(
                    Wait(method, gpc_groups, lane, words, stream, scale.rounds, by_gpc, "GPC")
                )
        whole = lanes * lane
        for members, words in ((sms, 1), (whole, scale.exchange_words // whole // 4 * 4)):
            if words:
                out.append(Wait(method, 1, members, words, stream, scale.rounds))
    return out


def _cluster_configurations(ctx: Context) -> list[Wait]:
    scale, out = ctx.scale, []
    for size in sorted({8, scale.lane_blocks} & set(scale.cluster_sizes)):
        words = scale.exchange_words // size // 4 * 4
        probe = Wait("remote mbarrier", 1, size, words, True, scale.rounds)
        try:
            fit = active_clusters(ctx, size, shared_bytes(ctx, probe))
        except BackendError as error:
            ctx.skip("wait", str(error), method="cluster barrier", members=size)
            continue
        if not fit:
            ctx.skip("wait", "no such cluster fits", method="cluster barrier", members=size)
            continue
        groups = min(fit, scale.lanes * scale.lane_blocks // size)
        for count, stream in product((1, words), (False, True)):
            out.append(Wait("remote mbarrier", groups, size, count, stream, scale.rounds))
        for count in (1, words):
            out.append(Wait("cluster barrier", groups, size, count, False, scale.rounds))
    return out


def _say_what_is_left_out(ctx: Context) -> None:
    why = "barrier.cluster counts every live thread of the cluster, so a free-running producer "
    why += "warp cannot stand aside; the remote mbarrier is the form that can be used beside it"
    ctx.skip("wait", why, method="cluster barrier", stream=True)
    why = "cooperative groups has no barrier for part of a grid, and its grid barrier takes "
    why += "every thread, so neither a lane nor a free-running producer warp can use it"
    labels = {"method": "cooperative groups", "members": ctx.scale.lane_blocks, "stream": True}
    ctx.skip("wait", why, **labels)


def _distances(ctx: Context, rounds: Rounds, sets: list[list[int]]) -> None:
    sms = ctx.device.info.sms
    gpc_of = {sm: i for i, gpc in enumerate(sets) for sm in gpc}
    for stream in (False, True):
        pairs = min(ctx.scale.distance_pairs, sms - 1)
        # Under the stream a few pairs suffice: each of its launches reads gigabytes.
        step = 1 if not stream else max(1, pairs // 8)
        for other in range(1, pairs + 1, step):
            wait = Wait(
                "sentinel, re-arm after", 1, 2, 1, stream, ctx.scale.distance_rounds,
                pair_ranks(0, other, sms), "pair",
            )  # fmt: skip
            ctx.attempt(
                "one_way_flag", rounds.measure, wait, sm_a=0, sm_b=other,
                same_gpc=gpc_of.get(0) == gpc_of.get(other, -1), stream=stream,
            )  # fmt: skip
