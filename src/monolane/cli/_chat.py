"""``monolane chat``: a conversation in the terminal."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from monolane.cli import _options as options
from monolane.cli._groups import grouped
from monolane.cli._terminal import Terminal

if TYPE_CHECKING:
    from monolane.engine import Engine, SamplingParams

_HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer"


@grouped("chat")
def chat(
    *,
    model: options.ChatModel = None,
    system: Annotated[
        str | None, typer.Option(help="System message, where the template has one.")
    ] = None,
    max_tokens: options.MaxTokens = 512,
    terminal: Terminal,
) -> None:
    """Talk to a model, line by line. Answers go to stdout, speed and timings to stderr.

    What a model thinks before it answers is shown dimmed on a terminal (stderr), and never on
    stdout.
    """
    from monolane.cli._report import print_note
    from monolane.cli._streams import as_text
    from monolane.sources import DEMO

    terminal.check(max_tokens)
    if model is None:
        raise typer.BadParameter(
            "expected a model that can chat, got none: --model smollm2 is one (98 MB, fetched "
            "once), and so is any .gguf file, model folder or Hub id",
            param_hint="--model",
        )
    with terminal.load(model) as engine:
        params = terminal.params(engine, max_tokens)
        if model == DEMO:
            print_note(
                "The demo model has read Python source and nothing else: it continues code, and "
                "was never taught to converse. For that, pass --model."
            )
        print_note(_HELP)
        said = None if system is None else as_text(system)
        _Conversation(engine, params, said, terminal.thinking).run()


class _Conversation:
    """The messages so far, cut from the front when the context is full."""

    def __init__(
        self,
        engine: "Engine",
        params: "SamplingParams",
        system: str | None,
        thinking: bool | None,
    ) -> None:
        self._engine, self._params, self._thinking = engine, params, thinking
        self._head = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[dict[str, str]] = []

    def run(self) -> None:
        if sys.stdin.isatty():
            import readline  # noqa: F401  gives input() its line editing and history
        while (line := _read_line()) is not None:
            if line in ("/quit", "/exit"):
                return
            if line == "/reset":
                self._messages.clear()
            elif line.startswith("/"):
                sys.stderr.write(_HELP + "\n")
            elif line.strip():
                self._answer(line)

    def _answer(self, line: str) -> None:
        from monolane.cli._answer import chat_stream, print_answer
        from monolane.cli._report import print_note, print_report

        said = {"role": "user", "content": line}
        engine = self._engine
        if (tokens := len(engine.prompt_ids([*self._head, said]))) > engine.backend.context:
            print_note(
                f"this line has {tokens:,} tokens with what goes before it, and the context holds "
                f"{engine.backend.context:,}: it was left out"
            )
            return
        self._messages.append(said)
        if dropped := self._make_room():
            print_note(f"the context is full: forgot the {dropped} oldest messages")
        chat = self._head + self._messages
        stream = chat_stream(self._engine, chat, self._params, self._thinking)
        text, thought, _ = print_answer(stream, ends_loops=True)
        message = {"role": "assistant", "content": text}
        # Templates that show a model its thoughts again read them there.
        self._messages.append(message | ({"reasoning_content": thought} if thought else {}))
        print_report(self._engine, stream.timings)

    def _make_room(self) -> int:
        """Forget the oldest exchanges until at least a quarter of the context is free to answer."""
        limit = self._engine.backend.context * 3 // 4
        dropped = 0
        while len(self._messages) > 1:
            if len(self._engine.prompt_ids(self._head + self._messages)) <= limit:
                break
            del self._messages[:2]
            dropped += 2
        return dropped


def _read_line() -> str | None:
    """Return the next line, or None at the end of input."""
    from monolane.cli._streams import as_text, checked_stdin

    try:
        with checked_stdin():
            return as_text(input("> " if sys.stdin.isatty() else ""))
    except (EOFError, KeyboardInterrupt):
        return None
