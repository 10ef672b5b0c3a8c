"""``monolane bench serve``: what clients get of a server, ours or any with OpenAI's API."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolane import _env
from monolane.cli import _options as options
from monolane.cli._groups import grouped

if TYPE_CHECKING:
    from monolane.measure import Level, Load, LoadTarget, Record

_KEY = _env.API_KEY.name
_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """What is asked, by how many at once."""

    clients: Annotated[
        list[int] | None,
        typer.Option("--clients", "-c", help="Requests at once; repeatable [default: 1 2 4 8]."),
    ] = None
    rate: Annotated[
        list[float] | None, typer.Option(help="Instead: requests/s, at random moments; repeatable.")
    ] = None
    prompt: Annotated[
        list[int] | None, typer.Option(help="Tokens of a prompt, about; repeatable [default: 64].")
    ] = None
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=2, help="Tokens of an answer.")
    ] = 256
    requests: Annotated[int, typer.Option(min=1, help="Of each client; of each rate.")] = 8
    seconds: Annotated[
        float, typer.Option(min=0, help="After these, a level begins no more requests.")
    ] = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a request is made."""

    timeout: Annotated[float, typer.Option(min=0, help="Seconds of one request.")] = 120
    chat: Annotated[bool, typer.Option("--chat", help="Ask /v1/chat/completions.")] = False
    ignore_eos: Annotated[
        bool, typer.Option(help="Have answers go on to --max-tokens; servers may refuse the field.")
    ] = True
    keep_alive: Annotated[
        bool, typer.Option(help="Keep connections for the next request, as most clients do.")
    ] = True


@grouped()
def bench_serve(
    *,
    url: Annotated[
        str, typer.Argument(help="Base URL of the server, with or without /v1.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="[default: the server's first]")
    ] = None,
    loads: Loads,
    asking: Asking,
    key_from: Annotated[
        str, typer.Option(help="Environment variable that holds the API key.")
    ] = _KEY,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it, though the server is not this machine.")
    ] = False,
    label: Annotated[
        str | None, typer.Option(help="Name in table and plot [default: the server's].")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the curves to this SVG file.")] = None,
    as_json: options.Json = False,
    out: options.ResultsOut = None,
) -> None:
    """Load a server; tell speeds, of one request and all, and waits.

    Answers are streamed. Tokens are counted by the server's usage, not by its events. Each level
    follows a warm-up; none begins requests without end. Nothing but this machine is loaded without
    --yes.
    """
    from monolane._progress import counted
    from monolane.cli._bench import write_results
    from monolane.cli._output import check_output, check_results, writing_output
    from monolane.measure import Level, Load, LoadOptions, LoadTarget, plot_load, require_plot

    if plot is not None:
        require_plot()
    check_output(plot)
    check_results(out)
    target = LoadTarget.parse(url, os.environ.get(key_from, ""))
    if loads.clients and loads.rate:
        raise typer.BadParameter("expected --clients or --rate, got both")
    requests = loads.requests
    levels = [Level(rate=x, requests=requests, seconds=loads.seconds) for x in loads.rate or ()]
    if not levels:
        counts = loads.clients or [1, 2, 4, 8]
        levels = [Level(clients=n, requests=n * requests, seconds=loads.seconds) for n in counts]
    lengths = loads.prompt or [64]
    if min(lengths) < 1:
        raise typer.BadParameter("--prompt: expected 1 token or more")
    _announce(target, levels, lengths, loads.max_tokens, yes)
    name, engine = _find_model(target, model, key_from)
    load = Load(
        target,
        LoadOptions(model=name, max_tokens=loads.max_tokens, **asdict(asking)),
    )
    steps = len(lengths) * sum(level.requests for level in levels)
    with counted("loading", steps) as step:
        records = [
            record
            for length in lengths
            for record in _levels(load, levels, length, engine, label or engine, step)
        ]
    write_results(records, out, as_json, what=f"serve-{engine}", table=_table)
    if plot is not None:
        with writing_output(plot):
            plot_load(records, plot)
        typer.echo(f"written to {plot}", err=True)
    if all("error" in record for record in records):
        raise typer.Exit(1)


def _announce(
    target: "LoadTarget",
    levels: "Sequence[Level]",
    lengths: Sequence[int],
    max_tokens: int,
    yes: bool,
) -> None:
    """Say what another machine is in for; RequestError without --yes."""
    from monolane.cli._report import print_note
    from monolane.errors import RequestError

    if target.is_loopback:
        return
    count = len(lengths) * sum(level.requests for level in levels)
    together = max((level.clients or 0 for level in levels), default=0)
    at_once = f"up to {together} at once" if together else "at random moments"
    told = (
        f"{target.url} is not this machine: it would get up to {count:,} requests, {at_once}, for "
        f"up to {count * max_tokens:,} tokens"
    )
    if target.key and target.scheme == "http":
        told += "; the API key would go there in clear text"
    if not yes:
        raise RequestError(f"{told}. If it is yours to load, say --yes")
    print_note(told.replace("would get", "gets").replace("would go", "goes"))


def _find_model(target: "LoadTarget", wanted: str | None, key_from: str) -> tuple[str, str]:
    """Return the model to ask for, and whose server it is."""
    from monolane.errors import BackendError, RequestError
    from monolane.measure import Failure, ask_models

    found = ask_models(target)
    if isinstance(found, Failure):
        if found.kind in (f"http_{status}" for status in _REFUSED):
            state = "refused" if target.key else "not set"
            raise RequestError(
                f"{target.url} wants an API key ({found.message}): expected it in the environment "
                f"variable {key_from}, which is {state}"
            )
        if wanted is not None and found.kind == "http_404":
            return wanted, "unknown"
        raise BackendError(
            f"{target.url}/v1/models: {found.message} ({found.kind}); expected an "
            "OpenAI-compatible server that is ready there: start it, wait for its model, or mend "
            "the URL"
        )
    cards: list[dict[str, Any]] = [c for c in found.get("data") or () if isinstance(c, dict)]
    names = [str(card.get("id")) for card in cards]
    if wanted is None and not names:
        raise RequestError(f"{target.url} names no model: name one with --model")
    if wanted is not None and names and wanted not in names:
        raise RequestError(f"--model: expected one of {', '.join(names)}, got {wanted!r}")
    name = wanted or names[0]
    card = next((card for card in cards if card.get("id") == name), {})
    return name, str(card.get("owned_by") or "unknown")


def _levels(
    load: "Load", levels: "Sequence[Level]", length: int, engine: str, label: str, step: Any
) -> "list[Record]":
    from monolane.measure import serve_record

    prompts = load.find_length(length)
    records = []
    for level in levels:
        load.warm_up(prompts)
        loaded = load.run(level, prompts, step)
        records.append(serve_record(load, loaded, engine, label) | {"prompt_wanted": length})
    return records


def _table(document: dict[str, Any]) -> list[str]:
    records = document["records"]
    first = records[0]
    lines = [f"{first['label']}: {first['model']}, {first['route']}, answers of {first['tokens']}"]
    head = (
        f"{'':>12} {'prompt':>7} {'answers':>7} {'failed':>6}  {'one: tokens/s':>13} {'all':>9}  "
    )
    head += f"{'first: ms, p50':>14} {'p90':>8} {'p99':>8}  {'gap: ms, p99':>12} {'client':>6}"
    lines += ["", head, *map(_row, records)]
    notes = {note for record in records for note in record.get("notes", ())}
    kinds = {
        f"{kind}: {record['failure']}" for record in records for kind in record.get("failures", ())
    }
    return [*lines, *([""] if notes or kinds else []), *sorted(notes), *sorted(kinds)]


def _row(record: "Record") -> str:
    clients, rate = record["clients"], record["rate"]
    load = f"{rate:g}/s" if clients is None else f"{clients} client{'s' * (clients != 1)}"
    failed = sum(record["failures"].values())
    length = record.get("prompt_tokens") or record["prompt_wanted"]
    line = f"{load:>12} {length:7,.0f} {record['answers']:7} {failed:6}  "
    if "error" in record:
        return f"{line}{record['error']}"
    first, gap = record["first_ms"], record["gap_ms"]
    speed = f"{record['median']:13,.1f}" if record.get("median") is not None else f"{'-':>13}"
    return (
        f"{line}{speed} {record['total_tokens_per_s']:9,.1f}  {first['p50']:14,.1f} "
        f"{first['p90']:8,.1f} {first['p99']:8,.1f}  "
        f"{'-' if gap is None else format(gap['p99'], ',.1f'):>12} {record['client_cpu']:6.0%}"
    )
