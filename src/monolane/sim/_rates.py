"""Plain numbers that a simulated device runs by; _constants.py knows where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from monolane.plan import PhaseKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Times in seconds, rates in bytes/s; all but the link's are of one device.

    With the defaults a device streams and does nothing else: no waits cost anything.
    """

    bandwidth: float  # at which weights arrive while a worker wants them
    handling: float = 0.0  # seconds a worker takes for a byte that has arrived, while none arrive
    ring: float = 0.0  # bytes that a worker has ready at most before a phase wants them
    catch_up: float = (
        1.0  # rate at which weights that are ready are multiplied, by that of arriving
    )
    group_sync: float = 0.0  # from the last write of a group of workers to all of them seeing it
    all_sync: float = 0.0  # the same among all workers of a device
    link_latency: float = 0.0  # from a write to another device seeing it
    link_bandwidth: float = float("inf")  # out of one device, to all others together
    skew: float = 0.0  # by which devices miss each other at an exchange
    chain: Mapping[PhaseKind, float] = field(default_factory=dict)  # from wait to product
    launch: float = 0.0  # of an epoch
