"""Keywords of a JSON schema that the compiler lacks, said in others that it has.

Only where that is exact, and of bounded size; what stays is refused by the compiler, by its name.

    uniqueItems         of a few listed values: a list of all lists
    propertyNames       listed: properties; a pattern: patternProperties
    dependentRequired   a branch for each of the properties: left out, or with those that it needs
    contains            of a short list: a branch for each place that may hold it
    oneOf               of objects that a property tells apart, each by values of its own: anyOf.
                        Where it may be left out, for it has a default, it is written all the same
    minimum, maximum    past 2^53, where the compiler's numbers have gaps: the next one inside
    format              of those that JSON Schema does not define (int32, password, binary): a note
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Any

from monolane.errors import RequestError

Schema = Any  # an object or a boolean

MAX_VALUES = 5  # of a list with uniqueItems: 326 lists
MAX_LISTS = 1 << 15  # that all uniqueItems of a schema may make: 0.3 s
MAX_DEPENDENT = 4  # properties of one dependentRequired: 16 branches
MAX_PLACES = 16  # of a list with contains

_ONE = ("items", "additionalProperties", "not", "if", "then", "else")
_LIST = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_DEFINITIONS = ("$defs", "definitions")
# JSON Schema 2020-12, validation, section 7.3; any other is an annotation.
_FORMATS = frozenset(
    (
        *("date-time", "date", "time", "duration", "email", "idn-email", "hostname"),
        *("idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid"),
        *("uri-template", "json-pointer", "relative-json-pointer", "regex"),
    )
)
# 1: a bound from above.
_BOUNDS = {"minimum": -1, "maximum": 1, "exclusiveMinimum": -1, "exclusiveMaximum": 1}
_EXACT = 1 << 53
_LARGEST = (1 << 63) - 1024  # double in 64 bits with a sign
_NOTES = ("title", "description", "default", "examples", "$schema")


def rewritten(schema: Schema) -> Schema:
    """Return a checked schema that the same values meet; RequestError for too many lists."""
    return _rewritten(schema, _Lists(schema))


class _Lists:
    """How many lists have been made so far, of a schema with this ``root``."""

    def __init__(self, root: Schema = None) -> None:
        self._made = 0
        self.root = root

    def add(self, count: int) -> None:
        self._made += count
        if self._made > MAX_LISTS:
            raise RequestError(
                f"schema: expected at most {MAX_LISTS} lists of unique items in all, got more; use "
                "uniqueItems less, or allow fewer values or items"
            )


def _rewritten(schema: Schema, lists: _Lists) -> Schema:
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in _ONE:
        if name in found:
            found[name] = _rewritten(found[name], lists)
    for name in _LIST:
        if isinstance(found.get(name), list):
            found[name] = [_rewritten(one, lists) for one in found[name]]
    for name in _NAMED:
        if isinstance(found.get(name), dict):
            found[name] = {key: _rewritten(one, lists) for key, one in found[name].items()}
    if isinstance(found.get("format"), str) and found["format"] not in _FORMATS:
        del found["format"]
    found = _unique(found, lists)
    for rule in _RULES:
        found = rule(found)
    return _tagged(found, lists.root)


def check_written(schema: Schema, most: int) -> None:
    """Raise RequestError for a rewritten schema of more than ``most`` characters as JSON.

    The rules copy parts, and parts of parts: with ``contains`` in each of five lists, one within
    the other, 200 characters become 10 billion. In memory the copies are one object, and each is
    looked at once.
    """
    known: dict[int, int] = {}  # characters of an object, by its id

    def size(value: Any) -> int:
        if not isinstance(value, dict | list):
            return len(json.dumps(value))
        if id(value) not in known:
            count = 2
            for part in (*value, *value.values()) if isinstance(value, dict) else value:
                count += size(part) + 2
                if count > most:
                    raise RequestError(
                        f"schema: expected at most {most} characters with contains, "
                        "dependentRequired and uniqueItems written out in other keywords, got "
                        "more; nest them less, or allow fewer items"
                    )
            known[id(value)] = count
        return known[id(value)]

    size(schema)


def _unique(schema: dict[str, Any], made: _Lists) -> dict[str, Any]:
    if schema.get("uniqueItems") is False or (
        schema.get("uniqueItems") is True and _size(schema, "maxItems", 2) < 2
    ):
        return _without(schema, "uniqueItems")
    items = schema.get("items")
    known = {"type", "items", "uniqueItems", "minItems", "maxItems", *_NOTES}
    if schema.get("uniqueItems") is not True or not known.issuperset(schema):
        return schema
    if schema.get("type") != "array" or not isinstance(items, dict):
        return schema
    if not {"enum", "type", *_NOTES}.issuperset(items) or not isinstance(items.get("enum"), list):
        return schema
    values = _of_type(items["enum"], items.get("type"))
    if (
        values is None
        or len(values) > MAX_VALUES
        or any(values.count(value) > 1 for value in values)
    ):
        return schema
    least, most = _size(schema, "minItems", 0), _size(schema, "maxItems", len(values))
    sizes = range(least, min(most, len(values)) + 1)
    made.add(sum(math.perm(len(values), size) for size in sizes))
    lists = [list(one) for size in sizes for one in permutations(values, size)]
    return {"enum": lists} if lists else schema


def _of_type(values: list[Any], kind: Any) -> list[Any] | None:
    """Return the values that are texts, all of them without a type; None where it is unclear."""
    if kind == "string":
        return [value for value in values if isinstance(value, str)]
    # In JSON 1 is 1.0, and Python takes true for 1: only texts are told apart for certain.
    plain = all(isinstance(value, str | int) and type(value) is not bool for value in values)
    return values if plain and kind is None else None


def _names(schema: dict[str, Any]) -> dict[str, Any]:
    names = schema.get("propertyNames")
    if not isinstance(names, dict) or "properties" in schema or "patternProperties" in schema:
        return schema
    value = schema.get("additionalProperties", True)
    told = {key for key in names if key not in ("type", *_NOTES)}
    if names.get("type", "string") != "string" or len(told) > 1:
        return schema
    rest = _without(schema, "propertyNames")
    if not told:
        return rest
    if told == {"pattern"}:
        return rest | {
            "patternProperties": {names["pattern"]: value},
            "additionalProperties": False,
        }
    listed = names.get("enum", [names.get("const")])
    if told <= {"enum", "const"} and all(isinstance(name, str) for name in listed):
        return rest | {
            "properties": dict.fromkeys(listed, value),
            "additionalProperties": False,
        }
    return schema


def _dependent(schema: dict[str, Any]) -> dict[str, Any]:
    needs = schema.get("dependentRequired")
    if not isinstance(needs, dict) or len(needs) > MAX_DEPENDENT:
        return schema
    if not all(isinstance(others, list) for others in needs.values()):
        return schema
    outer, inner = _parted(schema)
    branch = _without(inner, "dependentRequired")
    branches = list(_branches(branch, list(needs.items())))
    return outer | (branches[0] if len(branches) == 1 else {"anyOf": branches})


def _branches(
    schema: dict[str, Any], needs: list[tuple[str, list[str]]]
) -> Iterator[dict[str, Any]]:
    if not needs:
        yield schema
        return
    (name, others), rest = needs[0], needs[1:]
    required = list(schema.get("required", ()))
    properties = schema.get("properties", {})
    if properties.get(name) is not False:  # with it, and what it needs
        wanted = [*required, *(key for key in (name, *others) if key not in required)]
        if all(properties.get(key) is not False for key in wanted):
            yield from _branches(schema | {"required": wanted}, rest)
    if name not in required:  # without it
        yield from _branches(schema | {"properties": {**properties, name: False}}, rest)


def _contains(schema: dict[str, Any]) -> dict[str, Any]:
    wanted, most = schema.get("contains"), _size(schema, "maxItems", MAX_PLACES + 1)
    unclear = {"minContains", "maxContains", "prefixItems", "uniqueItems", "anyOf"}
    if wanted is None or most > MAX_PLACES or unclear.intersection(schema):
        return schema
    outer, inner = _parted(schema)
    rest, items = _without(inner, "contains"), schema.get("items", True)
    both = wanted if items is True else {"allOf": [items, wanted]}
    least = _size(schema, "minItems", 0)
    return outer | {
        "anyOf": [
            {**rest, "prefixItems": [items] * place + [both], "minItems": max(least, place + 1)}
            for place in range(most)
        ]
    }


def _tagged(schema: dict[str, Any], root: Schema) -> dict[str, Any]:
    branches = schema.get("oneOf")
    if not isinstance(branches, list) or len(branches) < 2 or "anyOf" in schema:
        return schema
    objects = [_referred(branch, root) for branch in branches]
    if any(one.get("type") != "object" for one in objects):
        return schema
    name = next((name for name in _properties(objects[0]) if _tells_apart(name, objects)), None)
    if name is None:
        return schema
    # A definition is not written out: it may refer to itself.
    written = [
        branch
        if name in one.get("required", ())
        else {"allOf": [branch, {"type": "object", "required": [name]}]}
        for branch, one in zip(branches, objects, strict=True)
    ]
    return _without(schema, "oneOf", "discriminator") | {"anyOf": written}


def _tells_apart(name: str, objects: list[dict[str, Any]]) -> bool:
    """Tell whether a property has other values in each of these objects."""
    seen: set[Any] = set()
    for one in objects:
        tag = _properties(one).get(name)
        if not isinstance(tag, dict) or not ("const" in tag or isinstance(tag.get("enum"), list)):
            return False
        values = [tag["const"]] if "const" in tag else tag["enum"]
        if not values or not all(isinstance(value, str | int) for value in values):
            return False
        # Python takes true for 1, which JSON does not.
        told = {(type(value) is bool, value) for value in values}
        if seen & told:
            return False
        seen |= told
    return True


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _referred(schema: Schema, root: Schema) -> dict[str, Any]:
    """Return a schema, or the definition at the root that it refers to and says nothing beside."""
    found = schema if isinstance(schema, dict) else {}
    place = found.get("$ref")
    if isinstance(place, str) and len(found) == 1 and isinstance(root, dict):
        for name in _DEFINITIONS:
            named = root.get(name)
            key = place.removeprefix(f"#/{name}/")
            if key != place and isinstance(named, dict) and isinstance(named.get(key), dict):
                return dict(named[key])
    return found


def _bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Move whole bounds past 2^53 inward, to a number that is exact as a double.

    So nothing outside can be written; of int64 not the last 1,023 at each end.
    """
    found = dict(schema)
    for name, sign in _BOUNDS.items():
        bound = schema.get(name)
        if type(bound) is not int or abs(bound) <= _EXACT:
            continue
        sound = bound if name in ("minimum", "maximum") else bound - sign
        del found[name]
        name = "maximum" if sign > 0 else "minimum"
        inner = sign * _inside(sign * sound)
        found[name] = sign * min(sign * found.get(name, inner), sign * inner)
    return found


def _inside(bound: int) -> int:
    """Return the largest double up to a number that the compiler's 64 bits hold."""
    if bound < -_LARGEST:
        raise RequestError(
            f"schema: expected bounds that leave numbers of -{_LARGEST} to {_LARGEST}, got none"
        )
    bound = min(bound, _LARGEST)
    near = int(float(bound))
    return near if near <= bound else int(math.nextafter(float(bound), -math.inf))


_RULES: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (
    _names,
    _dependent,
    _contains,
    _bounds,
)


def _parted(schema: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the definitions of a schema, which references look for at its top, and the rest."""
    outer = {name: value for name, value in schema.items() if name in _DEFINITIONS}
    return outer, _without(schema, *outer)


def _without(schema: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in names}


def _size(schema: Mapping[str, Any], name: str, default: int) -> int:
    value = schema.get(name)
    return value if type(value) is int and value >= 0 else default
