"""What a plan and its cost need to know of a machine."""

from dataclasses import dataclass
from enum import StrEnum

from monolane.errors import ConfigError

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
    group_sync: float = 0.0  # seconds for one wait among the workers of a lane group
    all_sync: float = 0.0  # seconds for one wait among all workers of a device
    link_latency: float = 0.0  # seconds for a flag to reach another device
    link_bandwidth: float = 0.0  # bytes/s from one device to the others
    choice: Choice = Choice.EVERYONE
    chunk: int = 64  # keys that one worker attends to in a row where a head's keys are split

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
        for name in ("bandwidth", "compute"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"device {self.name}: {name}: expected a number above zero, "
                    f"got {getattr(self, name)}"
                )
        names = ("cache_bytes", "worker_bytes", "group_sync", "all_sync", "link_latency")
        for name in (*names, "link_bandwidth"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"device {self.name}: {name}: expected zero or more, got {getattr(self, name)}"
                )

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
