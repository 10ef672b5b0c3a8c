"""Ready descriptions of machines. Datasheet figures until a measurement replaces them."""

import os
import re
from dataclasses import replace

from monolane.errors import ConfigError
from monolane.plan._device import Choice, DeviceDescription

H200 = DeviceDescription(
    name="h200",
    workers=128,  # of 132 SMs: 8 lanes x 16; the four others idle
    bandwidth=4.8e12,
    compute=989e12,  # dense BF16
    source="NVIDIA H200 SXM datasheet; latencies of public measurements, to be measured here",
    cache_bytes=50 << 20,
    worker_bytes=227 << 10,  # shared memory that one block may use
    group_sync=0.8e-6,
    all_sync=1.4e-6,
    link_latency=0.82e-6,  # idle; about 2 us under load
    link_bandwidth=450e9,  # NVLink 4, one direction
)

MI300X = DeviceDescription(
    name="mi300x",
    workers=304,  # CUs: 8 XCDs x 38
    bandwidth=5.3e12,  # 4.0 to 4.2 TB/s are measured in public
    compute=1307e12,  # dense BF16
    source="AMD Instinct MI300X datasheet; latencies of public measurements",
    cache_bytes=256 << 20,
    worker_bytes=64 << 10,  # LDS
    group_sync=0.4e-6,  # one XCD
    all_sync=0.9e-6,
    link_latency=1.2e-6,
    link_bandwidth=448e9,  # seven links of 64 GB/s, one direction
)


def cpu(workers: int, bandwidth: float = 45e9) -> DeviceDescription:
    """Describe this machine's processor with that many threads and a stated read bandwidth.

    The default bandwidth is that of a 2-core Zen 5 virtual machine; measure your own.
    """
    return DeviceDescription(
        name=f"cpu:{workers}",
        workers=workers,
        bandwidth=bandwidth,
        compute=workers * 512e9,  # 2 x 32 BF16 multiply-adds a cycle at 4 GHz
        source="stated, not measured: 44 to 49 GB/s were read on two cores of a Zen 5 machine",
        cache_bytes=32 << 20,
        worker_bytes=1 << 20,
        group_sync=0.2e-6,
        all_sync=0.2e-6,
        choice=Choice.LEADER,
        chunk=256,
    )


def find_device(name: str) -> DeviceDescription:
    """Return the description that a name stands for: cpu, cpu:N, h200, mi300x, or NxNAME."""
    match = re.fullmatch(r"(?:(\d{1,4})x)?(h200|mi300x)|cpu(?::(\d{1,4}))?", name.lower())
    if match is None:
        raise ConfigError(
            f"device: expected cpu, cpu:N, h200, mi300x, or several as in 8xh200, got {name!r}"
        )
    count, model, threads = match.groups()
    if model is None:
        return cpu(int(threads) if threads is not None else _cores())
    one = {"h200": H200, "mi300x": MI300X}[model]
    return one if count is None else replace(one, name=f"{count}x{model}", devices=int(count))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
