"""What a plan and its cost need to know of a machine, and ready descriptions of some.

Measured figures where there are any, else the datasheet's. What waits and links cost is no part of
a plan; `monolane.sim` knows it.
The bandwidths are those that the makers of the released model found effective on eight GPUs, as
their post on 3,000 tokens/s gives them; datasheets promise 4.8 TB/s for an H200 and 5.3 for an
MI300X. Nobody here has measured compute or caches: those are datasheet figures.
"""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from monolane._processor import read_processor
from monolane.errors import ConfigError, RequestError

# More than any GPU has compute units; bounds what a plan allocates.
MAX_WORKERS = 4096


class Choice(StrEnum):
    """Who chooses the next token."""

    LEADER = "leader"  # worker 0, which also lays out the next pass; the others wait for it
    EVERYONE = "everyone"  # each worker for itself, from the same logits: one exchange fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDescription:
    """A machine: ``devices`` equal devices of ``workers`` workers (threads or SMs) each.

    Rates and sizes are those of one device; ``source`` says where the figures come from.
    ConfigError if one of them makes no sense.
    """

    name: str
    workers: int
    bandwidth: float  # bytes/s that a pure read of weights reaches at best
    compute: float  # operations/s of matrix products with 16-bit inputs
    source: str
    devices: int = 1
    cache_bytes: int = 0  # last-level cache, shared
    worker_bytes: int = 0  # fast memory of one worker
    choice: Choice = Choice.EVERYONE
    chunk: int = 64  # keys that one worker attends to in a row where a head's keys are split
    # Rows of the tiles in which weights are packed while they are loaded. Then rows of a head may
    # fall apart among workers: who attends norms and turns queries and keys. 0: weights are
    # multiplied as they are stored.
    tile_rows: int = 0

    def __post_init__(self) -> None:
        for name in ("workers", "devices", "chunk"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MAX_WORKERS:
                raise ConfigError(f"device {self.name}: {name}: expected 1 to 4096, got {value!r}")
        if self.total_workers > MAX_WORKERS:
            raise ConfigError(
                f"device {self.name}: expected at most {MAX_WORKERS} workers on all devices, "
                f"got {self.devices} x {self.workers}"
            )
        above = ("bandwidth", "compute")
        for name in (*above, "cache_bytes", "worker_bytes", "tile_rows"):
            value, positive = getattr(self, name), name in above
            if not 0 <= value < float("inf") or (positive and value == 0):
                wanted = "a finite number above zero" if positive else "zero or more"
                raise ConfigError(f"device {self.name}: {name}: expected {wanted}, got {value}")

    @property
    def total_workers(self) -> int:
        """Workers of all devices, numbered device by device."""
        return self.devices * self.workers

    @property
    def total_bandwidth(self) -> float:
        """Bytes/s of all devices together."""
        return self.devices * self.bandwidth

    @property
    def total_compute(self) -> float:
        """Operations/s of all devices together."""
        return self.devices * self.compute


H200 = DeviceDescription(
    name="h200",
    workers=128,  # of 132 SMs: 8 lanes x 16; the four others idle
    bandwidth=30.7e12 / 8,
    compute=989e12,  # dense BF16
    source="bandwidth: 30.7 TB/s effective on eight, published by Kog; "
    "the rest: NVIDIA H200 SXM datasheet; to be measured here",
    cache_bytes=50 << 20,
    worker_bytes=227 << 10,  # shared memory that one block may use
    tile_rows=16,
)

MI300X = DeviceDescription(
    name="mi300x",
    workers=304,  # CUs: 8 XCDs x 38
    bandwidth=33.6e12 / 8,
    compute=1307e12,  # dense BF16
    source="bandwidth: 33.6 TB/s effective on eight, published by Kog; "
    "the rest: AMD Instinct MI300X datasheet",
    cache_bytes=256 << 20,
    worker_bytes=64 << 10,  # LDS
    tile_rows=16,
)

H100 = replace(
    H200,
    name="h100",
    bandwidth=3.35e12,
    source="NVIDIA H100 SXM datasheet; nobody has told us an effective bandwidth",
)

B200 = DeviceDescription(
    name="b200",
    workers=144,  # of 148 SMs: 8 lanes x 18; the four others idle
    bandwidth=8e12,
    compute=2250e12,  # dense BF16
    source="NVIDIA B200 datasheet; nobody has told us an effective bandwidth",
    cache_bytes=126 << 20,
    worker_bytes=227 << 10,
    tile_rows=16,
)

MI350X = DeviceDescription(
    name="mi350x",
    workers=256,  # CUs: 8 XCDs x 32
    bandwidth=8e12,
    compute=2300e12,  # dense BF16
    source="AMD Instinct MI350X datasheet; nobody has told us an effective bandwidth",
    cache_bytes=256 << 20,
    worker_bytes=160 << 10,  # LDS
    tile_rows=16,
)
_GPUS = {device.name: device for device in (H100, H200, B200, MI300X, MI350X)}


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
        choice=Choice.LEADER,
        chunk=256,
    )


def find_device(name: str) -> DeviceDescription:
    """Return the description that a name stands for: cpu, cpu:N, a GPU such as h200, or NxGPU."""
    match = re.fullmatch(r"(?:(\d{1,4})x)?([a-z]\w*)|cpu(?::(\d{1,4}))", name.lower())
    count, model, threads = match.groups() if match is not None else (None, "", None)
    if threads is not None or (model == "cpu" and count is None):
        return cpu(int(threads) if threads is not None else read_processor().workers)
    if model not in _GPUS:
        raise RequestError(
            f"device: expected cpu, cpu:N, {', '.join(_GPUS)}, or several as in 8xh200, got "
            f"{name!r}"
        )
    one = _GPUS[model]
    return one if count is None else replace(one, name=f"{count}x{model}", devices=int(count))
