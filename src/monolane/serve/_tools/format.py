"""A spelling of tool calls: the marks around calls, and what shows that a model has it.

The spelling is the model's, so it cannot be chosen freely: a model that was trained on one writes
another badly. What it was trained on stands in its chat template, or in its vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monolane.serve._tools.shape import Shape


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One spelling of the calls of an answer: ``before``, calls with ``between``, ``after``.

    That is what an enforced call and the history look like. Reading is more generous: a call may
    begin with ``begin`` or any of ``also``, what ends calls is left out wherever it comes behind
    one, and objects, lists of them and tags are read in any format.
    """

    name: str
    begin: str
    shape: Shape
    named: Shape | None = None  # of calls that begin with their name; None: ``shape``
    also: tuple[str, ...] = ()  # of a call, where ``begin`` is before all calls
    ends: tuple[str, ...] = ()  # behind a call, or behind all
    before: str = ""
    between: str = ""
    after: str = ""
    shown: tuple[str, ...] = ()  # a template with all of these shows this format
    lacks: tuple[str, ...] = ()  # texts that a template of another spelling has
    token: bool = False  # so does ``begin`` in a vocabulary, of a template that shows no calls
    spaced: bool = False  # an enforced call may have a space behind ``begin``
    bare: bool = False  # an answer may be a call without ``begin``
    opened: bool = False  # the prompt has written ``begin``; with ``text``, where no call follows
    text: str = ""  # behind ``begin``: what follows is text
    padded: bool = False  # a line break on each side of a value in tags is none of it
    marks: tuple[str, ...] = ()  # further marks, which may be control tokens
    many: bool = True  # several calls in one answer
    short_ids: bool = False  # templates of this family take ids of nine letters and digits only

    def spell(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Return the text of calls, (name, arguments) each."""
        return self.before + self.between.join(self.shape.spell(*one) for one in calls) + self.after

    @property
    def begins(self) -> tuple[str, ...]:
        """The marks with which calls may begin."""
        return (self.begin, *self.also)
