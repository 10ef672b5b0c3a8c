"""The probes, in the order in which they run: what the design needs first comes first."""

from __future__ import annotations

from bench.gpu.probes._context import Probe
from bench.gpu.probes.bandwidth import Bandwidth
from bench.gpu.probes.choose import Token
from bench.gpu.probes.launches import Launches
from bench.gpu.probes.mailbox import Mailbox
from bench.gpu.probes.matvec import Matvec
from bench.gpu.probes.topology import Topology
from bench.gpu.probes.waits import Waits

PROBES: tuple[Probe, ...] = (
    Topology(), Bandwidth(), Waits(), Launches(), Token(), Mailbox(), Matvec(),
)  # fmt: skip


def probe(name: str) -> Probe:
    """The probe of that name."""
    for candidate in PROBES:
        if candidate.name == name:
            return candidate
    raise ValueError(f"expected one of {', '.join(p.name for p in PROBES)}, got {name!r}")
