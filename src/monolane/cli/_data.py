"""``monolane data``: prepare a training corpus, report what went in, show what is fed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from monolane.data import Blend, Corpus

data = typer.Typer(no_args_is_help=True, help="Prepare a training corpus, and look into one.")

_Corpus = Annotated[Path, typer.Argument(metavar="CORPUS", help="A prepared corpus folder.")]


@data.command("prepare")
def prepare_corpus(
    recipe: Annotated[Path, typer.Argument(help="The recipe, in TOML; see docs/data.md.")],
    out: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder to write; until it is whole, OUTPUT.partial."),
    ],
    workers: Annotated[
        int | None, typer.Option("--processes", min=1, help="[default: one per core]")
    ] = None,
) -> None:
    """Read, filter, deduplicate and tokenize the sources of a recipe.

    Killed or interrupted, it goes on with the same command.
    """
    from monolane.data import prepare
    from monolane.model import check_place

    check_place(out)
    try:
        corpus = prepare(recipe, out, workers=workers)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what is done is kept: go on with the same command\n")
        raise
    _print_figures(corpus)


@data.command("report")
def report_corpus(
    corpus: _Corpus,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a page of HTML with all of it.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all token files and compare their digests.")
    ] = False,
) -> None:
    """Say what went into a corpus, and what filters dropped."""
    from monolane.cli._output import check_output, write_output
    from monolane.data import Corpus, render_page

    check_output(out)
    opened = Corpus.open(corpus)
    if verify:
        opened.verify()
    _print_figures(opened)
    if out is not None:
        write_output(out, render_page(opened))
        sys.stderr.write(f"wrote {out}\n")


@data.command("show")
def show_rows(
    corpus: _Corpus,
    row: Annotated[int, typer.Option(min=0, help="The first row to show.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many rows.")] = 1,
    length: Annotated[int, typer.Option(min=2, help="Tokens in a row.")] = 1024,
    stage: Annotated[
        str | None, typer.Option(help="Mixture [default: the recipe's first, or even].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order of rows.")] = 0,
) -> None:
    """Print rows as training reads them, as text, with borders."""
    from monolane.data import Corpus, show_row

    opened = Corpus.open(corpus)
    blend = _blend(opened, stage, length, seed)
    for number in range(row, row + count):
        shown = show_row(opened, blend, number)
        _rule(f"row {number:,}: {shown.source}, epoch {shown.epoch}", "=")
        for piece in shown.pieces:
            span = f"tokens {piece.first} to {piece.first + piece.tokens - 1}"
            if piece.document is None:
                _rule(f"padding, {span}")
                continue
            state = "begins" if piece.begins else "goes on"
            _rule(f"document {piece.document:,} {state}, {span}")
            sys.stdout.write(piece.text + "\n")


def _blend(corpus: "Corpus", stage: str | None, length: int, seed: int) -> "Blend":
    from monolane.data import Blend
    from monolane.errors import RequestError

    stages = corpus.manifest.stages
    if stage is not None and stage not in stages:
        raise RequestError(
            f"--stage: expected one of {', '.join(stages) or 'none (the recipe names none)'}, "
            f"got {stage!r}"
        )
    even = {name: 1.0 for name, source in corpus.sources.items() if source.train.tokens}
    weights = stages[stage] if stage is not None else next(iter(stages.values()), even)
    return Blend(corpus, weights, length, seed)


def _rule(text: str, line: str = "-") -> None:
    sys.stdout.write(f"{line * 4} {text} {line * max(4, 90 - len(text))}\n")


def _print_figures(corpus: "Corpus") -> None:
    from rich.console import Console
    from rich.table import Table

    from monolane.data import figures_of

    figures = figures_of(corpus)
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = ("source", "read", "documents", "tokens", "bytes", "tokens/byte", "held out")
    for name in (*columns, "dropped"):
        table.add_column(name, justify="left" if name in ("source", "dropped") else "right")
    for source in figures.sources:
        half = source.train
        dropped = [f"{d.filter} {d.documents:,}" for d in source.dropped if d.documents]
        numbers = (source.read, half.documents, half.tokens, half.bytes)
        table.add_row(
            source.name,
            *(f"{number:,}" for number in numbers),
            f"{half.tokens_per_byte:.3f}",
            f"{source.held_out.documents:,}",
            ", ".join(dropped) or "nothing",
        )
    # Fixed where nobody looks: a pipe's width of 80 columns would cut numbers.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(table)
    for stage, shares in figures.stages.items():
        mixture = ", ".join(f"{s.source} {100 * float(s.share):.4g} %" for s in shares)
        console.print(f"stage {stage}: {mixture}", soft_wrap=True)
