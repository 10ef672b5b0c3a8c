"""Objects whose optional keys may come anywhere.

The compiler writes the keys of an object in the order of its schema. That loses what a model writes
in another order: once it has begun with a later key, an earlier one that need not be there can
never come. So objects with optional keys get rules of their own: each of these once, at any place.
Keys that are required are never lost. They keep the schema's order, which clients rely on to have
a model reason before it answers, and which makes long runs that need no draw.

The rules have a parameter of 64 bits, in which each key that is written sets its own.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

MAX_KEYS = 60  # of one object: the bits of a parameter
_NOTES = frozenset(
    ("title", "description", "default", "examples", "$schema", "$defs", "definitions")
)
_OBJECT = (
    frozenset(("type", "properties", "patternProperties", "required", "additionalProperties"))
    | _NOTES
)
_ARRAY = frozenset(("type", "items", "minItems")) | _NOTES
_BRANCHES = frozenset(("anyOf",)) | _NOTES
_REFERENCE = frozenset(("$ref",)) | _NOTES
_DEFINED = ("$defs", "definitions")
_DEFINITION = re.compile(r"#/(\$defs|definitions)/.*", re.DOTALL)
# The end of a pattern that is an anchor.
_ENDS = re.compile(r"(?<!\\)(\\\\)*\$\Z")
# In a pattern: other anchors, groups that are more than groups, and escapes that are not plain.
_BEYOND = re.compile(r"[\^$]|\(\?|\\[bBA-Z1-9pPuUxkc]|\n")
# A key that is not listed; in texts of JSON.
_PLAIN = r'"[^"\\\x00-\x1F\x7F]*"'  # one without escapes: as it stands, so it is read
_CHARACTER = r'([^"\\\x00-\x1F\x7F]|\\(["\\\/bfnrt]|u[a-fA-F0-9]{4}))'


def members(
    name: str, keys: Sequence[str], required: int, between: str = "", further: str = ""
) -> Iterator[str]:
    """Yield the Lark rules of members, each of which is a rule of its own and comes once at most.

    The first ``required`` of ``keys`` must come, in this order; others anywhere. ``further``: a
    rule of members that may come any number of times. ``between``: the rule of what separates them.
    """
    rest = f"{name}_rest"
    first = [] if required else ['""']
    more = [f'"" %if is_ones([0:{required}])' if required else '""']
    for i, key in enumerate(keys):
        condition = f"bit_clear({i})"
        if 0 < i < required:
            condition = f"and({condition}, is_ones([0:{i}]))"
        if i == 0 or i >= required:
            first.append(f"{key} {rest}::{hex(1 << i)}")
        more.append(f"{between} {key} {rest}::set_bit({i}) %if {condition}")
    if further:
        first.append(f"{further} {rest}::0x0")
        more.append(f"{between} {further} {rest}::_")
    yield f"{name}: {' | '.join(first)}"
    yield f"{rest}::_ : {' | '.join(more)}"


def ordered_rules(name: str, schema: Any, options: Mapping[str, Any]) -> list[str] | None:
    """Return Lark rules for a schema; None where the compiler's own order loses nothing."""
    if not isinstance(schema, Mapping) or options.get("item_separator") is None:
        return None
    if not all(map(_DEFINITION.fullmatch, _references(schema))):
        return None  # into the schema itself, which parts of it do not have
    rules = _Rules(name, schema, options)
    right = rules.right(schema)
    return [f"{name}: {right}", *rules.lines] if rules.ordered else None


def _references(value: Any) -> Iterator[str]:
    """Yield the places that a schema refers to; of properties with that name, these, too."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            if isinstance(place := one.get("$ref"), str):
                yield place
            left += one.values()
        elif isinstance(one, list):
            left += one


def shared_name(text: str) -> str:
    """Return the name of the rule for a schema: the same in all of a grammar, where it is once."""
    return f"json_{sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"


class _Rules:
    """The rules of one schema; equal parts of it share theirs."""

    def __init__(self, name: str, root: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._name, self._root, self._options = name, root, dict(options)
        self._comma, self._colon = options["item_separator"], options["key_separator"]
        self.lines: list[str] = []
        self.ordered = False  # an object has keys that may come anywhere
        self._names: dict[str, str] = {}  # of rules, by the JSON of their schema

    def right(self, schema: Any) -> str:
        """Return the right side of a rule for a schema."""
        found = None
        if isinstance(schema, Mapping):
            if schema.get("type") == "object" and _OBJECT.issuperset(schema):
                found = self._object(schema)
            elif schema.get("type") == "array" and _ARRAY.issuperset(schema):
                found = self._array(schema)
            elif _BRANCHES.issuperset(schema) and isinstance(schema.get("anyOf"), list):
                branches = [one for one in schema["anyOf"] if one is not False]
                found = " | ".join(map(self._rule, branches))
            elif _REFERENCE.issuperset(schema) and isinstance(schema.get("$ref"), str):
                found = self._referred(schema["$ref"])
        return found or self._compiled(schema)

    def _compiled(self, schema: Any) -> str:
        """Return the rule of a schema that the compiler is to follow."""
        if not isinstance(schema, Mapping):
            schema = {}  # true: anything
        defined = {key: self._root[key] for key in _DEFINED if key in self._root}
        return f"%json {json.dumps({**defined, **schema, 'x-guidance': self._options})}"

    def _rule(self, schema: Any) -> str:
        """Return the name of the rule for a schema."""
        key = json.dumps(schema)
        if '"$ref"' in key:
            key = json.dumps([schema, *(self._root.get(defined) for defined in _DEFINED)])
        if key not in self._names:
            name = self._names[key] = shared_name(key)
            self.lines.append(f"{name}: {self.right(schema)}")
        return self._names[key]

    def _referred(self, place: str) -> str | None:
        names = place.split("/")
        if len(names) != 3 or names[0] != "#" or names[1] not in _DEFINED:
            return None
        defined = self._root.get(names[1])
        target = defined.get(names[2]) if isinstance(defined, Mapping) else None
        return None if target is None else self._rule(target)

    def _array(self, schema: Mapping[str, Any]) -> str | None:
        least = schema.get("minItems", 0)
        if schema.get("items", False) is False or type(least) is not int or least > 1:
            return None
        item, comma = self._rule(schema["items"]), json.dumps(self._comma)
        items = f"{item} ({comma} {item})*"
        return f'"[" {items} "]"' if least == 1 else f'"[" ({items})? "]"'

    def _object(self, schema: Mapping[str, Any]) -> str | None:
        properties, needed = schema.get("properties"), schema.get("required", [])
        more = schema.get("additionalProperties", True)
        if not isinstance(properties, Mapping) or not isinstance(needed, list):
            return None
        if False in properties.values():  # a key that must not be there
            return None
        pattern = _only_pattern(schema.get("patternProperties", {}), properties)
        if pattern is None:
            return None
        if not 0 < len(properties) <= MAX_KEYS or not all(key in properties for key in needed):
            return None
        required = [key for key in properties if key in needed]
        optional = [key for key in properties if key not in needed]
        several = len(properties) > 1 or more or pattern[0]
        self.ordered = self.ordered or bool(optional and several)
        keys = []
        name = f"{self._name if schema is self._root else shared_name(json.dumps(schema))}_keys"
        for i, key in enumerate((*required, *optional)):
            keys.append(f"{name}_k{i}")
            value = self._rule(properties[key])
            self.lines.append(f"{keys[-1]}: {self._literal(key)} {value}")
        further = self._further(name, properties, pattern, more)
        self.lines += members(name, keys, len(required), json.dumps(self._comma), further)
        return f'"{{" {name} "}}"'

    def _further(
        self, name: str, listed: Mapping[str, Any], pattern: tuple[str, Any], more: Any
    ) -> str:
        """Add the rules of members that are not listed; return their name, "" for none.

        ``pattern``: the regex of what stands between the quotes of some keys, and their schema.
        """
        regex, schema = pattern
        known = "|".join(map(_regex, listed))
        kinds = [(f'/"{_CHARACTER}*"/', more)]
        if regex:
            kinds = [(f"/{_PLAIN}/ & /{regex}/", schema), (f"/{_PLAIN}/ & ~/{regex}/", more)]
        names = []
        for i, (keys, value) in enumerate(kinds):
            if value is False:
                continue
            key = f"{name.upper()}_KEY_{i}"
            names.append(f"{name}_more_{i}")
            self.lines += [
                f"{names[-1]}: {key} {json.dumps(self._colon)} {self._rule(value)}",
                f"{key}: {keys} & ~/({known})/",
            ]
        if len(names) < 2:
            return "".join(names)
        self.lines.append(f"{name}_more: {' | '.join(names)}")
        return f"{name}_more"

    def _literal(self, key: str) -> str:
        return json.dumps(json.dumps(key, ensure_ascii=False) + self._colon)


def _regex(key: str) -> str:
    return re.escape(json.dumps(key, ensure_ascii=False)).replace("/", r"\/")


def _only_pattern(patterns: Any, listed: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Return a Lark regex of the keys, with their quotes, of one pattern, and what it asks for.

    "": there is none. None: the compiler is to follow them: several, which may overlap, or one that
    a listed key meets, too, or with anchors within.
    """
    if not isinstance(patterns, Mapping) or len(patterns) > 1:
        return None
    if not patterns:
        return "", None
    ((pattern, schema),) = patterns.items()
    begins, ends = pattern.startswith("^"), _ENDS.search(pattern) is not None
    inner = pattern[begins : len(pattern) - ends]
    if _BEYOND.search(re.sub(r"(?<!\\)\[\^", "[", inner)) or ((begins or ends) and "|" in inner):
        return None
    try:
        if any(re.search(pattern, key) for key in listed):
            return None
    except re.error:
        return None
    inner = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\/", inner)
    before, behind = "" if begins else ".*", "" if ends else ".*"
    return f'"{before}({inner}){behind}"', schema
