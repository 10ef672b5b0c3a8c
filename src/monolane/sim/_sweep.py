"""One thing varied, the rest held: how speed depends on it, under each reduce rule."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from monolane.errors import ConfigError, RequestError
from monolane.sim._scenario import Scenario, run_scenario
from monolane.sim._spelled import spelled

Vary = Callable[[Scenario, float], Scenario]


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied, in which unit, over which values."""

    label: str
    values: tuple[float, ...]
    vary: Vary
    rules: bool = True  # whether a line for each reduce rule says something


def _link(scenario: Scenario, value: float) -> Scenario:
    return replace(scenario, machine=scenario.machine.stated(link_latency=value))


def _bandwidth(scenario: Scenario, value: float) -> Scenario:
    own = scenario.machine.timing.bandwidth_gb_s.value
    return replace(scenario, machine=scenario.machine.stated(bandwidth=own * value))


def _delay(scenario: Scenario, value: float) -> Scenario:
    return replace(scenario, reduce=f"after:{value:.0f}" if value else "now")


_AXES = {
    "delay": Axis("delay, layers (0: now)", (0, 1, 2, 3, 4, 6), _delay, rules=False),
    "lanes": Axis(
        "lanes", (1, 2, 4, 8, 16), lambda s, v: replace(s, lanes=int(v), reduce=_no_lane(s, v))
    ),
    "link": Axis("link latency, us", (0, 2, 5, 10, 20, 40, 60, 100), _link),
    "width": Axis("tokens in a pass", (1, 2, 4, 8, 16, 32), lambda s, v: replace(s, width=int(v))),
    "context": Axis(
        "tokens in the sequence",
        (128, 256, 512, 1024, 2048, 4096),
        lambda s, v: replace(s, context=int(v)),
    ),
    "bandwidth": Axis("bandwidth, by the constant's", (0.5, 0.75, 1, 1.25, 1.5, 2), _bandwidth),
}
SWEEPS = tuple(_AXES)
RULES = ("now", "after:1", "after:2", "after:4")


def _no_lane(scenario: Scenario, lanes: float) -> str | None:
    return None if lanes == 1 else scenario.reduce


@dataclass(frozen=True, slots=True)
class Point:
    """Speeds at one value, tokens/s."""

    value: float
    speed: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """Lines by reduce rule ("" where the model's own counts)."""

    title: str  # model, machine and what the figures are worth
    label: str
    lines_by_rule: dict[str, tuple[Point, ...]]
    left_out: tuple[str, ...]  # values that the model or the machine refuses, and why

    def lines(self) -> list[str]:
        """Return it as text."""
        found = [self.title, ""]
        for rule, points in self.lines_by_rule.items():
            found.append(f"{self.label}{f' · reduce {rule}' if rule else ''}")
            found += [
                f"{p.value:>10g} {spelled(p.speed):>12} tokens/s  "
                f"({spelled(p.low)} to {spelled(p.high)})"
                for p in points
            ]
        return [*found, *(f"left out: {reason}" for reason in self.left_out)]

    def record(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "title": self.title,
            "axis": self.label,
            "lines": {
                rule: [
                    {
                        "value": p.value,
                        "tokens_per_s": p.speed,
                        "tokens_per_s_low": p.low,
                        "tokens_per_s_high": p.high,
                    }
                    for p in points
                ]
                for rule, points in self.lines_by_rule.items()
            },
            "left_out": list(self.left_out),
        }


def run_sweep(scenario: Scenario, name: str) -> Sweep:
    """Return the speeds along an axis.

    RequestError if there is no such one, ConfigError if nothing on it fits.
    """
    axis = _AXES.get(name)
    if axis is None:
        raise RequestError(f"sweep: expected one of {', '.join(SWEEPS)}, got {name!r}")
    fixed = scenario.reduce is not None or not axis.rules or scenario.config.num_lanes == 1
    rules = (scenario.reduce,) if fixed else RULES
    left_out: dict[str, None] = {}
    lines = {rule or "": _line(replace(scenario, reduce=rule), axis, left_out) for rule in rules}
    if not any(lines.values()):
        raise ConfigError(f"sweep: nothing on {axis.label} fits: {'; '.join(left_out)}")
    machine = scenario.machine
    title = f"{scenario.model} on {machine.name} · {machine.standing}"
    return Sweep(title, axis.label, lines, tuple(left_out))


def _line(scenario: Scenario, axis: Axis, left_out: dict[str, None]) -> tuple[Point, ...]:
    points = []
    for value in axis.values:
        try:
            made = run_scenario(axis.vary(scenario, value))
        except ConfigError as error:
            left_out[f"{value:g}: {error}"] = None
            continue
        points.append(Point(value, made.speed, *made.interval))
    return tuple(points)
