"""Tokens per second of a plan on a machine: a figure, an interval, and where the time goes."""

from dataclasses import dataclass
from math import hypot
from typing import Any

from monolane.plan import PhaseKind, Plan, Scope, Slice, Trace, main_format, pass_cost
from monolane.sim._constants import NAMES, Level
from monolane.sim._machine import Machine
from monolane.sim._simulate import Run, Simulation, Step

EPOCH_TOKENS = 256  # over which a launch is spread, unless stated
PARTS = ("streaming", "chain", "wait_group", "wait_all", "choose", "launch")


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """A constant, and the speeds (tokens/s) that its bounds would give; the rest as stated."""

    name: str
    slow: float
    fast: float

    @property
    def span(self) -> float:
        """How far the two are apart, tokens/s."""
        return self.fast - self.slow


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of a pass of ``width`` tokens; seconds, and tokens per second."""

    machine: Machine
    plan: Plan
    width: int
    seconds: float
    least: float  # seconds, if all goes as well as the constants' bounds allow: see ``forecast``
    most: float
    floor: float  # bytes by the bandwidth that the simulator believes in, nothing else
    parts: dict[str, float]  # seconds of a pass by PARTS, on the mean over workers
    uncertainties: tuple[Uncertainty, ...]  # the largest first
    run: Run

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.width / self.seconds

    @property
    def interval(self) -> tuple[float, float]:
        """The least and the largest speed that we would believe."""
        return self.width / self.most, self.width / self.least

    def record(self) -> dict[str, Any]:
        """Return it as JSON can hold it; times in us."""
        low, high = self.interval
        groups = self.plan.groups
        return {
            "device": self.machine.name,
            "standing": self.machine.standing,
            "predicted": not self.machine.timing.executed,
            "dtype": self.plan.stored,
            "context": self.plan.context,
            "width": self.width,
            "groups": {
                "count": groups.count,
                "lanes": groups.lanes_each,
                "workers": groups.workers_each,
            },
            "bytes": pass_cost(self.plan, self.width).bytes,
            "tokens_per_s": self.speed,
            "tokens_per_s_low": low,
            "tokens_per_s_high": high,
            "us_per_pass": self.seconds * 1e6,
            "floor_us": self.floor * 1e6,
            "parts_us": {name: seconds * 1e6 for name, seconds in self.parts.items()},
            "uncertainties": [
                {"constant": u.name, "tokens_per_s_low": u.slow, "tokens_per_s_high": u.fast}
                for u in self.uncertainties
            ],
        }

    def trace(self) -> Trace:
        """Return one pass on one worker of each group and device, as a run would be traced."""
        groups, each = self.plan.groups, self.plan.device.workers
        apart = min(groups.workers_each, each)
        shown = range(0, groups.workers, apart)
        start = min(float(step.arrived.min()) for step in self.run.steps)

        def ns(seconds: float) -> int:
            return round((seconds - start) * 1e9)

        slices = [
            Slice(
                worker,
                step.phase,
                ns(step.arrived[worker]),
                ns(step.begun[worker]),
                ns(step.ended[worker]),
                int(step.bytes[worker]),
            )
            for step in self.run.steps
            for worker in shown
        ]
        return Trace(len(shown), 1, tuple(slices))


def forecast(
    machine: Machine, plan: Plan, width: int = 1, epoch_tokens: int = EPOCH_TOKENS
) -> Forecast:
    """Return what to expect of a pass at the plan's context.

    The interval takes the constants as independent: of the differences that their bounds make, the
    squares are added, each way by itself. So it is narrower than the worst case, in which all
    constants are at their worst bound at once.
    """
    simulation, dtype = Simulation(plan, width), main_format(plan, width)
    rates = machine.timing.rates(dtype)
    run = simulation.run(rates)
    mean = run.seconds + rates.launch / epoch_tokens

    def seconds(levels: dict[str, Level]) -> float:
        other = machine.timing.rates(dtype, levels)
        if other == rates:  # a constant without an interval
            return mean
        return simulation.run(other).seconds + other.launch / epoch_tokens

    found, better, worse = [], 0.0, 0.0
    for name in NAMES:
        both = [seconds({name: "low"}), seconds({name: "high"})]
        fast, slow = min(*both, mean), max(*both, mean)
        better, worse = hypot(better, mean - fast), hypot(worse, slow - mean)
        found.append(Uncertainty(name, width / slow, width / fast))
    return Forecast(
        machine,
        plan,
        width,
        mean,
        max(mean - better, 1e-12),
        mean + worse,
        pass_cost(plan, width).bytes / rates.bandwidth / plan.device.devices,
        _parts(run) | {"launch": rates.launch / epoch_tokens},
        tuple(sorted((u for u in found if u.span > 0), key=lambda u: -u.span)),
        run,
    )


def _parts(run: Run) -> dict[str, float]:
    parts = dict.fromkeys(PARTS, 0.0)
    for step in run.steps:
        for name, seconds in _split(step).items():
            parts[name] += seconds
    return parts


def _split(step: Step) -> dict[str, float]:
    if step.phase.kind is PhaseKind.CHOOSE:
        return {"choose": float((step.ended - step.arrived).mean())}
    wait = "wait_all" if step.waited_for is Scope.ALL else "wait_group"
    return {
        wait: float((step.begun - step.arrived).mean()),
        "chain": float((step.multiplied - step.begun).mean()),
        "streaming": float((step.ended - step.multiplied).mean()),
    }
