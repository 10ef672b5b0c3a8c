"""Calls whose arguments have their names before them: f(a=1, b="x"), call:f{a:1}.

Llama and LFM2 write them as Python, Gemma in a notation of its own.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from monolane.serve._grammar.compiler import shared_rules
from monolane.serve._grammar.key_order import members
from monolane.serve._tools.calls import Calls, NotACallError
from monolane.serve._tools.literal import literal_rule, regex_of
from monolane.serve._tools.objects import Objects
from monolane.serve._tools.scan import NAME, Notation, Reader
from monolane.serve._tools.scan import members as read_members
from monolane.serve._tools.shape import Shape, in_json
from monolane.serve._tools.tagged import fits, kind_of


@dataclass(frozen=True, slots=True)
class Keyed(Shape):
    """``lead``, the name, ``open``, key, ``colon``, value, ``comma``, ..., ``close``."""

    notation: Notation
    lead: str = ""
    open: str = "("
    close: str = ")"
    colon: str = "="
    comma: str = ", "

    def spell(self, name: str, arguments: Any) -> str:
        """Return the call; of arguments that have no names, an object."""
        if not isinstance(arguments, Mapping):
            return Objects().spell(name, arguments)
        values = (f"{key}{self.colon}{self._spelled(value)}" for key, value in arguments.items())
        return f"{self.lead}{name}{self.open}{self.comma.join(values)}{self.close}"

    def _spelled(self, value: Any) -> str:
        quote = self.notation.quote
        if quote and isinstance(value, str):
            return f"{quote}{value}{quote}"
        return in_json(value)

    def rules(self, i: int, name: str, parameters: Any, marks: Mapping[str, int]) -> Iterator[str]:
        """Yield the rules of a call, with values in JSON; of an object where keys are not plain."""
        if not fits(parameters):
            yield from Objects().rules(i, name, parameters, marks)
            return
        properties = parameters.get("properties", {})
        required = [key for key in properties if key in (parameters.get("required") or ())]
        keys = [*required, *(key for key in properties if key not in required)]
        names = [f"value_{i}_{j}" for j in range(len(keys))]
        begin, end = json.dumps(f"{self.lead}{name}{self.open}"), json.dumps(self.close)
        comma = json.dumps(self.comma)
        if names or parameters.get("additionalProperties") is False:
            yield f"call_{i}: {begin} {f'values_{i}' if names else ''} {end}"
        else:
            value, lines = self._value_rules({}, marks)
            yield f"call_{i}: {begin} (any_value ({comma} any_value)*)? {end}"
            yield f"any_value: KEY {json.dumps(self.colon)} ({value})"
            yield from (*lines, r"KEY: /[\w.-]+/")
        for rule, key in zip(names, keys, strict=True):
            value, lines = self._value_rules(properties[key], marks)
            yield f"{rule}: {json.dumps(key + self.colon)} ({value})"
            yield from lines
        if names:
            yield from members(f"values_{i}", names, len(required), comma)

    def _value_rules(self, schema: Any, marks: Mapping[str, int]) -> tuple[str, list[str]]:
        """Return what stands for a value, and the rules that it names."""
        quote, kind = self.notation.quote, kind_of(schema)
        value, lines = shared_rules(schema)
        if not quote or kind == "json":
            return value, lines
        mark = literal_rule(quote, marks)
        if kind == "texts":
            return " | ".join(f"{mark} {in_json(text)} {mark}" for text in schema["enum"]), []
        if quote in marks:
            text, more = f"{mark} QUOTED_TEXT {mark}", [r"QUOTED_TEXT: /(.|\n)*/"]
        else:
            text = f"{mark} quoted_text"
            more = [rf"quoted_text[lazy]: /(.|\n)*{regex_of(quote)}/"]
        return (text, more) if kind == "text" else (f"{text} | {value}", [*more, *lines])

    def read(self, calls: Calls, char: str) -> Reader:
        """Read a call that begins with ``char``."""
        for wanted in self.lead:
            if char != wanted:
                raise NotACallError
            char = yield
        name = ""
        while char in NAME:
            name += char
            char = yield
        if char != self.open:
            raise NotACallError
        calls.open(name)
        yield from read_members(calls.add, self.notation, self.close, self.colon)
        calls.close()
        return ""
