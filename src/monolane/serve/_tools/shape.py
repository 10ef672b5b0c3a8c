"""What a shape of calls is: how one is spelled, read, and held to by a grammar."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from monolane.serve._tools.calls import Calls, NotACallError
from monolane.serve._tools.scan import Reader


@dataclass(frozen=True, slots=True)
class Shape(ABC):
    """One way to spell a call; the marks around it are the format's."""

    @abstractmethod
    def spell(self, name: str, arguments: Any) -> str:
        """Return the text of a call."""

    @abstractmethod
    def rules(self, i: int, name: str, parameters: Any, marks: Mapping[str, int]) -> Iterator[str]:
        """Yield the Lark rules of calls of a tool, of which the first is ``call_i``.

        ``parameters`` is the schema of its arguments. ``marks`` are texts that are control tokens
        of this vocabulary, and their ids.
        """

    def read(self, calls: Calls, char: str) -> Reader:
        """Read a call that begins with its name; return what was read behind it.

        Calls that begin with a bracket or a tag are read in any format: ``reader.py``.
        """
        yield from ()
        raise NotACallError

    @property
    def leads(self) -> tuple[str, ...]:
        """The texts with which a call itself begins, which tell it from text without a mark."""
        return ()


def in_json(value: Any) -> str:
    """Return a value as models write it."""
    return json.dumps(value, ensure_ascii=False)
