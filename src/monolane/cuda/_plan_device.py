"""How a plan sees a GPU: as many workers as the lanes divide evenly among its SMs."""

from collections.abc import Sequence
from itertools import pairwise

from monolane.cuda._device import GpuInfo
from monolane.cuda._layout import Layout, check_computed, lay_out
from monolane.errors import BackendError, ConfigError
from monolane.model import ModelConfig
from monolane.plan import Choice, DeviceDescription, PhaseKind, Plan, build

OLDEST = (8, 0)  # compute capability: the first with bf16 matrix units and asynchronous copies
WIDTHS = (1, 8, 64)  # rows of a pass at most, of each kernel
CHUNK = 16  # keys: what one warp takes at a time, so that the splits of short contexts are even
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
) -> tuple[Layout, ...]:
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
        for slot_bytes in _SLOT_BYTES:
            try:
                return tuple(
                    lay_out(
                        plan, slot_bytes=slot_bytes, shared_limit=gpu.shared_bytes, devices=devices
                    )
                    for plan in plans[:count]
                )
            except ConfigError as error:
                refused = str(error)
    raise BackendError(f"{refused}, on {gpu.name}; use backend='cpu'")


def _plan(
    config: ModelConfig, gpu: GpuInfo, dtype: str, width: int, context: int, devices: int
) -> Plan:
    """Return the plan with the most blocks, the same number for every lane, one per SM.

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
    for blocks in range(min(most, config.hidden_size), 0, -1):
        device = _describe(gpu, blocks * config.num_lanes)
        plan = build(config, device, dtype, max_width=width, context=context)
        (stream,) = plan.find(PhaseKind.OUT, 0).matrices
        bounds = stream.share.bounds
        if all(a < b for a, b in pairwise(bounds)):
            break
    return plan


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
    )
