"""``monolane generate``: complete one prompt, streaming."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolane.cli import _options as options
from monolane.cli._groups import grouped
from monolane.cli._terminal import Terminal

if TYPE_CHECKING:
    from monolane.engine import Engine, Stream


@grouped("generate", after={"stop": "seed", "ignore_eos": "stop", "chat": "ignore_eos"})
def generate(
    *,
    prompt: Annotated[str, typer.Argument(help="Text to continue; '-' reads it from stdin.")],
    model: options.Model = "demo",
    max_tokens: options.MaxTokens = 256,
    terminal: Terminal,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end of sequence.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Continue a text. The text goes to stdout as it is drawn, speed and timings to stderr.

    With --chat, what a model thinks before it answers is shown dimmed on a terminal (stderr), and
    never on stdout.
    """
    from monolane.cli._answer import chat_stream, print_answer
    from monolane.cli._report import echo_prompt, print_report
    from monolane.cli._streams import as_text, checked_stdin
    from monolane.errors import RequestError

    if terminal.thinking is not None and not chat:
        raise RequestError("--thinking, --no-thinking: expected --chat with it")
    with checked_stdin():
        text = as_text(sys.stdin.read() if prompt == "-" else prompt)
    terminal.check(max_tokens)
    with terminal.load(model) as engine:
        stops = tuple(map(as_text, stop or ()))
        params = terminal.params(engine, max_tokens, stop=stops, ignore_eos=ignore_eos)
        if chat:
            stream = chat_stream(
                engine, [{"role": "user", "content": text}], params, terminal.thinking
            )
        else:
            stream = engine.stream(text, params)
        if as_json:
            _print_json(engine, stream, chat)
            return
        if not chat:
            echo_prompt(text)
        _, _, interrupted = print_answer(stream)
        print_report(engine, stream.timings)
    if interrupted:
        raise KeyboardInterrupt


def _print_json(engine: "Engine", stream: "Stream", chat: bool) -> None:
    from monolane.cli._streams import print_json

    answer = stream.result()
    timings = answer.timings
    record: dict[str, Any] = {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "backend": engine.backend.name,
        "dtype": engine.backend.dtype,
        "timings": {
            "load_seconds": engine.load_seconds,
            **asdict(timings),
            "tokens_per_second": timings.tokens_per_second,
        },
    }
    if chat:
        record["thinking"] = answer.thinking
    print_json(record)
