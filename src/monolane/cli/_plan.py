"""``monolane plan``: what a token costs on a device, phase by phase, before anything runs."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolane.cli import _options as options
from monolane.cli._grammar import DefaultGroup
from monolane.cli._model_config import PlannedModel, planned_model, told_groups

if TYPE_CHECKING:
    from monolane.plan import Cost, DeviceDescription, Phase, Plan

plan = typer.Typer(cls=DefaultGroup, help="Show the static decode plan of a model on a device.")


@plan.command(epilog="Another command: 'monolane plan header' prints the structs for executors.")
def show(
    model: PlannedModel = "demo",
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            help="cpu, cpu:N, h100, h200, b200, mi300x, mi350x, or several: 8xh200.",
        ),
    ] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="bfloat16, float16, float32, float8, int8, int4, or auto.")
    ] = "auto",
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens in the sequence [default: the most].")
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="Tokens that a pass carries.")] = 1,
    bandwidth: Annotated[
        float | None, typer.Option(min=0, help="GB/s of a device, if you measured it.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show the phases of every layer.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show bytes, operations and least time of a token's phases.

    That time is the floor. It assumes that memory never pauses: no waits, no latencies. Phases of
    all layers are added up unless --all is given.
    """
    from monolane.plan import build

    config, formats = planned_model(model)
    made = build(
        config,
        _device(device, bandwidth),
        config.stored_dtype if dtype == "auto" else dtype,
        max_width=width,
        context=context,
        formats=formats if dtype == "auto" else None,
    )
    if made.context < width:
        raise typer.BadParameter(
            f"--context: expected at least --width ({width}), got {made.context}"
        )
    write = sys.stdout.write
    if as_json:
        write(json.dumps(_record(model, made, width)) + "\n")
    else:
        write("\n".join([*_title(model, made, width), "", *_table(made, width, every), ""]))
        write("\n" + _total(made, width) + "\n")


@plan.command()
def header() -> None:
    """Print csrc/abi/plan_abi.h, the plan's structs for executors."""
    from monolane.plan import c_header

    sys.stdout.write(c_header())


def _device(name: str, bandwidth: float | None) -> "DeviceDescription":
    from dataclasses import replace

    from monolane.plan import find_device

    found = find_device(name)
    return found if bandwidth is None else replace(found, bandwidth=bandwidth * 1e9)


def _title(model: str, made: "Plan", width: int) -> list[str]:
    device = made.device
    return [
        f"{model} · {made.stored} · {made.context:,} tokens in the sequence · {width} in the pass",
        f"{device.name}: {told_groups(made)} · {device.total_bandwidth / 1e9:,.0f} GB/s",
        f"figures: {device.source}",
    ]


def _table(made: "Plan", width: int, every: bool) -> list[str]:
    rows = [("phase", "MB", "M operations", "floor us", "waits")]
    for name, phases, cost in _rows(made, width, every):
        waits = [wait.scope.name.lower() for phase in phases for wait in phase.waits]
        counted = [f"{waits.count(s)} {s}" for s in ("group", "all") if s in waits]
        rows.append(
            (
                name,
                f"{cost.bytes / 1e6:,.3f}",
                f"{cost.operations / 1e6:,.1f}",
                f"{cost.seconds * 1e6:,.2f}",
                " + ".join(counted),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return [
        f"{row[0]:{widths[0]}}  "
        + "  ".join(f"{row[i]:>{widths[i]}}" for i in (1, 2, 3))
        + (f"  {row[4]}" if row[4] else "")
        for row in rows
    ]


def _rows(made: "Plan", width: int, every: bool) -> list[tuple[str, "list[Phase]", "Cost"]]:
    from monolane.plan import Cost, phase_cost

    gathered: dict[str, list[Phase]] = {}
    for phase in made.phases:
        gathered.setdefault(phase.name if every else phase.kind.name, []).append(phase)
    return [
        (
            name if len(phases) == 1 else f"{name} x {len(phases)}",
            phases,
            sum((phase_cost(made, phase, width) for phase in phases), Cost(0, 0, 0.0)),
        )
        for name, phases in gathered.items()
    ]


def _total(made: "Plan", width: int) -> str:
    from monolane.plan import pass_cost

    cost = pass_cost(made, width)
    parts = [
        f"{cost.bytes / 1e9:,.3f} GB per " + ("token" if width == 1 else f"pass of {width} tokens"),
        f"{cost.operations / 1e9:,.2f} G operations",
        f"floor {cost.seconds * 1e6:,.1f} us",
        f"{width / cost.seconds:,.0f} tokens/s",
    ]
    return " · ".join(parts)


def _record(model: str, made: "Plan", width: int) -> dict[str, Any]:
    from dataclasses import asdict

    from monolane.plan import pass_cost, phase_cost

    def spell(cost: "Cost") -> dict[str, Any]:
        moved, operations, seconds = cost.bytes, cost.operations, cost.seconds
        return {"bytes": moved, "operations": operations, "floor_us": seconds * 1e6}

    total, groups = pass_cost(made, width), made.groups
    phases = [
        {
            "name": phase.name,
            "kind": phase.kind.name,
            "layer": phase.layer,
            **spell(phase_cost(made, phase, width)),
            "waits": {wait.scope.name.lower(): wait.count for wait in phase.waits},
        }
        for phase in made.phases
    ]
    return {
        "model": model,
        "device": asdict(made.device),
        "dtype": made.stored,
        "context": made.context,
        "width": width,
        "groups": {
            "count": groups.count,
            "lanes": groups.lanes_each,
            "workers": groups.workers_each,
        },
        "splits": made.splits,
        "ring_slots": dict(
            zip(("attention", "mlp", "third", "fourth"), made.output_slots, strict=True)
        ),
        "phases": phases,
        "total": spell(total) | {"tokens_per_s": width / total.seconds},
    }
