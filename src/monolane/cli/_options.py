"""Options that several commands share, so that each is spelled and explained once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from monolane.errors import ConfigError

# Heads of groups in the help. Options of these two mean the same in all commands that have them.
LOADING = "The model, and how it is loaded"
DRAWING = "How tokens are drawn"

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        rich_help_panel=LOADING,
        help="'demo', 'smollm2', a model folder, a .gguf file, a Hub id (name/model, "
        "name/model:Q4_K_M, @revision behind it), or a name of 'monolane list'.",
    ),
]
ChatModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        rich_help_panel=LOADING,
        help="'smollm2', a model folder, a .gguf file, a Hub id (name/model, name/model:Q4_K_M, "
        "@revision behind it), or a name of 'monolane list'.",
    ),
]
Speculation = Annotated[
    str,
    typer.Option(
        "--speculation",
        help="Draft tokens, which the model then draws itself: auto (where that is faster), "
        "suffix (from what the text repeats), draft (by the draft model), heads (by heads) or off. "
        "The text is the same with each.",
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        rich_help_panel=LOADING,
        help="File with the key that ranks with addresses share [default: MONOLANE_RANK_KEY].",
    ),
]
GenerationConfig = Annotated[
    str,
    typer.Option(
        "--generation-config",
        help="Where it stands how to draw if nobody says: auto (generation_config.json of the "
        "model), none, or another folder or file.",
    ),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="Tokens to draw at most.")]
Seed = Annotated[int, typer.Option("--seed", help="Equal seeds give equal texts.")]
Thinking = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking",
        help="Have the model think first, or not, where its chat template has a switch for it "
        "[default: as the template does].",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
ModelNeeded = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        rich_help_panel=LOADING,
        help="'demo', 'smollm2', a model folder, a .gguf file, or a Hub id.",
    ),
]
Trained = Annotated[
    Path,
    typer.Option("--output", "-o", help="Folder to write; a run that is killed is in OUTPUT.run."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")]
ReplaceOut = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it is there.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run of the output from its last checkpoint.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="section.key=value over the config's; may be given again."),
]
ResultsOut = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the results to this file, or folder."),
]


@contextmanager
def making_recipe() -> Iterator[None]:
    """Make a recipe of options in here: all that can be wrong with it are those."""
    try:
        yield
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


@contextmanager
def training() -> Iterator[None]:
    """Train in here: whoever interrupts it is told how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what OUTPUT.run keeps goes on with --resume\n")
        raise


def given(call: typer.Context, elsewhere: bool = False) -> dict[str, str]:
    """Return the parameters that the command line gives, with their spelling.

    ``elsewhere``: those of variables and files, too, which count where they can and are refused
    nowhere.
    """
    sources = ("COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP")[: 3 if elsewhere else 1]
    return {
        str(parameter.name): parameter.opts[0]
        for parameter in call.command.params
        if (source := call.get_parameter_source(str(parameter.name))) and source.name in sources
    }
