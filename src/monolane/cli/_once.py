"""How commands were called until 0.1: taken for one release more, with a line of what to write.

Everything here goes away with 0.3, and nothing else knows of it.
"""

import copy
import sys
from collections.abc import Sequence
from typing import Any

from monolane._printable import printable

# Option -> what it is called now, by whichever of these the command has.
_OPTIONS = {
    "--out": ("--output",),
    "--workers": ("--threads", "--processes"),
    "--context": ("--before", "--window"),
    "--svg": ("--plot",),
}
# Command -> options that were words, in their order; "": a word that still is one.
_WORDS = {
    ("bench",): ("--model",),
    ("data", "prepare"): ("", "--output"),
    ("export",): ("--model", "--output"),
    ("launch",): ("", "--output"),
    ("quantize",): ("--model", "--output"),
    ("retrofit",): ("--model", "--output"),
    ("sft",): ("--model", "", "--output"),
    ("trace",): ("--model",),
    ("train",): ("", "--output"),
    ("tune", "heads"): ("--model", "--output"),
    ("verify",): ("--model",),
}


class _Word(str):
    """An argument that is told from others by identity, not by its text."""

    __slots__ = ()


def as_now(path: Sequence[str], command: Any, ctx: Any, given: Sequence[str]) -> list[str]:
    """Return arguments as they are written now; warns on stderr of each that was written before."""
    args = [_Word(_renamed(path, command, word)) for word in given]
    moved = _WORDS.get(tuple(path), ())
    if not moved:
        return list(args)
    options = copy.copy(command)  # of which all words are too many
    options.params = [x for x in command.params if x.param_type_name == "option"]
    ctx.allow_extra_args, kept = True, ctx.allow_extra_args
    try:
        _, words, _ = options.make_parser(ctx).parse_args(list(args))
    finally:
        ctx.allow_extra_args = kept
    still = moved.count("")
    if not still < len(words) <= len(moved):
        return list(args)
    pairs = list(zip(moved, words, strict=False))
    rest = [x for x in args if not any(x is word for word in words)]
    spelled = [part for option, word in pairs if option for part in (option, word)]
    _warn(path, f"{' '.join(words)!r} without options", " ".join(spelled))
    return [*spelled, *rest, *(word for option, word in pairs if not option)]


def _renamed(path: Sequence[str], command: Any, word: str) -> str:
    name, equals, value = word.partition("=")
    known = {spelling for x in command.params for spelling in x.opts}
    if name in known:
        return word
    for now in _OPTIONS.get(name, ()):
        if now in known:
            _warn(path, name, now)
            return f"{now}{equals}{value}"
    return word


def _warn(path: Sequence[str], before: str, now: str) -> None:
    name = " ".join(("monolane", *path))
    told = f"{name}: {before} goes away in the next release; write {now}"
    sys.stderr.write(f"{printable(told)}\n")
