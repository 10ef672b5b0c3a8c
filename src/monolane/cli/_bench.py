"""``monolane bench``: how fast a model is on this machine, and how near to the memory's limit."""

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolane._loading import Loading
from monolane.cli import _options as options
from monolane.cli._groups import After, grouped

if TYPE_CHECKING:
    from monolane.measure import Case, DecodeCase, Record

_NOT_IDLE = 0.5  # programs that want a core: from here on figures are worth a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """What is timed, and how often."""

    dtype: Annotated[
        list[str] | None, typer.Option(help="Type of the weights in use; repeatable.")
    ] = None
    context: Annotated[
        list[int] | None,
        typer.Option("--before", help="Tokens before those timed; repeatable [default: 128]."),
    ] = None
    prefill: Annotated[
        list[int] | None, typer.Option(help="Length of a prompt; repeatable [default: 64].")
    ] = None
    runs: Annotated[int, typer.Option(min=1, help="Rounds over all cases.")] = 5
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of one decode run.")] = 32
    startup: Annotated[
        int,
        typer.Option(min=0, help="Cold processes to time, per dtype."),
        After("link_delay"),
    ] = 3
    buffer: Annotated[
        int,
        typer.Option(min=1, help="MB read to find the memory's bandwidth."),
        After("startup"),
    ] = 1024


@grouped("bench", after={"speculation": "workers", "draft": "speculation"})
def bench(
    *,
    call: typer.Context,
    model: options.Model = "demo",
    synthetic: Annotated[
        str | None,
        typer.Option(
            help="Measure random weights of a shape instead: laneformer-2b (4.6 GB in the cache "
            "folder), dense-2b, laneformer-tiny."
        ),
    ] = None,
    cases: Cases,
    loading: Loading,
    speculation: options.Speculation = "off",
    link_delay: Annotated[
        float,
        typer.Option(min=0, max=1000, hidden=True, help="µs until a rank sees another's outputs."),
    ] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the speeds as SVG to this file (extra plot).")
    ] = None,
    as_json: options.Json = False,
    out: options.ResultsOut = None,
) -> None:
    """Time a model's decode, prefill and start-up on this machine.

    All beside what the memory gives at most. Cases take turns, so that a machine that drifts drifts
    under all of them; figures are medians. MBU is the bytes that a token must stream, by its speed,
    by the bandwidth read in the same run. Run it on an idle machine.
    """
    from monolane._progress import counted, still
    from monolane.cli._output import check_output, check_results, writing_output
    from monolane.cli._report import print_note
    from monolane.engine import SamplingParams
    from monolane.measure import (
        Neighbours,
        bench_cases,
        bench_records,
        describe_machine,
        plot_bench,
        require_plot,
        run_rounds,
    )

    if synthetic is not None and "model" in options.given(call):
        raise typer.BadParameter(f"expected --model or --synthetic, got both: {model}, {synthetic}")
    over, draft = loading.ranks, loading.draft
    if link_delay and (not isinstance(over, int) or over < 2):
        shown = over if isinstance(over, int) else ",".join(over.addresses)
        raise typer.BadParameter(
            f"--link-delay: expected --ranks 2 or more on this host, got --ranks {shown}: it is "
            "the delay of a link between ranks; give their number, or leave --link-delay out"
        )
    if plot is not None:
        require_plot()
    check_output(plot)
    check_results(out)
    name, folder = _folder(model, synthetic)
    _warn_if_busy()
    contexts, prompts = cases.context or [128], cases.prefill or [64]
    if min(*contexts, *prompts) < 1:
        raise typer.BadParameter("--before and --prefill: expected 1 token or more")
    if draft is None and speculation in ("draft", "heads"):
        raise typer.BadParameter(f"--speculation: {speculation} expected --draft too, got none")
    if draft is not None and speculation in ("off", "suffix"):
        raise typer.BadParameter(f"--draft: --speculation {speculation} uses none; give auto")
    params = SamplingParams(speculation=speculation)  # type: ignore[arg-type]
    dtypes = dict.fromkeys(cases.dtype or ["auto"])
    if not isinstance(over, int) and len(dtypes) > 1:
        raise typer.BadParameter("--dtype: expected one: ranks with addresses hold one model")
    with still(f"loading {name}"):
        probe, decodes, prefills = bench_cases(
            folder,
            dtypes,
            contexts=contexts,
            prompts=prompts,
            tokens=cases.tokens,
            link_delay=link_delay / 1e6,
            drafts=params.drafts,
            drafter=params.drafter,
            buffer=cases.buffer << 20,
            **loading.given(),
        )
    timed: list[Case] = [probe, *decodes, *prefills]
    runs = cases.runs
    with counted("measuring", (runs + 1) * len(timed)) as step:
        disturbed = run_rounds(timed, runs, step, Neighbours(patience=2.0 * runs))
    if disturbed:
        print_note(f"other programs ran during {disturbed} samples: figures may be low")
    records = bench_records(name, probe, decodes, prefills)
    if cases.startup and isinstance(over, int):  # others' ranks are busy with what is measured here
        alone = {x: value for x, value in loading.given().items() if x != "draft"}
        records += _process_records(name, folder, decodes, cases.startup, **alone)
    write_results(records, out, as_json, what=Path(name).name)
    if plot is not None:
        machine = describe_machine()
        with writing_output(plot):
            plot_bench(records, f"{name} on {machine['name']}, {machine['cores']} cores", plot)
        sys.stderr.write(f"written to {plot}\n")


def _folder(model: str, synthetic: str | None) -> tuple[str, Path]:
    from monolane.cli._report import print_note
    from monolane.measure import SYNTHETIC
    from monolane.measure import synthetic as make
    from monolane.sources import find_model

    if synthetic is None:
        return model, find_model(model)
    if synthetic not in SYNTHETIC:
        raise typer.BadParameter(
            f"--synthetic: expected one of {', '.join(SYNTHETIC)}, got {synthetic!r}"
        )
    return f"synthetic-{synthetic}", make(synthetic, print_note)


def _process_records(
    name: str,
    folder: Path,
    decodes: "Sequence[DecodeCase]",
    runs: int,
    **options: Any,
) -> "list[Record]":
    from monolane._progress import counted
    from monolane.measure import first_token, memory_record, startup_record

    largest = {case.model.dtype: case for case in sorted(decodes, key=lambda case: case.context)}
    records = []
    with counted("starting processes", len(largest) * (runs + 1)) as step:
        for dtype, case in largest.items():
            starts, wanted = [], case.model.wanted_dtype
            for _ in range(runs):
                starts.append(first_token(folder, wanted, **options))
                step()
            records.append(startup_record(name, dtype, starts))
            run = first_token(folder, wanted, prompt=case.context, tokens=case.tokens, **options)
            step()
            records.append(memory_record(name, case, run))
    return records


def _warn_if_busy() -> None:
    """Tell a person whose machine has other things to do that the figures will be low."""
    from monolane.cli._report import print_note
    from monolane.measure import load_average

    if (load := load_average()) > _NOT_IDLE:
        print_note(f"this machine is busy (load {load:.1f}): its figures will be low")


def write_results(
    records: "Sequence[Record]",
    out: Path | None,
    as_json: bool,
    what: str,
    table: "Callable[[dict[str, Any]], list[str]] | None" = None,
) -> None:
    """Print a table, or the document as JSON, and write the document where ``out`` says."""
    import json

    from monolane.cli._output import writing_output
    from monolane.measure import document_here, result_name, shown_word, write_document

    command = shlex.join(["monolane", *map(shown_word, sys.argv[1:])])
    document = document_here(records, command, Path(__file__).parent)
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write("\n".join((table or _table)(document)) + "\n")
    if out is not None:
        path = out / result_name(document, what) if out.is_dir() else out
        with writing_output(path):
            write_document(path, document)
        sys.stderr.write(f"written to {path}\n")


def _table(document: dict[str, Any]) -> list[str]:
    device = document["device"]
    title = f"{device['name']}, {device['cores']} cores"
    head = f"{'':10} {'dtype':9} {'tokens':>7} {'median':>10} {'min':>10} {'max':>10}  "
    head += f"{'GB/token':>8} {'GB/s':>6} {'MBU':>6}"
    lines = [f"{title}, reads {device['read_bandwidth_gb_s']} GB/s", "", head]
    return lines + [
        _row(record) for record in document["records"] if record["name"] != "read_bandwidth"
    ]


def _row(record: "Record") -> str:
    name, dtype = record["name"], record["dtype"]
    if name == "memory":
        parts = {key: record[f"{key}_bytes"] / 1e9 for key in ("peak", "file", "anonymous")}
        line = (
            f"{name:10} {dtype:9} {record['context']:7,} peak {parts['peak']:.2f} GB: mapped files "
            f"{parts['file']:.2f}, own {parts['anonymous']:.2f}; "
            f"{record['overhead_bytes'] / 1e6:,.0f} MB beyond weights and keys"
        )
        for i, rank in enumerate(record.get("ranks", ())):
            sizes = {key: rank[f"{key}_bytes"] / 1e6 for key in ("file", "anonymous", "shared")}
            line += (
                f"\n  rank {i}: mapped files {sizes['file']:,.0f} MB, own "
                f"{sizes['anonymous']:,.0f}, exchanged {sizes['shared']:,.1f}"
            )
        return line
    tokens = record["context"] if name == "decode" else record.get("tokens", "")
    figures = " ".join(f"{record[key]:10,.2f}" for key in ("median", "min", "max"))
    line = f"{name:10} {dtype:9} {tokens:>7} {figures}  "
    if name == "decode":
        line += f"{record['bytes_per_token'] / 1e9:8.4f} {record['gb_per_s']:6.1f} "
        line += f"{record['mbu']:6.1%}"
    return line + ("" if name == "decode" else record["unit"])
