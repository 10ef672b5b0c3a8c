"""The JSON types that a schema allows a value, for a spelling that does not tell them apart.

In XML ``123`` may be a number or a text. What the schema says of it may stand in a list of types,
in branches, or behind a reference: ``Optional[str]`` is ``anyOf`` of a string and null.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Types = frozenset[str]

ANY: Types = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_KINDS = (
    *((bool, "boolean"), (int, "integer"), (str, "string")),  # in Python, true is an int, too
    *((list, "array"), (Mapping, "object")),
)


def type_of(value: Any) -> str:
    """Return the type of a parsed value; a number without a fraction is an integer."""
    if value is None:
        return "null"
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return "integer" if value.is_integer() else "number"


def allowed_types(schema: Any, root: Any) -> Types:
    """Return the types that a schema allows; ``root``: the schema that its references point into.

    What cannot be read allows any; so do hundreds of references, each of them to the next.
    """
    try:
        return _allowed(schema, root, {})
    except RecursionError:
        return ANY


def _allowed(schema: Any, root: Any, known: dict[str, Types]) -> Types:
    """``known``: of the references followed so far, so that each is followed once."""
    if not isinstance(schema, Mapping):
        return ANY
    found = _listed(schema.get("type"))
    if isinstance(values := schema.get("enum"), list):
        found &= _union({type_of(value)} for value in values)
    if "const" in schema:
        found &= {type_of(schema["const"])}
    for name in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(name), list):
            found &= _union(_allowed(branch, root, known) for branch in branches)
    if isinstance(parts := schema.get("allOf"), list):
        for part in parts:
            found &= _allowed(part, root, known)
    if isinstance(place := schema.get("$ref"), str):
        if place not in known:
            known[place] = frozenset()  # within itself it adds nothing
            known[place] = _allowed(_referred(place, root), root, known)
        found &= known[place]
    return found


def _listed(kind: Any) -> Types:
    names = [kind] if isinstance(kind, str) else kind
    if not isinstance(names, list):
        return ANY
    found = ANY.intersection(name for name in names if isinstance(name, str))
    return found | {"integer"} if "number" in found else found


def _union(sets: Iterable[Iterable[str]]) -> Types:
    return frozenset[str]().union(*sets)


def _referred(place: str, root: Any) -> Any:
    """Return the schema at a pointer such as ``#/$defs/City``; None where there is none."""
    if place != "#" and not place.startswith("#/"):
        return None
    found = root
    for part in place.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
