"""Typed reading of the fields of a JSON object that somebody else wrote.

Plain ``dict.get`` would let a string pass for a number and a typing mistake for a default; a schema
library would hide which field of which file is at fault. Every message names both.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monolane._regular_files import check_parts, read_regular
from monolane.errors import ConfigError
from monolane.ops import MAX_SIZE

# The largest published config.json has some tens of kilobytes.
MAX_JSON_BYTES = 1 << 20


def read_json_object(path: Path, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON file that must hold an object, in ``most`` bytes; ConfigError names the file."""
    try:
        text = read_regular(path, most).decode("utf-8")
        check_parts(text)
        raw = json.loads(text)
    except OSError as error:
        said = f"{path}: expected a file of JSON, in at most {most} bytes"
        raise ConfigError(f"{said}, got: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # also bad UTF-8
        raise ConfigError(f"{path}: expected JSON in UTF-8, got: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(raw).__name__}")
    return raw


class Fields:
    """The fields of one JSON object; ``source`` names it in messages.

    ``spelled`` says what fields are called where they come from, if not as they are called here.
    """

    def __init__(
        self, raw: Mapping[str, Any], source: str, spelled: Mapping[str, str] | None = None
    ) -> None:
        self.raw = raw
        self.source = source
        self.spelled = spelled or {}

    def fault(self, name: str, expected: str, advice: str = "") -> ConfigError:
        """Return the error of one field: expected, got and, where it is not plain, what to do."""
        found = f"got {_short(self.raw[name])}" if name in self.raw else "it is missing"
        called = self.spelled.get(name, name)
        return ConfigError(f"{self.source}: {called}: expected {expected}, {found}{advice}")

    def has(self, name: str) -> bool:
        """Tell whether a field is there and not null: the Hub writes null for 'not set'."""
        return self.raw.get(name) is not None

    def size(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """Read an integer in minimum .. MAX_SIZE; without a default the field is required."""
        if default is not None and not self.has(name):
            return default
        value: Any = self.raw.get(name)
        if not _is_integer(value) or not minimum <= value <= MAX_SIZE:
            raise self.fault(name, f"an integer from {minimum} to {MAX_SIZE}")
        return int(value)

    def optional_size(self, name: str, minimum: int = 1) -> int | None:
        """Read an integer, or None where the field is null or missing."""
        return self.size(name, minimum=minimum) if self.has(name) else None

    def number(self, name: str, default: float | None = None) -> float:
        """Read a finite number above zero."""
        if default is not None and not self.has(name):
            return default
        value = self.raw.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise self.fault(name, "a number above zero")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Read true or false."""
        if not self.has(name):
            return default
        value = self.raw[name]
        if not isinstance(value, bool):
            raise self.fault(name, "true or false")
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """Read one of a few words."""
        if default is not None and not self.has(name):
            return default
        value = self.raw.get(name)
        if not isinstance(value, str) or value not in choices:
            raise self.fault(name, "one of " + ", ".join(map(repr, choices)))
        return value

    def fixed(self, name: str, value: str | float | None, why: str = "") -> None:
        """Refuse every value but this one, which null or a field that is not there means too."""
        found = self.raw.get(name, value)
        if isinstance(value, str):
            self.choice(name, (value,), value)
        elif found is not None and (isinstance(found, bool), found) != (type(value) is bool, value):
            raise self.fault(name, json.dumps(value), f"; {why}" if why else "")

    def layer_ids(self, name: str, count: int) -> set[int] | None:
        """Read a list of layers, or None where the field is null or missing."""
        if not self.has(name):
            return None
        value = self.raw[name]
        if not isinstance(value, list) or not all(type(i) is int and 0 <= i < count for i in value):
            raise self.fault(name, f"a list of layer ids from 0 to {count - 1}")
        return set(value)

    def ids(self, name: str) -> tuple[int, ...]:
        """Read token ids: null, one integer, or a list of them."""
        value = self.raw.get(name)
        if value is None:
            return ()
        listed = value if isinstance(value, list) else [value]
        if not all(_is_integer(i) and 0 <= i < MAX_SIZE for i in listed):
            raise self.fault(name, "a token id, a list of token ids or null")
        return tuple(int(i) for i in listed)

    def nested(self, name: str) -> "Fields | None":
        """Read a JSON object, or None where the field is null or missing."""
        if not self.has(name):
            return None
        value = self.raw[name]
        if not isinstance(value, dict):
            raise self.fault(name, "an object or null")
        return Fields(value, f"{self.source}: {self.spelled.get(name, name)}", self.spelled)

    def first(self, *names: str) -> str:
        """Return the first name that is set, or names[0]: for fields with two spellings."""
        return next((name for name in names if self.has(name)), names[0])


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
