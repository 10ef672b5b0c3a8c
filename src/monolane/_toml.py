"""TOML into frozen dataclasses, with errors that name the file, the key and what was expected.

One reader for the configs of training and the recipes of post-training. Not pydantic: the types in
use are eight, and its messages name neither the table nor what to do.
"""

import dataclasses
import difflib
import tomllib
import types
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from monolane.errors import ConfigError

T = TypeVar("T")

_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def shipped_tables(package: str) -> tuple[str, ...]:
    """Return the names of the TOML files in a package's folder ``configs``."""
    names = (path.name for path in resources.files(package).joinpath("configs").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load_table(name: str | Path, package: str) -> tuple[dict[str, Any], str]:
    """Return a table and what messages call it: of a TOML file, or of a shipped one's name."""
    text, origin = _find(name, package)
    try:
        return tomllib.loads(text), origin
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: expected TOML, got: {error}; mend that line") from None


def read_table(kind: type[T], table: Mapping[str, Any], origin: str, path: str = "") -> T:
    """Build the dataclass ``kind`` from a table; ``path`` is the table's own name in messages.

    ConfigError: a key that is unknown or missing, a wrong type, or what ``kind`` itself refuses.
    """
    hints = get_type_hints(kind)
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in table:
        if name not in known:
            raise _unknown(origin, path, name, known)
    missing = [
        name
        for name, field in known.items()
        if name not in table
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        where = f"[{path}]" if path else "the config"
        raise ConfigError(f"{origin}: {where}: expected {', '.join(missing)}, found none; add it")
    values = {
        name: _value(hints[name], value, origin, f"{path}.{name}" if path else name)
        for name, value in table.items()
    }
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None


def _find(name: str | Path, package: str) -> tuple[str, str]:
    path, shipped = Path(name), shipped_tables(package)
    if path.is_file():
        return path.read_text(encoding="utf-8"), str(path)
    if isinstance(name, str) and name in shipped:
        file = resources.files(package).joinpath("configs", f"{name}.toml")
        return file.read_text(encoding="utf-8"), f"{name}.toml"
    raise ConfigError(
        f"{name}: expected a TOML file or one of {', '.join(shipped)}, found neither; "
        "give the path of a file, or one of these names"
    )


def _value(hint: Any, value: Any, origin: str, name: str) -> Any:
    """Check one value against its annotation, and convert tables and lists."""
    base, arguments = get_origin(hint), get_args(hint)
    if base is types.UnionType:
        inner, none = arguments
        assert none is types.NoneType, f"{name}: of unions only X | None"
        return None if value is None else _value(inner, value, origin, name)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise _wrong(origin, name, "a table", value)
        return read_table(hint, value, origin, name)  # type: ignore[arg-type]
    if base is Literal:
        if value not in arguments:
            raise _wrong(origin, name, f"one of {', '.join(map(repr, arguments))}", value)
        return value
    if base is dict:
        if not isinstance(value, dict):
            raise _wrong(origin, name, "a table", value)
        return {
            key: _value(arguments[1], one, origin, f"{name}.{key}") for key, one in value.items()
        }
    if base is tuple:
        if not isinstance(value, list | tuple):
            raise _wrong(origin, name, "a list", value)
        return tuple(
            _value(arguments[0], one, origin, f"{name}[{at}]") for at, one in enumerate(value)
        )
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise _wrong(origin, name, _NAMES[hint], value)
    return value


def _unknown(origin: str, path: str, name: str, known: Iterable[str]) -> ConfigError:
    close = difflib.get_close_matches(name, list(known), 1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
    where = f"[{path}]" if path else "the config"
    return ConfigError(f"{origin}: {where} has no field {name!r}; {hint}")


def _wrong(origin: str, name: str, expected: str, value: Any) -> ConfigError:
    return ConfigError(f"{origin}: {name}: expected {expected}, got {value!r:.80}; mend it")
