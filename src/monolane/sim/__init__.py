"""How long a plan takes on a machine, before anybody runs it there.

``find_machine`` knows devices by name, each constant with its interval and source; ``Simulation``
times the plan that executors run, worker by worker; ``forecast`` makes of it a speed with an
interval; ``seeds_report`` recomputes published figures.
"""

from monolane.sim._back_solve import back_solve
from monolane.sim._constants import (
    LEVELS,
    NAMES,
    Constant,
    Level,
    latencies,
    timings,
)
from monolane.sim._draw import draw_sweep, draw_timeline
from monolane.sim._forecast import Forecast, forecast
from monolane.sim._machine import Machine, find_machine, find_processor
from monolane.sim._published_figures import Row, Table, seeds_report
from monolane.sim._rates import Rates
from monolane.sim._scenario import Scenario, run_scenario
from monolane.sim._simulate import Simulation, Step
from monolane.sim._spelled import spelled
from monolane.sim._sweep import SWEEPS, run_sweep
from monolane.sim._timetable import Ranks
from monolane.sim._variant import with_lanes, with_reduce

__all__ = [
    "LEVELS",
    "NAMES",
    "SWEEPS",
    "Constant",
    "Forecast",
    "Level",
    "Machine",
    "Ranks",
    "Rates",
    "Row",
    "Scenario",
    "Simulation",
    "Step",
    "Table",
    "back_solve",
    "draw_sweep",
    "draw_timeline",
    "find_machine",
    "find_processor",
    "forecast",
    "latencies",
    "run_scenario",
    "run_sweep",
    "seeds_report",
    "spelled",
    "timings",
    "with_lanes",
    "with_reduce",
]
