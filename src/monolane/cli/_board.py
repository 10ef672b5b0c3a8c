"""``monolane board``: runs of training as a picture."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from monolane.cli._output import check_output, write_output
from monolane.errors import RequestError


class _By(StrEnum):
    STEP = "step"
    TOKENS = "tokens"
    SECONDS = "seconds"


def board(
    *,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folders of runs, to be drawn together: OUTPUT of train and launch, OUTPUT.run of "
            "'train demo' and sft.",
        ),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", help="SVG file to write.")],
    by: Annotated[_By, typer.Option(help="What lies on the horizontal axes.")] = _By.STEP,
) -> None:
    """Draw runs of training together (extra plot).

    Loss, held-out text, norm of the gradients and speed, read from a run's journal (log.jsonl),
    also while it trains. Each step is a pale line, the smooth one is their moving average. Upright
    lines: dotted a resumed run, dashed a spike or a rollback, dashes and dots a new stage.
    """
    from monolane.measure import require_plot
    from monolane.train import plot_runs, read_curves

    require_plot()
    if out.suffix != ".svg":
        raise RequestError(f"--output: expected a name that ends in .svg, got {out}")
    check_output(out)
    curves = {str(run): read_curves(run) for run in runs}
    write_output(out, plot_runs(curves, by.value))
    sys.stderr.write(f"written to {out}\n")
