"""What a request wants its answer to look like: the many spellings of it, read into one.

OpenAI's ``response_format``, vLLM's ``structured_outputs`` and its older ``guided_*`` fields say
the same things. Budgets are checked here, before a compiler sees anything.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from monolane.errors import RequestError
from monolane.serve._requests import AnswerRequest

MAX_SOURCE = 1 << 17  # characters of one schema, regex or grammar
MAX_DEPTH = 64  # of nested objects and lists in a schema
MAX_PROPERTIES = 1000  # of one object: the compiler's time grows with their square
MAX_CHOICES = 1000

Kind = Literal["json", "regex", "grammar", "choice"]
_KINDS: tuple[Kind, ...] = ("json", "regex", "grammar", "choice")
# Fields of structured_outputs that do not ask for anything by themselves.
_ASIDE = ("disable_fallback", "disable_any_whitespace", "disable_additional_properties")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One wish: a JSON schema (parsed), or the text of a regex or grammar, or the choices."""

    kind: Kind
    source: Any
    where: str  # the field, for messages
    whitespace: str | None = None  # regex of the white space in JSON; None: as json.dumps writes


def wanted(request: AnswerRequest) -> Wanted | None:
    """Return what the request wants, None where anything will do; RequestError for no sense."""
    found = [*_response_format(request.response_format), *_structured(request.structured_outputs)]
    found += _guided(request.model_extra or {})
    if len(found) > 1:
        names = ", ".join(one.where for one in found)
        raise RequestError(f"{names}: expected one of them, got {len(found)}")
    for one in found:
        _check(one)
        return one
    return None


def check_schema(schema: Any, where: str) -> None:
    """Raise RequestError for a JSON schema that is none, or beyond the budgets."""
    if not isinstance(schema, dict | bool):
        raise RequestError(f"{where}: expected a JSON schema, got {type(schema).__name__}")
    level = [schema] if isinstance(schema, dict) else []
    for _ in range(MAX_DEPTH):
        level = [child for value in level for child in _children(value, where)]
        if not level:
            break
    else:
        raise RequestError(f"{where}: expected at most {MAX_DEPTH} levels, got more")
    size = len(json.dumps(schema))
    if size > MAX_SOURCE:
        raise RequestError(f"{where}: expected at most {MAX_SOURCE} characters, got {size}")


def _children(value: Any, where: str) -> list[Any]:
    if isinstance(value, dict):
        if len(value) > MAX_PROPERTIES:
            raise RequestError(
                f"{where}: expected at most {MAX_PROPERTIES} properties in an object, "
                f"got {len(value)}"
            )
        value = list(value.values())
    return [one for one in value if isinstance(one, dict | list)]


def _response_format(value: dict[str, Any] | None) -> Iterator[Wanted]:
    where = "response_format"
    kind = (value or {"type": "text"}).get("type")
    if kind == "json_object":
        yield Wanted("json", {"type": "object"}, where)
    elif kind == "json_schema":
        named = (value or {}).get("json_schema")
        if not isinstance(named, dict) or "schema" not in named:
            raise RequestError(f"{where}.json_schema: expected an object with name and schema")
        yield Wanted("json", named["schema"], f"{where}.json_schema.schema")
    elif kind != "text":
        raise RequestError(
            f"{where}.type: expected text, json_object or json_schema, got {kind!r:.80}"
        )


def _structured(value: dict[str, Any] | None) -> Iterator[Wanted]:
    where = "structured_outputs"
    given = {key: item for key, item in (value or {}).items() if item is not None}
    whitespace = given.pop("whitespace_pattern", None)
    if given.pop("json_object", False):
        yield Wanted("json", {"type": "object"}, f"{where}.json_object", whitespace)
    for kind in _KINDS:
        if kind in given:
            yield Wanted(kind, given.pop(kind), f"{where}.{kind}", whitespace)
    unknown = sorted(set(given).difference(_ASIDE))
    if unknown:
        raise RequestError(f"{where}: expected {', '.join(_KINDS)}, got {unknown[0]!r:.80}")


def _guided(extra: dict[str, Any]) -> Iterator[Wanted]:
    whitespace = extra.get("guided_whitespace_pattern")
    for kind in _KINDS:
        if (value := extra.get(f"guided_{kind}")) is not None:
            yield Wanted(kind, value, f"guided_{kind}", whitespace)


def _check(one: Wanted) -> None:
    if one.whitespace is not None and not isinstance(one.whitespace, str):
        raise RequestError(f"{one.where}: expected whitespace_pattern to be a regex")
    if one.kind == "json":
        if isinstance(one.source, str):
            _check_text(one)
            return  # checked once it is parsed
        check_schema(one.source, one.where)
    elif one.kind == "choice":
        texts = one.source
        if not isinstance(texts, list) or not 1 <= len(texts) <= MAX_CHOICES:
            raise RequestError(f"{one.where}: expected a list of 1 to {MAX_CHOICES} texts")
        if not all(isinstance(text, str) and text for text in texts):
            raise RequestError(f"{one.where}: expected texts, none of them empty")
        if sum(map(len, texts)) > MAX_SOURCE:
            raise RequestError(f"{one.where}: expected at most {MAX_SOURCE} characters in all")
    else:
        _check_text(one)


def _check_text(one: Wanted) -> None:
    if not isinstance(one.source, str) or not one.source:
        raise RequestError(f"{one.where}: expected text, got {type(one.source).__name__}")
    if len(one.source) > MAX_SOURCE:
        raise RequestError(
            f"{one.where}: expected at most {MAX_SOURCE} characters, got {len(one.source)}"
        )
