"""How a plan sees a GPU: so many workers, one for each SM that is used."""

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np

from monolane.cuda._computed import check_computed
from monolane.cuda._device import GpuInfo
from monolane.cuda._lay_out import lay_out
from monolane.cuda._layout import Layout, row_counts
from monolane.cuda._tiling import TILE
from monolane.errors import BackendError, ConfigError
from monolane.model import ModelConfig
from monolane.plan import Choice, DeviceDescription, PhaseKind, Plan, build

Layouts = tuple[Layout, ...]
OLDEST = (8, 0)  # compute capability: the first with bf16 matrix units and asynchronous copies
WIDTHS = (1, 8, 64)  # rows of a pass at most, of each kernel
CHUNK = 16  # keys: what one warp takes at a time, so that the splits of short contexts are even
_SMALL_SLOT_BYTES = 12 << 10  # before slots are smaller,
_FEW_SLOTS = 4  # or a ring has fewer, sums are folded
# Whether sums must be folded round by round for slots of a size, and activations of eight rows live
# in memory: what comes first costs less.
_WAYS = ((False, False), (True, False), (True, True))
_BLOCK_BANDWIDTH = 64e9  # bytes/s that a block streams at most: a guess, twice its even share
_WORTH = 0.995  # of the time: what makes it worth to leave SMs idle
_RING_BYTES = 192 << 10  # about what a ring holds
# Ring slots, in bytes. Large ones cost fewer barriers; a GPU with less shared memory, or a model
# with more activations, leaves memory for small ones only.
_SLOT_BYTES = (24 << 10, 16 << 10, 12 << 10, 8 << 10, 4 << 10)


def lay_out_widths(
    config: ModelConfig,
    gpu: GpuInfo,
    dtype: str,
    context: int,
    widths: Sequence[int],
    devices: int = 1,
) -> Layouts:
    """Return the layouts of kernels of several widths, ascending, which share weights and cache.

    ``devices``: GPUs such as ``gpu`` that the lanes are dealt out to, a divisor of their number.
    Wide ones that do not fit are left out. BackendError if the GPU is too old or too small.
    """
    if gpu.compute < OLDEST:
        raise BackendError(
            f"cuda: expected compute capability {OLDEST[0]}.{OLDEST[1]} or later (A100, RTX 30), "
            f"got {gpu.compute[0]}.{gpu.compute[1]} of {gpu.name}; use backend='cpu'"
        )
    check_computed(config)  # before a plan is looked through for phases that it may not have
    plans = [_plan(config, gpu, dtype, width, context, devices) for width in widths]
    refused = ""
    for count in range(len(plans), 0, -1):
        for (folds, widens), slot_bytes in product(_WAYS, _SLOT_BYTES):
            if not folds and slot_bytes < _SMALL_SLOT_BYTES:
                continue
            try:
                if not folds:  # fails where nothing less would do
                    _cut(plans[:count], gpu, devices, slot_bytes, few_slots=0, widens=False)
                return _cut(plans[:count], gpu, devices, slot_bytes, _FEW_SLOTS, widens)
            except ConfigError as error:
                refused = str(error)
    raise BackendError(f"{refused}, on {gpu.name}; use backend='cpu'")


def _cut(
    plans: Sequence[Plan],
    gpu: GpuInfo,
    devices: int,
    slot_bytes: int,
    few_slots: int,
    widens: bool,
) -> Layouts:
    return tuple(
        lay_out(
            plan,
            slot_bytes=slot_bytes,
            shared_limit=gpu.shared_bytes,
            devices=devices,
            few_slots=few_slots,
            widens=widens,
        )
        for plan in plans
    )


def _plan(
    config: ModelConfig, gpu: GpuInfo, dtype: str, width: int, context: int, devices: int
) -> Plan:
    """Return the plan with the number of blocks a lane, one block per SM, that streams fastest.

    SMs that are left over idle. A small model gets fewer blocks, so that none is left without a row
    of the residual stream.
    """
    lanes = config.num_lanes // devices
    most = gpu.sms // lanes
    if most == 0:
        raise BackendError(
            f"cuda: expected at least {lanes} SMs, one for each lane of the model, got "
            f"{gpu.sms} on {gpu.name}; use backend='cpu'"
        )
    best: tuple[float, Plan] | None = None
    for blocks in _block_counts(min(most, config.hidden_size), config):
        device = _describe(gpu, blocks * config.num_lanes)
        plan = build(config, device, dtype, max_width=width, context=context)
        (stream,) = plan.find(PhaseKind.OUT, 0).matrices
        if any(a >= b for a, b in pairwise(stream.share.bounds)):
            continue
        seconds = _stream_seconds(plan)
        if best is None or seconds < _WORTH * best[0]:
            best = seconds, plan
        if config.num_lanes > 1:
            break
    assert best is not None, "one block has all rows"
    return best[1]


def _block_counts(most: int, config: ModelConfig) -> list[int]:
    """Return numbers of blocks that are worth a look, the most first.

    Of a model with lanes the first that gives each block a row; of a dense one also those that
    leave few SMs idle, and those among which the stream's tiles come out even.
    """
    if config.num_lanes > 1:
        return list(range(most, 0, -1))
    tiles = -(-config.hidden_size // TILE)
    even = (x for x in range(most, 0, -1) if tiles % x == 0)
    return sorted({most, most // 8 * 8, most // 16 * 16, next(even), 1} - {0}, reverse=True)


def _stream_seconds(plan: Plan) -> float:
    """Return how long a pass takes if nothing but weights cost time.

    A phase ends, for all, when the last block has its tiles. Who has fewer goes on with what comes
    next, until its ring is full.
    """
    workers, bandwidth = plan.groups.workers, plan.device.bandwidth
    ahead = np.zeros(workers)  # bytes of the next phases that a block has
    total = 0.0
    for phase in plan.phases:
        if phase.matrices:
            tiles = -(-row_counts(plan, phase.kind, phase.layer) // TILE)
            needed = tiles * (TILE * phase.matrices[0].row_bytes)
            missing = np.maximum(needed - ahead, 0)
            seconds = max(missing.max() / _BLOCK_BANDWIDTH, missing.sum() / bandwidth)
            spare = (seconds * bandwidth - missing.sum()) / workers
            ahead = np.minimum(ahead + missing - needed + spare, _RING_BYTES)
            total += seconds
    return total


def _describe(gpu: GpuInfo, workers: int) -> DeviceDescription:
    return DeviceDescription(
        name=gpu.name,
        workers=workers,
        # Only cost estimates read the rates; an executor's plan does not depend on them.
        bandwidth=gpu.sms * 36e9,
        compute=gpu.sms * 7.5e12,
        source="not measured: an H200's rates per SM",
        worker_bytes=gpu.shared_bytes,
        choice=Choice.EVERYONE,
        chunk=CHUNK,
        tile_rows=TILE,
    )
