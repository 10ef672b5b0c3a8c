"""The tool calls of an answer, and the deltas in which its text and its calls leave.

The contract, for every spelling and every API:

- Arguments leave as JSON. What a model wrote otherwise, and what can be read in one way alone, is
  mended on the way.
- A call leaves with the first of its arguments. What cannot be read before that is content.
- What cannot be read after that, or is cut off, stays unfinished: its braces are never closed.
"""

import json
import secrets
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Part of a tool call: the first of each call has ``id`` and ``name``."""

    index: int  # of the call within the message
    arguments: str  # JSON, the next part of it; of a custom tool, its input
    id: str | None = None
    name: str | None = None
    custom: bool = False


@dataclass(frozen=True, slots=True)
class Delta:
    """What the text of an answer adds to its message."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    @staticmethod
    def joined(deltas: "Iterable[Delta]") -> "Delta":
        """Return several deltas as one, in which each tool call has one part."""
        deltas = tuple(deltas)
        calls: dict[int, ToolCallDelta] = {}  # call by call: those of one follow each other
        texts: dict[int, list[str]] = {}
        for part in [part for delta in deltas for part in delta.tool_calls]:
            calls.setdefault(part.index, part)
            texts.setdefault(part.index, []).append(part.arguments)
        return Delta(
            "".join([delta.content for delta in deltas]),
            "".join([delta.reasoning for delta in deltas]),
            tuple([replace(call, arguments="".join(texts[i])) for i, call in calls.items()]),
        )


class NotACallError(Exception):
    """The text is no tool call after all."""


class AnswerOverError(Exception):
    """Nothing more comes: thrown into a reader, which may end for it."""


class Calls:
    """The calls found so far, and the parts of them not yet taken.

    A trial is a call without the mark that tells it from text: nothing of it is taken before it is
    whole.
    """

    def __init__(self, *, many: bool, ids: Callable[[], str], schemas: Mapping[str, Any]) -> None:
        """``many``: False leaves out all calls but the first; ``ids`` makes their ids.

        ``schemas``: of each tool's arguments, for spellings that do not tell a number from a text.
        """
        self.names: frozenset[str] | None = None  # that a call may have; None: any
        self.schemas = schemas
        self._many, self._ids = many, ids
        self.count = 0  # of the calls
        self.broken = False  # one of them is not whole
        self.inside = False  # a call has begun to leave, and is not closed
        self.between = False  # a call has been closed, and nothing else has come
        self._name: str | None = None  # of a call of which nothing has left
        self._muted = False
        self._new: list[ToolCallDelta] = []
        self._text: list[str] = []  # further arguments of the last of them
        self._trial: tuple[int, int] | None = None  # lengths of ``_new`` and ``count`` before it

    @property
    def trial(self) -> bool:
        """Whether what is read now may turn out to be text."""
        return self._trial is not None

    @property
    def tried(self) -> bool:
        """Whether a trial has a whole call so far, and nothing behind it but white space."""
        return self._trial is not None and self.between and self.count > self._trial[1]

    def check(self, name: str) -> str:
        """Return a name that a call may have here; NotACallError for another."""
        if not name or (self.names is not None and name not in self.names):
            raise NotACallError
        return name

    def open(self, name: str) -> None:
        """Begin a call, which leaves with its first arguments."""
        self._name = self.check(name)

    def add(self, text: str) -> None:
        """Add to the arguments of the open call."""
        if self._name is not None and text:
            self.inside, self.between = True, False
            self._muted = self.count > 0 and not self._many
            if not self._muted:
                self._flush()
                self._new.append(ToolCallDelta(self.count, "", name=self._name))
                self.count += 1
            self._name = None
        if not self._muted:
            self._text.append(text)

    def close(self) -> None:
        """End the open call."""
        self.inside, self.between = False, True

    def fail(self) -> None:
        """Give up on the open call, of which parts have left."""
        self.broken = self.broken or not self._muted
        self.close()

    def forget(self) -> None:
        """Give up on a call of which nothing has left."""
        self._name = None

    def try_one(self) -> None:
        """Begin a trial."""
        self._flush()
        self._trial = (len(self._new), self.count)

    def end_trial(self, *, whole: bool) -> None:
        """End a trial: its call may leave now, or there was none."""
        if self._trial is not None and not whole:
            place, self.count = self._trial
            del self._new[place:]
            self._text.clear()
            self.inside = False
        self._trial = None

    def take(self) -> tuple[ToolCallDelta, ...]:
        """Return the parts that came since the last time, one for each call."""
        if self._trial is None:
            self._flush()
            new, self._new = self._new, []
        else:
            place, count = self._trial
            new, self._new = self._new[:place], self._new[place:]
            self._trial = (0, count)
        # Here, since a trial that fails has used none.
        return tuple(part if part.name is None else replace(part, id=self._ids()) for part in new)

    def _flush(self) -> None:
        text, self._text = "".join(self._text), []
        if not text:
            return
        if self._new:
            self._new[-1] = replace(self._new[-1], arguments=text)
        else:
            self._new.append(ToolCallDelta(self.count - 1, text))


def read_arguments(text: str) -> Any:
    """Return what arguments mean; ValueError or RecursionError where they are no JSON.

    A model may write an escape of half a character, such as ``\\ud83d`` alone. It becomes "?": no
    prompt and no reply can hold it.
    """
    found = json.loads(text)
    if "\\ud" not in text.lower():
        return found
    return json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))


def whole_arguments(text: str) -> dict[str, Any] | None:
    """Return the arguments of a whole call; None for one that was cut off, or is no JSON."""
    try:
        found = read_arguments(text)
        json.dumps(found, allow_nan=False)  # Python reads NaN and 1e999, which JSON has not
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def call_id() -> str:
    """Return a new id as OpenAI's are."""
    return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """Return a new id of nine letters and digits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))
