"""An answer as it comes: the text on stdout, and on a terminal the thinking before it on stderr.

Thinking is for people: a program that reads stdout gets the answer alone.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from monolane.cli._report import dim, print_note
from monolane.cli._streams import leave_stdout
from monolane.engine import Engine, SamplingParams, Stream
from monolane.errors import RequestError
from monolane.text import Loop, Repetition, find_thinking, thinking_switch


def chat_stream(
    engine: Engine,
    messages: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    thinking: bool | None,
) -> Stream:
    """Return the answer to a chat, with its thinking told apart.

    ``thinking`` switches it on or off, None: as the template does. RequestError if the model's
    template has no such switch.
    """
    template, tokenizer = engine.chat_template, engine.tokenizer
    switch = thinking_switch(template)
    if thinking is not None and switch is None:
        raise RequestError(
            "--thinking, --no-thinking: expected neither, since this model's chat template has no "
            "variable that switches thinking"
        )
    if tokenizer is None:
        return engine.stream(messages, params)  # which says what is missing
    variables: dict[str, Any] = {} if thinking is None or switch is None else {switch: thinking}
    ids = template.encode(tokenizer, messages, **variables)
    return engine.stream(ids, replace(params, thinking=find_thinking(template, tokenizer, ids)))


def print_answer(stream: Stream, ends_loops: bool = False) -> tuple[str, str, bool]:
    """Print the pieces of an answer as they come, and end the line.

    ``ends_loops``: stop one that says the same over and over, and say so.
    Returns (text, thinking, whether Ctrl-C ended it).
    """
    repetition = Repetition() if ends_loops else None
    loop: Loop | None = None
    texts: list[str] = []
    thoughts: list[str] = []
    shown = interrupted = False  # thinking is on the terminal; Ctrl-C
    try:
        try:
            for piece in stream:
                thoughts.append(piece.thinking)
                texts.append(piece.text)
                if piece.thinking and sys.stderr.isatty():
                    sys.stderr.write(dim(piece.thinking))
                    sys.stderr.flush()
                    shown = True
                if piece.text and shown:
                    sys.stderr.write("\n\n")
                    sys.stderr.flush()
                    shown = False
                sys.stdout.write(piece.text)
                sys.stdout.flush()
                loop = repetition.add(piece.token_ids) if repetition is not None else None
                if loop is not None:
                    stream.close()
                    break
        except KeyboardInterrupt:
            stream.close()
            interrupted = True
        sys.stdout.write("\n")  # a reader may leave between the last piece and this
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does: stop decoding, no failure
        stream.close()
        leave_stdout()
    if loop is not None:
        print_note(
            f"stopped: the last {loop.period} token{'s' * (loop.period > 1)} came {loop.times} "
            "times in a row. Ask in other words, give --repetition-penalty 1.1, or take a larger "
            "model; /reset forgets this answer"
        )
    return "".join(texts), "".join(thoughts), interrupted
