"""Options that several commands share, so that each is spelled and explained once."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="'demo', 'smollm2', a model folder, a .gguf file, or a Hub id (name/model@revision).",
    ),
]
ChatModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="'smollm2', a model folder, a .gguf file, or a Hub id (name/model@revision).",
    ),
]
BackendName = Annotated[
    str, typer.Option("--backend", help="auto, cuda, cpu or reference; see 'doctor'.")
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", help="auto, float32, bfloat16, float16, int8 or int4; float8 on a GPU."
    ),
]
CacheDtype = Annotated[
    str,
    typer.Option(
        "--cache-dtype",
        help="Of keys and values: auto (as goes with the weights), float32, bfloat16, float16, "
        "int8 or int4 (CPU).",
    ),
]
Context = Annotated[
    int | None,
    typer.Option("--context", min=1, help="Tokens a sequence may hold [default: the model's]."),
]
PrefixCache = Annotated[
    str,
    typer.Option(
        "--prefix-cache",
        help="Bytes of earlier sequences to keep, so that what prompts begin with is read once: "
        "auto (a quarter of the free memory, at most 4G), off, or a size such as 512M.",
    ),
]
PrefixFile = Annotated[
    Path | None,
    typer.Option(
        "--prefix-file", help="Read them from this file, and write them to it at the end."
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
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        help="Have a model with the same tokenizer draft tokens (CPU): int4 or int8, this one in "
        "fewer bits, or another as --model names it; or a folder of heads.",
    ),
]
Heads = Annotated[
    Path | None,
    typer.Option("--heads", help="Have heads of 'monolane tune heads' draft tokens (CPU)."),
]
Ranks = Annotated[
    str,
    typer.Option(
        "--ranks",
        help="Processes that decode together, a share of the model's lanes each (CPU): their "
        "number, or host:port,host:port where 'monolane rank' runs; this process is the first.",
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file", help="File with the key of ranks on other hosts; each has the same."
    ),
]
Devices = Annotated[
    int,
    typer.Option(
        "--devices",
        min=1,
        help="GPUs that decode together, a share of the model's lanes each (CUDA).",
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
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        "-t",
        help="0: always the most probable token [default: the model's, else 0.7].",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        "--top-k", help="Keep the k most probable tokens; 0: all [default: the model's, else 0]."
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        help="Then the shortest front of this probability [default: the model's, else 1].",
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        "--min-p",
        help="Then those this share as probable as the first [default: the model's, else 0.05].",
    ),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option("--frequency-penalty", help="What each time drawn takes off a token's logit."),
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", help="What having been drawn at all takes off it.")
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(
        "--repetition-penalty",
        help="What tokens of prompt and answer are divided by; 1: nothing "
        "[default: the model's, else 1].",
    ),
]
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
ModelArgument = Annotated[
    str, typer.Argument(help="'demo', 'smollm2', a model folder, a .gguf file, or a Hub id.")
]
ModelAtRevision = Annotated[
    str,
    typer.Argument(
        help="'demo', 'smollm2', a model folder, a .gguf file, or a Hub id (name/model@revision)."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Threads that decode (CPU) [default: one per core; see 'doctor']."),
]
ExpertMemory = Annotated[
    str | None,
    typer.Option(
        "--expert-memory",
        help="Bytes for the experts of a mixture that are used most, such as 8G; others are read "
        "from a file (CPU) [default: all are in memory].",
    ),
]
ReplaceOut = Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is there.")]
ReplaceDestination = Annotated[
    bool, typer.Option("--overwrite", help="Replace the destination if it is there.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run of OUT from its last checkpoint.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="section.key=value over the config's; may be given again."),
]
ResultsOut = Annotated[Path | None, typer.Option(help="Write the results to this file, or folder.")]


def given(call: typer.Context) -> dict[str, str]:
    """Return the parameters that the command line gives, with their spelling."""
    return {
        str(parameter.name): parameter.opts[0]
        for parameter in call.command.params
        if (source := call.get_parameter_source(str(parameter.name)))
        and source.name == "COMMANDLINE"
    }
