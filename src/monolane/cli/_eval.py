"""``monolane eval``: how good a model's answers are, in one report."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monolane import _env
from monolane._loading import Loading
from monolane.cli import _options as options
from monolane.cli._groups import After, grouped

if TYPE_CHECKING:
    from monolane.evaluate import Subject

_KEY = _env.API_KEY.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How much is asked, and how it is drawn."""

    limit: Annotated[
        int | None, typer.Option(help="Items of each task; of each length of a long-context task.")
    ] = None
    samples: Annotated[int, typer.Option(help="Answers to each code problem, for pass@k.")] = 1
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", "-t", help="Of code answers [default: 0; of several, 0.8]."),
    ] = None
    top_p: Annotated[
        float, typer.Option("--top-p", help="Of sampled answers: the shortest such front.")
    ] = 1.0
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", help="Of a code answer, or one with calls.")
    ] = 768
    tool_choice: Annotated[
        str,
        typer.Option(
            help="Of bfcl: auto, or required, where the server lets nothing but calls come."
        ),
    ] = "auto"
    seed: options.Seed = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What tasks are made of, and what they are held against."""

    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="File or folder with the problems of HumanEval+ and MBPP+ [default: EvalPlus "
            "fetches them], or the folder of CORE's bundle; repeatable."
        ),
    ] = None
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Text for perplexity and parity; repeatable [default: Python's help]."),
    ] = None
    window: Annotated[int, typer.Option(help="Tokens of context for perplexity and parity.")] = 512
    lengths: Annotated[
        str, typer.Option(help="Tokens of long prompts, comma-separated; 2k is 2,048.")
    ] = "2k,4k"
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="What parity compares with: hf, BACKEND[:DTYPE], or a model on this disk[:DTYPE]; "
            "repeatable."
        ),
    ] = None
    include: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of your own task files for lm-eval; repeatable."),
    ] = None
    few_shot: Annotated[
        int | None,
        typer.Option(help="Solved examples before an item of lm-eval's [default: the task's own]."),
    ] = None
    skip_missing: Annotated[
        bool,
        typer.Option(
            "--skip-missing",
            help="Name tasks in the report whose data or packages cannot be had here, and do the "
            "others [default: end before anything is asked].",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Who is asked."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="'demo', 'smollm2', a model folder, a .gguf file, or a Hub id; with --base-url "
            "the server's name for it [default there: its first].",
        ),
    ] = None
    base_url: Annotated[
        str | None, typer.Option(help="Ask this OpenAI-compatible server instead.")
    ] = None
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Ask as a chat, or have texts continued [default: chat, if there is a template].",
        ),
        After("seed"),
    ] = None
    key_from: Annotated[
        str,
        typer.Option(help="Environment variable that holds the server's API key."),
        After("context"),
    ] = _KEY


@grouped("eval", after={"expert_memory": "cache_dtype"})
def evaluate(
    *,
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks",
            help="Comma-separated: humaneval+, mbpp+, core (DCLM's 22 tasks), perplexity, parity, "
            "bfcl (tool calls), ruler (all eleven long-context tasks), or a part of these two by "
            "its name; with the extra lmeval any task of lm-eval's, such as arc_easy, hellaswag, "
            "piqa or mmlu; card: all that the released model's card has figures of.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder of journals and reports; a run goes on there."),
    ],
    target: Target,
    asking: Asking,
    material: Material,
    of: Annotated[
        str | None,
        typer.Option(help="Hub id of the model whose published figures are to stand beside."),
    ] = None,
    loading: Loading,
    weak_guard: Annotated[
        bool,
        typer.Option(
            "--weak-guard",
            help="Run generated code with limits and few system calls alone, without namespaces.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Evaluate a model or a server, and write a report.

    Its files are report.json, report.md and report.html. Killed or interrupted, it goes on with the
    same command: each answer is on disk when the next is asked for. humaneval+ and mbpp+ run code
    that the model wrote, on this machine, in processes without network, rights or anything to write
    but 64 MB of memory.
    """
    from monolane._progress import shown_progress
    from monolane.cli._report import print_note
    from monolane.evaluate import EvalOptions, Guard, make_tasks, render_markdown, write_report
    from monolane.evaluate import evaluate as run
    from monolane.model import check_place

    check_place(out, beside=False)  # before a model is loaded
    wanted = EvalOptions(
        tasks=tuple(name.strip() for name in tasks.split(",") if name.strip()),
        **asdict(asking),
        data=tuple(material.data or ()),
        text=tuple(material.text or ()),
        window=material.window,
        lengths=_lengths(material.lengths),
        against=tuple(material.against or ()),
        include=tuple(material.include or ()),
        few_shot=material.few_shot,
        skip_missing=material.skip_missing,
        guard=Guard(strength="weak" if weak_guard else "full"),
    )
    made = make_tasks(wanted)
    if any(task.name in ("humaneval+", "mbpp+") for task in made):
        how = wanted.guard.describe()
        print_note(f"code that the model writes runs on this machine, shut in by {how}")
    command = shlex.join(["monolane", *map(_shown, sys.argv[1:])])
    try:
        with _subject(target, loading) as subject, shown_progress() as progress:
            report = run(subject, made, out, progress, command=command, of=of)
    except KeyboardInterrupt:
        print_note(f"interrupted; what is done is in {out}: go on with the same command")
        raise
    written = write_report(out, report)
    if as_json:
        sys.stdout.write(written[0].read_text(encoding="utf-8"))
    else:
        sys.stdout.write(render_markdown(report))
    print_note(f"written to {', '.join(str(path) for path in written)}")


def _lengths(text: str) -> tuple[int, ...]:
    found = []
    for word in text.split(","):
        number, thousand = word.strip().lower(), 1
        if number.endswith("k"):
            number, thousand = number[:-1], 1024
        if not number.isdigit():
            raise typer.BadParameter(f"--lengths: expected numbers such as 2k,4096, got {text!r}")
        found.append(int(number) * thousand)
    return tuple(found)


def _shown(word: str) -> str:
    from monolane.measure import shown_word

    return shown_word(word)


@contextmanager
def _subject(target: Target, loading: Loading) -> "Iterator[Subject]":
    from monolane._progress import still
    from monolane.evaluate import ServerSubject, open_engine

    model = target.model
    if target.base_url is not None:
        key = os.environ.get(target.key_from, "")
        yield ServerSubject(target.base_url, model, key, target.chat)
        return
    with ExitStack() as opened:
        with still(f"loading {model or 'demo'}"):
            made = open_engine(model or "demo", target.chat, **loading.given())
            subject = opened.enter_context(made)
        yield subject
