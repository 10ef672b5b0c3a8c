"""``monolane sim``: what a model would do on a machine, before anybody runs it there."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolane.cli import _options as options
from monolane.cli._groups import After, grouped
from monolane.cli._model_config import PlannedModel, planned_model, told_groups
from monolane.cli._output import check_output, write_output, writing_output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolane.sim import Forecast, Machine, Scenario

_PARTS = {
    "streaming": "weights and keys, while nothing waits",
    "chain": "from the last awaited word to the first product",
    "wait_group": "waits inside a group of workers",
    "wait_all": "waits for other groups or devices",
    "choose": "the choice of the token",
    "launch": "an epoch's launch, by its tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """On which machine."""

    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            help="h100, h200, b200, mi300x, mi350x, several as in 8xh200, cpu:N, or 'here': this "
            "processor, whose read bandwidth is then measured.",
        ),
    ] = "8xh200"
    bandwidth: Annotated[
        float | None,
        typer.Option(min=0, help="GB/s of a device, if you measured it."),
        After("width"),
    ] = None
    link_latency: Annotated[
        float | None,
        typer.Option(min=0, help="us for a word to reach another device."),
        After("bandwidth"),
    ] = None
    link_bandwidth: Annotated[
        float | None,
        typer.Option(min=0, help="GB/s out of a device to all others."),
        After("link_latency"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is decoded there."""

    reduce: Annotated[
        str | None, typer.Option(help="now, never or after:D [default: the model's].")
    ] = None
    lanes: Annotated[int | None, typer.Option(min=1, help="Cut the model into so many lanes.")] = (
        None
    )
    dtype: Annotated[
        str, typer.Option(help="bfloat16, float16, float32, float8, int8, int4, or auto.")
    ] = "auto"
    context: Annotated[int | None, typer.Option(min=1, help="Tokens in the sequence [1024].")] = (
        None
    )
    width: Annotated[int, typer.Option(min=1, max=64, help="Tokens that a pass carries.")] = 1


@grouped()
def sim(
    *,
    call: typer.Context,
    model: PlannedModel = "laneformer-2b",
    place: Place,
    work: Work,
    sweep: Annotated[
        str | None,
        typer.Option(help="Vary one thing: delay, lanes, link, width, context or bandwidth."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a pass as a trace for ui.perfetto.dev (JSON).")
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw three layers of a pass, or the sweep, as SVG (needs the extra plot).",
        ),
    ] = None,
    report: Annotated[
        str | None, typer.Option(help="'seeds': published figures of this field, recomputed.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Predict a model's tokens/s on a machine that is not here.

    With an interval, and where the time goes. The very plan that executors run is timed, worker by
    worker. Every constant has its source in sim/configs/devices.toml; what has never been run is
    marked as predicted.
    """
    from monolane.sim import Scenario, run_scenario

    if report is not None:
        given = options.given(call)
        _report(report, as_json, [given[name] for name in given.keys() - {"report", "as_json"}])
        return
    for path in (trace, svg):
        check_output(path)
    swept: dict[str, object] = {
        "link": place.link_latency,
        "context": work.context,
        "lanes": work.lanes,
    }
    swept |= {"delay": work.reduce, "width": work.width if work.width > 1 else None}
    _check_beside(sweep, swept, trace)
    machine = _machine(place)
    if machine.device.devices == 1 and (place.link_latency, place.link_bandwidth) != (None, None):
        _need_devices("a link", place.device)
    if machine.device.devices == 1 and sweep == "link":
        _need_devices("sweep: link", place.device)
    config, formats = planned_model(model)
    scenario = Scenario(
        model=model,
        config=config,
        machine=machine,
        formats=formats,
        **asdict(work),
    )
    if sweep is not None:
        _sweep(scenario, sweep, svg, as_json)
        return
    made = run_scenario(scenario)
    if as_json:
        sys.stdout.write(json.dumps({"model": model} | made.record()) + "\n")
    else:
        sys.stdout.write("\n".join(_lines(model, made)) + "\n")
    if trace is not None:
        _write_trace(trace, made)
    if svg is not None:
        from monolane.sim import draw_timeline

        with writing_output(svg):
            draw_timeline(made, svg, model)
        sys.stderr.write(f"written to {svg}\n")


def _check_beside(sweep: str | None, swept: "Mapping[str, object]", trace: Path | None) -> None:
    """RequestError if an option would not count beside the sweep."""
    from monolane.errors import RequestError

    if sweep is not None and trace is not None:
        raise RequestError("trace: expected no sweep beside it, of many passes; leave one out")
    if sweep is not None and swept.get(sweep) is not None:
        raise RequestError(
            f"sweep: {sweep} takes values of its own, and {swept[sweep]} was stated; leave one out"
        )


def _need_devices(what: str, device: str) -> None:
    from monolane.errors import RequestError

    raise RequestError(f"{what}: expected several devices, as in 8xh200 or 4xcpu:1, got {device!r}")


def _machine(place: Place) -> "Machine":
    from monolane.sim import find_machine

    bandwidth = place.bandwidth
    if place.device != "here":
        found = find_machine(place.device)
    else:
        found, measured = _here()
        bandwidth = measured if bandwidth is None else bandwidth
    latency, rate = place.link_latency, place.link_bandwidth
    return found.stated(bandwidth=bandwidth, link_latency=latency, link_bandwidth=rate)


def _here() -> "tuple[Machine, float]":
    """Return this processor and its read bandwidth, GB/s, which takes a second or two."""
    from monolane._processor import read_processor
    from monolane.measure import ReadProbe, describe_machine
    from monolane.sim import find_processor

    cores, name = read_processor().workers, str(describe_machine()["name"])
    probe = ReadProbe(cores, 1 << 29)
    probe.warm_up()
    found, measured = find_processor(name, cores), probe.measure() / 1e9
    sys.stderr.write(f"here: {name}, {cores} threads, which read {measured:.3g} GB/s just now\n")
    return found, measured


def _lines(model: str, made: "Forecast") -> list[str]:
    from monolane.sim import spelled

    low, high = made.interval
    plan = made.plan
    rules = dict.fromkeys(str(layer.mlp_reduce) for layer in plan.config.layers)
    total = sum(made.parts.values())
    speed = f"{spelled(made.speed)} tokens/s ({spelled(low)} to {spelled(high)})"
    lines = [
        f"{model} · {plan.stored} · {plan.context:,} tokens in the sequence · {made.width} a pass",
        f"{made.machine.name}: {told_groups(plan)} · reduce: {', '.join(rules)}",
        made.machine.standing,
        "",
        f"{speed} · {made.seconds * 1e6:,.1f} us a pass · floor {made.floor * 1e6:,.1f} us",
        "",
    ]
    for name, seconds in made.parts.items():
        share = seconds / total
        lines.append(f"{name:11} {seconds * 1e6:10,.2f} us {share:6.1%}  {_PARTS[name]}")
    lines += ["", "largest uncertainties, tokens/s at the bounds of a constant:"]
    for one in made.uncertainties[:3]:
        lines.append(f"{one.name:15} {spelled(one.slow)} to {spelled(one.fast)}")
    return lines


def _write_trace(path: Path, made: "Forecast") -> None:
    about = {"device": made.machine.name, "standing": made.machine.standing}
    document: dict[str, Any] = made.trace().chrome() | {"otherData": about}
    write_output(path, json.dumps(document))
    sys.stderr.write(f"written to {path}: open it in ui.perfetto.dev\n")


def _sweep(scenario: "Scenario", name: str, svg: Path | None, as_json: bool) -> None:
    from monolane.sim import draw_sweep, run_sweep

    swept = run_sweep(scenario, name)
    if as_json:
        sys.stdout.write(json.dumps(swept.record()) + "\n")
    else:
        sys.stdout.write("\n".join(swept.lines()) + "\n")
    if svg is not None:
        with writing_output(svg):
            draw_sweep(swept, svg)
        sys.stderr.write(f"written to {svg}\n")


def _report(name: str, as_json: bool, beside: list[str]) -> None:
    from monolane.errors import RequestError
    from monolane.sim import seeds_report

    if name != "seeds":
        raise RequestError(f"report: expected seeds, got {name!r}")
    if beside:
        raise RequestError(
            f"report: expected --json alone beside it, got {', '.join(sorted(beside))}; the "
            "published figures name their own models and devices"
        )
    tables = seeds_report()
    if as_json:
        sys.stdout.write(json.dumps([table.record() for table in tables]) + "\n")
    else:
        sys.stdout.write("\n\n".join("\n".join(table.lines()) for table in tables) + "\n")
