"""A run config's file: found by path or name, overridden by ``--set``, written, and compared.

Reading and its errors are :mod:`monolane._toml`'s.
"""

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from monolane._toml import load_table, read_table, shipped_files
from monolane.errors import ConfigError
from monolane.train._config import RunConfig

_PACKAGE = "monolane.train"


def shipped_configs() -> tuple[str, ...]:
    """Names of the configs that come with the package."""
    return shipped_files(_PACKAGE)


def load_config(name: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a run config: a TOML file, or the name of a shipped one.

    ``overrides`` are texts such as ``"optimizer.peak_lr=1e-4"``, whose value is TOML; a bare word
    is a string. ConfigError says which key, what was expected and what was found.
    """
    table, origin = load_table(name, _PACKAGE)
    for override in overrides:
        _override(table, override)
    return read_table(RunConfig, table, origin)


def write_config(config: RunConfig) -> str:
    """Return the config as TOML, every field spelled out; :func:`load_config` reads it back."""
    return tomli_w.dumps(dataclasses.asdict(config))


def differences(one: RunConfig, other: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two configs differ, by dotted name."""
    left, right = _flat(dataclasses.asdict(one)), _flat(dataclasses.asdict(other))
    return {
        name: (left.get(name), right.get(name))
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    }


def _override(table: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or not all((*sections, key)):
        raise ConfigError(f"--set: expected section.key=value, got {override!r}; mend it")
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override}: expected a table at {section!r}, got {inner!r}")
        table = inner
    try:
        table[key] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[key] = text.strip()  # a bare word


def _flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{path}.{name}" if path else name
        flat |= _flat(value, key) if isinstance(value, dict) and value else {key: value}
    return flat
