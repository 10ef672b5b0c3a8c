"""What a request wants its answer to look like, read from the many fields that say it.

OpenAI's ``response_format``, vLLM's ``structured_outputs`` and its older ``guided_*`` fields say
the same things, and so do the plain fields of llama.cpp and SGLang. Sizes are checked here, before
a compiler sees anything.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from monolane.errors import RequestError
from monolane.serve._grammar.regex_expansion import written_out

MAX_SOURCE = 1 << 17  # characters of one schema, regex or grammar
MAX_DEPTH = 64  # of nested objects and lists in a schema
MAX_PROPERTIES = 1000  # of one object: the compiler's time grows with their square
MAX_CHOICES = 1000
MAX_REPEATED = 200_000  # characters of all regexes, counted repeats written out: 0.4 s

Kind = Literal["json", "regex", "grammar", "choice"]
_KINDS: tuple[Kind, ...] = ("json", "regex", "grammar", "choice")
# Fields of structured_outputs that do not ask for anything by themselves, if they are off.
_ASIDE = ("disable_fallback", "disable_any_whitespace")
_OFF = ("disable_additional_properties", "structural_tag")
# Fields of a request itself, as llama.cpp and SGLang spell them; an empty text asks for nothing.
FIELDS: Mapping[str, Kind] = {
    "grammar": "grammar",
    "ebnf": "grammar",
    "json_schema": "json",
    "regex": "regex",
}
# All that is read of a request beside its own two fields.
EXTRA_FIELDS = (*FIELDS, *(f"guided_{name}" for name in (*_KINDS, "whitespace_pattern")))


@dataclass(frozen=True, slots=True)
class Structured:
    """What an answer must be: a checked JSON schema, a regex, a grammar, or a list of choices."""

    kind: Kind
    source: Any
    where: str  # the field, for messages
    whitespace: str | None = None  # regex of the white space in JSON; None: as json.dumps writes


def read_structured(
    response_format: Mapping[str, Any] | None,
    structured_outputs: Mapping[str, Any] | None,
    extra: Mapping[str, Any],
    where: str = "response_format",
) -> Structured | None:
    """Return what three places of a request want, None where any text will do.

    ``extra`` may hold ``guided_*`` and ``FIELDS``; ``where`` is what the first is called.
    RequestError for a value out of bounds.
    """
    guided = _kinds(extra, "guided_", "guided_", extra.get("guided_whitespace_pattern"))
    plain = (
        Structured(kind, value, name)
        for name, kind in FIELDS.items()
        if (value := extra.get(name)) is not None and value != ""
    )
    found = [
        *_response_format(response_format, where),
        *_structured(structured_outputs),
        *guided,
        *plain,
    ]
    if len(found) > 1:
        names = ", ".join(wanted.where for wanted in found)
        raise RequestError(f"{names}: expected one of them, got {len(found)}")
    return _checked(found[0]) if found else None


def check_schema(schema: Any, where: str) -> None:
    """Raise RequestError for a JSON schema that is none, or that is too large."""
    if not isinstance(schema, dict | bool):
        raise RequestError(f"{where}: expected a JSON schema, got {type(schema).__name__}")
    level, repeated = [schema] if isinstance(schema, dict) else [], 0
    for _ in range(MAX_DEPTH):
        repeated += sum(written_out(regex) for value in level for regex in _patterns(value))
        check_repeated(repeated, where)
        level = [child for value in level for child in _children(value, where)]
        if not level:
            break
    else:
        raise RequestError(f"{where}: expected at most {MAX_DEPTH} levels, got more")
    size = len(json.dumps(schema))
    if size > MAX_SOURCE:
        raise RequestError(f"{where}: expected at most {MAX_SOURCE} characters, got {size}")


def check_repeated(size: int, where: str) -> None:
    """Raise RequestError for regexes of that many characters, counted repeats written out."""
    if size > MAX_REPEATED:
        raise RequestError(
            f"{where}: expected regexes of at most {MAX_REPEATED} characters with what they "
            "repeat, like (a{100}){100}, written out, got more; repeat less"
        )


def _patterns(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        named = value.get("patternProperties")
        yield from named if isinstance(named, dict) else ()


def _children(value: Any, where: str) -> list[Any]:
    if isinstance(value, dict):
        if len(value) > MAX_PROPERTIES:
            raise RequestError(
                f"{where}: expected at most {MAX_PROPERTIES} properties in an object, "
                f"got {len(value)}"
            )
        value = list(value.values())
    return [child for child in value if isinstance(child, dict | list)]


def _response_format(value: Mapping[str, Any] | None, where: str) -> Iterator[Structured]:
    given = value or {"type": "text"}
    kind = given.get("type")
    if kind == "json_object":
        schema = given.get("schema")  # llama.cpp's, which others have taken over
        if schema is None:
            yield Structured("json", {"type": "object"}, where)
        else:
            yield Structured("json", schema, f"{where}.schema")
    elif kind == "json_schema":
        named = given.get("json_schema")
        if named is None and given.get("schema") is not None:  # llama.cpp's
            yield Structured("json", given["schema"], f"{where}.schema")
            return
        if not isinstance(named, dict) or "schema" not in named:
            raise RequestError(f"{where}.json_schema: expected an object with name and schema")
        yield Structured("json", named["schema"], f"{where}.json_schema.schema")
    elif kind != "text":
        raise RequestError(
            f"{where}.type: expected text, json_object or json_schema, got {kind!r:.80}"
        )


def _structured(value: Mapping[str, Any] | None) -> Iterator[Structured]:
    where = "structured_outputs"
    given = {key: item for key, item in (value or {}).items() if item is not None}
    whitespace = given.pop("whitespace_pattern", None)
    if given.pop("json_object", False):
        yield Structured("json", {"type": "object"}, f"{where}.json_object", whitespace)
    yield from _kinds(given, "", f"{where}.", whitespace)
    given = {key: item for key, item in given.items() if key not in _OFF or item is not False}
    unknown = sorted(set(given).difference(_KINDS, _ASIDE))
    if unknown:
        raise RequestError(f"{where}: expected {', '.join(_KINDS)}, got {unknown[0]!r:.80}")


def _kinds(
    given: Mapping[str, Any], prefix: str, where: str, whitespace: Any
) -> Iterator[Structured]:
    for kind in _KINDS:
        if (value := given.get(f"{prefix}{kind}")) is not None:
            yield Structured(kind, value, f"{where}{kind}", whitespace)


def _checked(wanted: Structured) -> Structured:
    """Return it if it is within the limits; a schema that came as text is parsed."""
    source, where = wanted.source, wanted.where
    if wanted.whitespace is not None and not isinstance(wanted.whitespace, str):
        raise RequestError(f"{where}: expected whitespace_pattern to be a regex")
    check_repeated(written_out(wanted.whitespace or ""), where)
    if wanted.kind == "choice":
        if not isinstance(source, list) or not 1 <= len(source) <= MAX_CHOICES:
            raise RequestError(f"{where}: expected a list of 1 to {MAX_CHOICES} texts")
        if not all(isinstance(text, str) and text for text in source):
            raise RequestError(f"{where}: expected texts, none of them empty")
        if sum(map(len, source)) > MAX_SOURCE:
            raise RequestError(f"{where}: expected at most {MAX_SOURCE} characters in all")
        return wanted
    if wanted.kind != "json" or isinstance(source, str):
        if not isinstance(source, str) or not source:
            got = type(source).__name__ if source != "" else "an empty one"
            raise RequestError(f"{where}: expected text, got {got}")
        if len(source) > MAX_SOURCE:
            raise RequestError(
                f"{where}: expected at most {MAX_SOURCE} characters, got {len(source)}"
            )
    if wanted.kind == "regex":
        check_repeated(written_out(source), where)
    if wanted.kind != "json":
        return wanted
    if isinstance(source, str):
        try:
            source = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where}: expected a JSON schema: {error!s:.200}") from None
    check_schema(source, where)
    return Structured(wanted.kind, source, where, wanted.whitespace)
