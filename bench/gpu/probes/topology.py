"""Probe "topology": how many clusters fit, and which SMs share a GPC.

The blocks of a cluster run in one GPC, so joining the SMs of many clusters of several sizes leaves
one set per GPC. Sizes that are not powers of two straddle the sets that the others leave.
"""

from __future__ import annotations

import numpy as np

from bench.gpu._stage import NotMeasuredError, expect
from bench.gpu.probes._context import Context, sentinels
from bench.gpu.probes._kernels import TOPOLOGY
from monolane._results import Record
from monolane.cuda._device import Launch
from monolane.errors import BackendError

ONE_PER_SM = 120 * 1024  # more than half of an SM's shared memory


class Partition:
    """Union-find over SMs."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, sm: int) -> int:
        """The representative of the SM's set."""
        while self._parent[sm] != sm:
            self._parent[sm] = self._parent[self._parent[sm]]
            sm = self._parent[sm]
        return sm

    def join(self, a: int, b: int) -> None:
        """Both SMs are in one GPC."""
        self._parent[self.root(a)] = self.root(b)

    def sets(self) -> list[list[int]]:
        """The sets, by their lowest SM."""
        groups: dict[int, list[int]] = {}
        for sm in range(len(self._parent)):
            groups.setdefault(self.root(sm), []).append(sm)
        return sorted(groups.values())


def _one_per_sm(ctx: Context) -> int:
    return min(ONE_PER_SM, ctx.device.info.shared_bytes)


def _run_clusters(ctx: Context, size: int, clusters: int) -> list[list[int]]:
    """One launch: the SMs of each cluster."""
    shape = Launch(size * clusters, 32, _one_per_sm(ctx), cluster=size)
    with ctx.buffers(out=sentinels(size * clusters)) as b:
        ctx.run(
            "topology.cu", "where_am_i", shape, TOPOLOGY, sm_of_block=b["out"],
            hold_cycles=ctx.scale.hold_cycles,
        )  # fmt: skip
        sms = ctx.table(b["out"], np.uint32, clusters, size)
    limit = ctx.device.info.sms
    expect(bool((sms < limit).all()), f"a block reported SM {sms.max()}, the device has {limit}")
    return [[int(v) for v in row] for row in sms]


def active_clusters(ctx: Context, size: int, shared: int) -> int:
    """How many clusters of `size` blocks with `shared` bytes are resident at once."""
    kernel = ctx.device.kernel("topology.cu", "where_am_i")
    return ctx.device.max_active_clusters(kernel, Launch(size, 32, shared, cluster=size))


def gpc_sets(ctx: Context) -> list[list[int]]:
    """The SMs of each GPC, as far as clusters reveal them."""
    partition = Partition(ctx.device.info.sms)
    largest = max(ctx.scale.cluster_sizes)
    for size in [*range(2, min(largest, 8) + 1), *([16] if largest >= 16 else [])]:
        try:
            fit = active_clusters(ctx, size, _one_per_sm(ctx))
        except BackendError:
            continue  # a size that this device refuses tells nothing
        for launch in range(ctx.scale.topology_launches if fit else 0):
            for cluster in _run_clusters(ctx, size, max(1, fit - launch % 3)):
                for sm in cluster[1:]:
                    partition.join(cluster[0], sm)
    return partition.sets()


def _cluster_figures(ctx: Context, size: int, shared: int) -> Record:
    try:
        fit = active_clusters(ctx, size, shared)
    except BackendError as error:
        raise NotMeasuredError(str(error)) from error
    if fit:
        seen = _run_clusters(ctx, size, fit)
        expect(
            all(len(set(c)) == size for c in seen) if shared >= ONE_PER_SM else True,
            "two blocks of a cluster shared an SM that holds only one of them",
        )
    return {"max_active_clusters": fit, "blocks": fit * size}


def _map_figures(ctx: Context) -> Record:
    sets = gpc_sets(ctx)
    sizes = sorted((len(s) for s in sets), reverse=True)
    expect(sum(sizes) == ctx.device.info.sms, f"the sets {sizes} do not cover all SMs")
    return {"gpc_sizes": sizes, "sms_of_gpc": sets, "alone": sum(1 for n in sizes if n == 1)}


def topology(ctx: Context, job: str) -> None:
    """Cluster occupancy, then the map."""
    for size in ctx.scale.cluster_sizes:
        for shared in (0, _one_per_sm(ctx)):
            labels = {"cluster": size, "shared_bytes": shared}
            ctx.attempt("max_active_clusters", _cluster_figures, ctx, size, shared, **labels)
    ctx.attempt("gpc_map", _map_figures, ctx)
