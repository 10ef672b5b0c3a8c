"""A question to the simulator: which model, varied how, on which machine."""

from collections.abc import Mapping
from dataclasses import dataclass

from monolane.errors import ConfigError
from monolane.model import ModelConfig
from monolane.plan import Place, build
from monolane.sim._forecast import Forecast, forecast
from monolane.sim._machine import Machine
from monolane.sim._variant import with_lanes, with_reduce

CONTEXT = 1024  # tokens in the sequence unless stated, or as many as the model can hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What ``monolane sim`` was asked; None: as the model has it."""

    model: str
    config: ModelConfig
    machine: Machine
    dtype: str = "auto"
    formats: Mapping[Place, str] | None = None  # of matrices with their own, where dtype is auto
    reduce: str | None = None
    lanes: int | None = None
    context: int | None = None
    width: int = 1

    def varied(self) -> ModelConfig:
        """Return the model with the lanes and the rule that were asked for."""
        config = self.config
        if self.lanes is not None:
            config = with_lanes(config, self.lanes)
        if self.reduce is not None:
            config = with_reduce(config, self.reduce)
        return config


def run_scenario(scenario: Scenario) -> Forecast:
    """Return the forecast; ConfigError says which wish cannot be met."""
    config, auto = scenario.varied(), scenario.dtype == "auto"
    context = scenario.context
    if context is None:
        context = min(CONTEXT, config.max_positions)
    plan = build(
        config,
        scenario.machine.device,
        config.stored_dtype if auto else scenario.dtype,
        max_width=scenario.width,
        context=context,
        formats=scenario.formats if auto else None,
    )
    if plan.context < scenario.width:
        raise ConfigError(
            f"context: expected at least the width, {scenario.width}, got {plan.context}"
        )
    return forecast(scenario.machine, plan, scenario.width)
