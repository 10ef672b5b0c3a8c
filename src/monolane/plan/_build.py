"""From a model config and a device description to the plan."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from monolane.errors import ConfigError
from monolane.model import COMMON_FEATURES, ModelConfig, Role
from monolane.ops import MAX_WIDTH
from monolane.plan._builder import Builder
from monolane.plan._device import DeviceDescription
from monolane.plan._kinds import LAST, first_parts, parts_before, parts_of
from monolane.plan._phase import OUTPUTS
from monolane.plan._plan import Place, Plan
from monolane.plan._split import EVEN_ENOUGH
from monolane.plan._waits import with_waits

# Matrices whose shares may differ from layer to layer.
_LEVELLED = frozenset((Role.Q, Role.K, Role.V, Role.O, Role.GATE, Role.UP, Role.DOWN, Role.HEAD))


def build(
    config: ModelConfig,
    device: DeviceDescription,
    dtype: str,
    *,
    max_width: int = MAX_WIDTH,
    context: int | None = None,
    ring_slots: int | None = None,
    keys: str | None = None,
    formats: Mapping[Place, str] | None = None,
) -> Plan:
    """Return the plan of a model on a device; ConfigError says which wish cannot be met.

    BackendError names what of the model no plan has.

    max_width    token positions of a pass; beyond MAX_WIDTH, of one that only reads a prompt
    context      tokens that a sequence may hold; None: as many as the model was trained on
    ring_slots   slots for the module outputs that lanes exchange, at least delay + 1; by default
                 2 * delay + 1, from which on reusing a slot needs no wait of its own
    keys         format of cached keys and values; None: as goes with the weights'
    formats      those of matrices that are not stored in ``dtype``, by role and layer
    """
    config.check_features("interpreter", *COMMON_FEATURES)
    widest = Plan.widest(config)
    if type(max_width) is not int or not 1 <= max_width <= widest:
        raise ConfigError(f"max_width: expected 1 to {widest}, got {max_width!r}")
    length = config.max_positions if context is None else context
    if type(length) is not int or not 1 <= length <= config.longest_context:
        raise ConfigError(
            f"context: expected None or 1 to {config.longest_context} tokens, on which the model "
            f"was trained, or to which it is stretched, got {context!r}"
        )

    def made(levelled: bool) -> Plan:
        builder = Builder(config, device, dtype, ring_slots, formats or {}, keys, levelled)
        return _build(builder, max_width, length)

    plan = made(levelled=False)
    if not _can_level(plan) or (waste := padding(plan)) <= EVEN_ENOUGH:
        return plan
    other = made(levelled=True)
    return other if padding(other) < waste else plan


def _can_level(plan: Plan) -> bool:
    """Whether shares may differ from layer to layer: in one lane, of which each worker has rows."""
    tile, workers = plan.device.tile_rows, plan.groups.workers
    roles = {matrix.role for phase in plan.phases for matrix in phase.matrices}
    apart = tile > 0 and plan.config.num_lanes == 1 and roles <= _LEVELLED
    return apart and -(-plan.config.hidden_size // tile) >= workers


def padding(plan: Plan) -> float:
    """Return how much workers stream in a pass, if each has what the busiest has, of what there is.

    Rows of a phase come in whole tiles.
    """
    tile = max(plan.device.tile_rows, 1)
    streamed, real = np.zeros(plan.groups.workers_each), 0
    for phase in plan.phases:
        if phase.matrices:
            rows = sum(np.resize(np.diff(x.share.bounds), len(streamed)) for x in phase.matrices)
            streamed += -(-rows // tile) * (tile * phase.matrices[0].row_bytes)
            real += sum(x.lanes * x.rows * x.row_bytes for x in phase.matrices)
    return float(plan.groups.workers * streamed.max() / real)


def _build(builder: Builder, max_width: int, context: int) -> Plan:
    config, device = builder.config, builder.device
    for part in (*first_parts(), *LAST):
        builder.shares |= {(role, None): x for role, x in part.share_out(builder, -1).items()}
    phases = [phase for part in first_parts() for phase in part.build(builder, -1, 0)]
    for layer in range(config.num_layers):
        for place, module in enumerate(config.modules[layer]):
            phases += [
                phase for part in parts_before(place) for phase in part.build(builder, layer, place)
            ]
            parts = parts_of(module.operation)
            for part in parts:
                shares = part.share_out(builder, layer)
                builder.shares |= {(role, layer): x for role, x in shares.items()}
            for part in parts:
                built = part.build(builder, layer, place)
                phases += [replace(phase, module=OUTPUTS[place]) for phase in built]
    phases += [phase for part in LAST for phase in part.build(builder, -1, 0)]
    numbered = [replace(phase, index=i) for i, phase in enumerate(phases)]
    return Plan(
        config=config,
        device=device,
        dtype=builder.format.name,
        max_width=max_width,
        context=context,
        output_slots=tuple(builder.slots.values()),
        keys=builder.keys.name,
        phases=with_waits(numbered, builder.groups),
        formats=tuple((place, row.name) for place, row in builder.formats.items()),
    )
