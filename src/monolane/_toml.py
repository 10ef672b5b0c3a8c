"""TOML into frozen configs: pydantic checks types and ranges, and this says what it found.

A config class carries :func:`config`. However it is made, what does not fit is a ConfigError that
names the file, the key, what was expected and what was found.
"""

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Mapping
from functools import wraps
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from monolane.errors import ConfigError

T = TypeVar("T")
Share = Annotated[float, Field(ge=0, lt=1)]

# What pydantic's kinds of errors say was expected; in braces, the limit that it names.
_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "tuple_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "one of {expected}",
    "too_short": "at least {min_length}",
}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def config(kind: type[T]) -> type[T]:
    """Make a frozen dataclass whose fields are checked; a wrong one is a ConfigError."""
    made: Any = dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))(kind)
    check = made.__init__

    @wraps(check)
    def init(self: Any, *values: Any, **named: Any) -> None:
        try:
            check(self, *values, **named)
        except ValidationError as error:
            raise _told(error, made, kind.__name__) from None

    made.__init__ = init
    checked: type[T] = made
    return checked


def shipped_files(package: str, folder: str = "configs", suffix: str = ".toml") -> tuple[str, ...]:
    """Return the names, without suffix, of the files that a package ships in a folder."""
    names = (path.name for path in resources.files(package).joinpath(folder).iterdir())
    return tuple(sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix)))


def read_file(
    name: str | Path, package: str = "", folder: str = "configs", suffix: str = ".toml"
) -> tuple[str, str]:
    """Return the text of a file, or of one that a package ships, and its name in messages."""
    shipped = shipped_files(package, folder, suffix) if package else ()
    path, kind = Path(name), suffix.removeprefix(".").upper()
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8"), str(path)
        if str(name) in shipped:
            file = resources.files(package).joinpath(folder, f"{name}{suffix}")
            return file.read_text(encoding="utf-8"), f"{name}{suffix}"
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: expected {kind}, got: {error}; save it as UTF-8") from None
    known = f" or one of {', '.join(shipped)}, found neither" if shipped else ", found none"
    raise ConfigError(f"{name}: expected a {kind} file{known}; give the path of a file")


def load_table(name: str | Path, package: str = "") -> tuple[dict[str, Any], str]:
    """Return the table of a TOML file, or of a package's shipped one, and its name in messages."""
    text, origin = read_file(name, package)
    try:
        return tomllib.loads(text), origin
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: expected TOML, got: {error}; mend that line") from None


def read_table(kind: type[T], table: Mapping[str, Any], origin: str) -> T:
    """Build the config ``kind`` from a table, which messages call ``origin``."""
    try:
        # As JSON, whose lists and tables are taken for tuples and dataclasses by strict rules too.
        return TypeAdapter(kind).validate_json(json.dumps(table, default=str))
    except ValidationError as error:
        raise _told(error, kind, origin) from None


def _told(error: ValidationError, kind: type, origin: str) -> ConfigError:
    """Say what is wrong in our words: first of an unknown key, then of keys that are missing."""
    found = error.errors(include_url=False)
    unknown = [one for one in found if one["type"] == "unexpected_keyword_argument"]
    missing = sorted(
        (one for one in found if one["type"] == "missing"), key=lambda one: len(one["loc"])
    )
    first = (unknown or missing or found)[0]
    *parents, name = first["loc"] or ("",)
    where = f"[{_path(parents)}]" if parents else "the config"
    if unknown:
        known = _fields(kind, parents)
        close = difflib.get_close_matches(str(name), known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        return ConfigError(f"{origin}: expected a field of {where}, got {name!r}; {hint}")
    if first["type"] == "missing":
        names = [str(one["loc"][-1]) for one in missing if [*one["loc"][:-1]] == parents]
        return ConfigError(f"{origin}: {where}: expected {', '.join(names)}, found none; add it")
    if first["type"] == "value_error":  # a config's own check, which names its fields
        return ConfigError(f"{origin}: {first['ctx']['error']}")
    limits = first.get("ctx", {})
    limits["expected"] = str(limits.get("expected", "")).replace(" or ", ", ")
    expected = _EXPECTED.get(first["type"], first["msg"]).format(**limits)
    origin += f": {path}" if (path := _path([*parents, name])) else ""
    return ConfigError(f"{origin}: expected {expected}, got {first['input']!r:.80}; mend it")


def _path(parts: list[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def _fields(kind: Any, path: list[int | str]) -> list[str]:
    """Return the names of the fields of the config that lies at ``path`` inside ``kind``."""

    def inner(hint: Any) -> Any:
        if dataclasses.is_dataclass(hint):
            return hint
        return next(filter(None, map(inner, get_args(hint))), None)

    for part in path:
        if isinstance(part, str):
            kind = inner(get_type_hints(kind)[part])
    return [field.name for field in dataclasses.fields(kind)]
