"""The one constant of an engine of which nothing but a speed is known."""

from dataclasses import replace

from monolane.errors import ConfigError
from monolane.plan import Plan, main_format
from monolane.sim._constants import OTHER, Constant
from monolane.sim._forecast import EPOCH_TOKENS
from monolane.sim._machine import Machine
from monolane.sim._simulate import Simulation

_STEPS = 26  # halvings: from 10 ms to a tenth of a nanosecond
_MOST_US = 1e4


def back_solve(machine: Machine, plan: Plan, speed: float) -> float:
    """Return the time of every chain, in us, with which a plan of width 1 reaches ``speed``.

    All phases get the same. ConfigError if the machine is slower than that without any chain.
    """
    simulation, dtype = Simulation(plan), main_format(plan)

    def at(chain_us: float) -> float:
        said = Constant(
            value=chain_us, low=chain_us, high=chain_us, basis="back-solved", source="tried"
        )
        rates = replace(machine.timing, chain_us={OTHER: said}).rates(dtype)
        return 1 / (simulation.run(rates).seconds + rates.launch / EPOCH_TOKENS)

    if not at(_MOST_US) <= speed <= at(0.0):
        raise ConfigError(
            f"speed: expected at most {at(0.0):,.0f} tokens/s, what {machine.name} reaches without "
            f"any chain, got {speed:,.0f}"
        )
    least, most = 0.0, _MOST_US
    for _ in range(_STEPS):
        middle = (least + most) / 2
        least, most = (middle, most) if at(middle) > speed else (least, middle)
    return most
