"""``monolane generate``: complete one prompt, streaming."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolane.cli import _options as options

if TYPE_CHECKING:
    from monolane.engine import Engine, Stream


def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue; '-' reads it from stdin.")],
    model: options.Model = "demo",
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    presence_penalty: options.PresencePenalty = 0.0,
    repetition_penalty: options.RepetitionPenalty = None,
    generation_config: options.GenerationConfig = "auto",
    seed: options.Seed = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end of sequence.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")
    ] = False,
    thinking: options.Thinking = None,
    backend: options.BackendName = "auto",
    dtype: options.Dtype = "auto",
    cache_dtype: options.CacheDtype = "auto",
    context: options.Context = None,
    prefix_cache: options.PrefixCache = "auto",
    prefix_file: options.PrefixFile = None,
    speculation: options.Speculation = "auto",
    draft: options.Draft = None,
    heads: options.Heads = None,
    workers: options.Workers = None,
    expert_memory: options.ExpertMemory = None,
    ranks: options.Ranks = "1",
    key_file: options.KeyFile = None,
    devices: options.Devices = 1,
    as_json: options.Json = False,
) -> None:
    """Continue a text. The text goes to stdout as it is drawn, speed and timings to stderr.

    With --chat, what a model thinks before it answers is shown dimmed on a terminal (stderr), and
    never on stdout.
    """
    terminal_options = dict(locals())
    from monolane.cli._answer import chat_stream, print_answer
    from monolane.cli._defaults import Terminal
    from monolane.cli._report import echo_prompt, print_report
    from monolane.cli._streams import as_text, checked_stdin
    from monolane.errors import RequestError

    if thinking is not None and not chat:
        raise RequestError("--thinking, --no-thinking: expected --chat with it")
    with checked_stdin():
        text = as_text(sys.stdin.read() if prompt == "-" else prompt)
    terminal = Terminal(terminal_options)
    with terminal.load() as engine:
        params = terminal.params(
            engine, stop=tuple(map(as_text, stop or ())), ignore_eos=ignore_eos
        )
        if chat:
            stream = chat_stream(engine, [{"role": "user", "content": text}], params, thinking)
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
