"""Calls that are a name, a mark and arguments in JSON: NAME[ARGS]{...}."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from monolane.serve._grammar.compiler import schema_rules
from monolane.serve._tools.calls import Calls, NotACallError
from monolane.serve._tools.literal import literal_rule
from monolane.serve._tools.objects import object_in, quoted_text
from monolane.serve._tools.scan import Reader, container, literal
from monolane.serve._tools.shape import Shape, in_json

NAME = r"(?P<name>[A-Za-z0-9_.:/-]+?)"
_LONGEST = 300  # characters before the arguments
_QUOTES = ("'", '"')
_OTHERS = (*_QUOTES, "n", "<", "`", "[")  # begins a text, null, or a mark behind no arguments
_CALL_ID = "[CALL_ID]"
_ID = "/[a-zA-Z0-9]{9}/"  # of a call, where the model writes one itself


@dataclass(frozen=True, slots=True)
class Named(Shape):
    """``args`` stands between name and arguments; ``head`` is a regex of all before them.

    ``last`` is the mark with which that ends: behind it there may be no arguments at all, null, or
    an object in a text.
    """

    args: str
    head: str
    last: str = ""
    lead: str = ""  # before the name
    tail: str = ""  # behind the arguments
    told: bool = False  # ``lead`` tells a call from text

    @property
    def leads(self) -> tuple[str, ...]:
        """What is before the name, where it is a mark."""
        return (self.lead,) if self.told else ()

    def spell(self, name: str, arguments: Any) -> str:
        """Return name, mark and arguments."""
        return f"{self.lead}{name}{self.args}{in_json(arguments)}{self.tail}"

    def rules(self, i: int, name: str, parameters: Any, marks: Mapping[str, int]) -> Iterator[str]:
        """Yield the rules of a call."""
        own_id = f"(<[{marks[_CALL_ID]}]> {_ID})?" if _CALL_ID in marks else ""
        lead, tail = literal_rule(self.lead, marks), literal_rule(self.tail, marks)
        mark = literal_rule(self.args, marks)
        yield f"call_{i}: {lead} {json.dumps(name)} {own_id} {mark} args_{i} {tail}"
        yield from schema_rules(f"args_{i}", parameters)

    def read(self, calls: Calls, char: str) -> Reader:
        """Read a call that begins with ``char``."""
        head = ""
        while char != "{" and not (char in _OTHERS and self._is_over(head)):
            head += char
            if len(head) > _LONGEST:
                raise NotACallError
            char = yield
        found = re.fullmatch(self.head, head)
        if found is None:
            raise NotACallError
        calls.open(found["name"])
        follows = ""
        if char == "{":
            yield from container(char, calls.add)
        elif char in _QUOTES:
            text, follows = yield from quoted_text(char)
            calls.add(object_in(text))
        else:
            if char == "n":
                yield from literal("ull")
            else:
                follows = char
            calls.add("{}")
        calls.close()
        return follows

    def _is_over(self, head: str) -> bool:
        """Tell whether the name and all marks before the arguments have been read."""
        return bool(self.last) and head.rstrip().endswith(self.last)
