"""Times of phases for a run whose ranks are real and whose products take a modelled time.

Such a run (``CpuExecutor(timed=True)``) shows more ranks than a machine has cores. All times are
stretched by a stated factor: what waking a process costs, some tens of microseconds, is small then.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from monolane.plan import PhaseKind, Plan, main_format
from monolane.sim._machine import Machine
from monolane.sim._rates import Rates
from monolane.sim._simulate import Simulation

_WITHIN = frozenset(PhaseKind) - {
    PhaseKind.EMBED,
    PhaseKind.NORM_QK,
    PhaseKind.GATHER,
    PhaseKind.HEAD,
    PhaseKind.CHOOSE,
}


@dataclass(frozen=True, slots=True)
class Timetable:
    """Nanoseconds, stretched; what csrc/ranks/simulated_time.h means by them."""

    times: npt.NDArray[np.int64]  # [phases, W, 4]: chain, stream, most, beside
    ring: int
    hops: tuple[int, ...]  # [phases + 1]: until others see what a phase wrote; last, a pass


class Ranks:
    """The pass of a plan whose workers are one rank each, a device of a machine behind every one.

    A device with several workers counts as one: the wait among them, once before each phase of a
    layer, becomes a part of the phase's chain, and their rings one ring.
    """

    def __init__(self, machine: Machine, plan: Plan, length: int | None = None) -> None:
        inner = machine.device.workers
        device = replace(machine.device, workers=1)
        rates = machine.timing.rates(main_format(plan))
        within = rates.all_sync if inner > 1 else 0.0
        chain = {k: v + within * (k in _WITHIN) for k, v in rates.chain.items()}
        # Real processes bring a skew of their own.
        self.rates = replace(rates, chain=chain, ring=rates.ring * inner, link_latency=0, skew=0)
        self.work = Simulation(replace(plan, device=device), 1, length)

    def with_link(self, seconds: float) -> Rates:
        """Return the rates with a link of that latency."""
        return replace(self.rates, link_latency=seconds)

    def seconds(self, link: float) -> float:
        """Return the time of a pass, as the simulator has it."""
        return self.work.run(self.with_link(link)).seconds

    def timetable(self, link: float, stretch: float) -> Timetable:
        """Return the times of the same pass for an executor."""
        rates, plan = self.rates, self.work.plan
        rate = rates.bandwidth / plan.device.workers
        seconds = np.zeros((len(plan.phases), plan.groups.workers, 4))
        for phase in plan.phases:
            moved, computing = self.work.bytes[phase.index], self.work.computing[phase.index]
            chain, stream, most, beside = np.moveaxis(seconds[phase.index], -1, 0)
            chain[:] = rates.chain.get(phase.kind, 0.0)
            if phase.kind is PhaseKind.ATTEND:
                beside[:] = np.maximum(moved / rate, computing)
            else:
                stream[:] = moved / rate
                most[:] = np.maximum(stream / max(rates.catch_up, 1.0), computing)
        hops = [link + sent / rates.link_bandwidth for sent in [*self.work.sent, 0.0]]
        return Timetable(
            np.rint(seconds * stretch * 1e9).astype(np.int64),
            round(rates.ring / rate * stretch * 1e9),
            tuple(round(hop * stretch * 1e9) for hop in hops),
        )
