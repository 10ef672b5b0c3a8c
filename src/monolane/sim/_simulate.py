"""Passes of a plan in simulated time: each worker walks its phases and waits as the plan says.

An event is a worker that ends a phase. When it does follows from its own earlier events and from
those that its wait names, which all lie before it in the plan's order. So events are computed phase
by phase, for all workers at once, and no queue of events is needed: counts point backwards.

A worker's weights lie in one run, in order of use, and arrive at its share of the bandwidth, less
what the worker itself takes for them. While it waits they go on arriving until its ring is full. A
phase ends when its weights have arrived and when they are multiplied, whichever is later. Keys and
values are read when they are wanted.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from monolane.plan import OUTPUTS, Phase, PhaseKind, Plan, Scope, phase_cost, worker_bytes
from monolane.sim._rates import Rates

Times = npt.NDArray[np.float64]  # [W]

_PASSES = 3  # the last of which is in step with those before
_WORD = 8  # bytes of a value on its way: it carries its stamp


@dataclass(frozen=True, slots=True)
class Step:
    """A phase of the last pass; seconds, [W]: a worker comes, may begin, multiplies, is done."""

    phase: Phase
    arrived: Times
    begun: Times
    multiplied: Times
    ended: Times
    waited_for: Scope | None  # whose wait took longest, on the mean over workers
    bytes: Times


@dataclass(frozen=True, slots=True)
class Run:
    """The last of some passes, and how long a pass takes once they follow each other."""

    steps: tuple[Step, ...]
    seconds: float


class Simulation:
    """A plan's pass of ``width`` tokens, to be timed with one set of rates or many.

    ``length`` counts the sequence with these tokens; by default it fills the plan's context.
    """

    def __init__(self, plan: Plan, width: int = 1, length: int | None = None) -> None:
        self.plan, self.width = plan, width
        self.bytes = [
            worker_bytes(plan, phase, width, length).astype(np.float64) for phase in plan.phases
        ]
        self.computing = [self._computing(phase, length) for phase in plan.phases]  # seconds, [W]
        self.sent = [_sent(plan, phase, width) for phase in plan.phases]

    def run(self, rates: Rates) -> Run:
        """Return a pass in a row of equal ones."""
        return _Clock(self, rates).run()

    def _computing(self, phase: Phase, length: int | None) -> Times:
        """Share out the operations as the bytes are."""
        moved, device = self.bytes[phase.index], self.plan.device
        operations = phase_cost(self.plan, phase, self.width, length).operations
        seconds: Times = (
            operations * moved / max(1.0, moved.sum()) * device.workers / device.compute
        )
        return seconds


class _Clock:
    """The state of all workers while passes go by."""

    def __init__(self, work: Simulation, rates: Rates) -> None:
        self.work, self.plan, self.rates = work, work.plan, rates
        self.rate = 1 / (self.plan.device.workers / rates.bandwidth + rates.handling)
        self.teams = {scope: _Team(self.plan, rates, scope) for scope in Scope}
        self.now = np.zeros(self.plan.groups.workers)
        self.ready = np.zeros(self.plan.groups.workers)  # bytes in the rings
        self.ended: list[Times] = []

    def run(self) -> Run:
        ends = []
        for _ in range(_PASSES):
            steps = tuple(self._step(phase) for phase in self.plan.phases)
            ends.append(float(self.now.max()))
        return Run(steps, ends[-1] - ends[-2])

    def _step(self, phase: Phase) -> Step:
        arrived = self.now
        begun, scope = self._wait(phase, arrived)
        multiplied = begun + self.rates.chain.get(phase.kind, 0.0)
        self._fill(multiplied - arrived)
        moved = self.work.bytes[phase.index]
        self.now = multiplied + self._product(phase, moved)
        self.ended.append(self.now)
        return Step(phase, arrived, begun, multiplied, self.now, scope, moved)

    def _wait(self, phase: Phase, arrived: Times) -> tuple[Times, Scope | None]:
        """Return when workers may begin, and the wait that kept them longest."""
        begun, longest = arrived, None
        for wait in phase.waits:
            index = len(self.ended) - phase.index + wait.count - 1
            if index < 0:
                continue  # before the first pass
            sent = self.work.sent[index % len(self.plan.phases)]
            seen = np.maximum(begun, self.teams[wait.scope].seen(self.ended[index], sent))
            if seen.sum() > begun.sum():
                longest = wait.scope
            begun = seen
        return begun, longest

    def _fill(self, seconds: Times) -> None:
        self.ready = np.minimum(self.rates.ring, self.ready + self.rate * seconds)

    def _product(self, phase: Phase, moved: Times) -> Times:
        """Return how long it takes, and leave in the rings what arrives meanwhile."""
        computing = self.work.computing[phase.index]
        if phase.kind is PhaseKind.ATTEND:  # keys come past the ring, and have the bandwidth
            return np.maximum(moved / self.rate, computing)
        late = (moved - self.ready) / self.rate
        multiplying = moved / (self.rate * max(self.rates.catch_up, 1.0))
        seconds: Times = np.maximum.reduce([late, multiplying, computing])
        left = self.ready + self.rate * seconds - moved
        self.ready = np.minimum(np.maximum(left, 0.0), self.rates.ring)
        return seconds


def _sent(plan: Plan, phase: Phase, width: int) -> float:
    """Return the bytes that one device sends to all others, of what a phase writes."""
    values = 0.0
    for access in phase.writes:
        if access.buffer in OUTPUTS:
            shape = plan.shape(access.buffer)
            values += prod(shape) / plan.max_width * width
    devices = plan.device.devices
    return values / devices * (devices - 1) * _WORD


class _Team:
    """Who waits for whom in a scope: cells are the workers of one device that wait together."""

    def __init__(self, plan: Plan, rates: Rates, scope: Scope) -> None:
        self._rates = rates
        workers = np.arange(plan.groups.workers)
        group = workers // plan.groups.workers_each if scope is Scope.GROUP else workers * 0
        device = workers // plan.device.workers
        change = (np.diff(group) != 0) | (np.diff(device) != 0)
        self._first = np.concatenate([[0], 1 + np.flatnonzero(change)])
        self._cell = np.concatenate([[0], np.cumsum(change)])  # of a worker
        together = group[self._first][:, None] == group[self._first][None, :]
        sizes = np.diff(np.append(self._first, len(workers)))
        wide = (sizes == plan.device.workers) | (scope is Scope.ALL)
        sync = np.where(wide, rates.all_sync, rates.group_sync) * (sizes > 1)
        hop = rates.link_latency + rates.skew
        self._delay_CC = np.where(together, hop, -np.inf)
        np.fill_diagonal(self._delay_CC, sync)
        self._far_CC = ~np.eye(len(sizes), dtype=bool)  # what is sent takes time only there

    def seen(self, ended: Times, sent: float) -> Times:
        """Return when each worker knows that all of its team have ended, [W]."""
        last_C = np.maximum.reduceat(ended, self._first)
        delay_CC = self._delay_CC + self._far_CC * (sent / self._rates.link_bandwidth)
        seen: Times = (last_C[None, :] + delay_CC).max(axis=1)[self._cell]
        return seen
