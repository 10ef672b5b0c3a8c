"""A run config's file: found by path or name, overridden by ``--set``, written, and compared.

Reading and its errors are :mod:`monolane._toml`'s.
"""

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from monolane._toml import load_table, read_table, shipped_tables
from monolane.errors import ConfigError
from monolane.train._config import RunConfig

_PACKAGE = "monolane.train"


def shipped_configs() -> tuple[str, ...]:
    """Names of the configs that come with the package."""
    return shipped_tables(_PACKAGE)


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
    lines: list[str] = []
    _write(dataclasses.asdict(config), "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


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


def _write(table: Mapping[str, Any], path: str, lines: list[str]) -> None:
    """Append a table: plain fields first, as TOML wants them, then the tables inside."""
    plain = {name: value for name, value in table.items() if not isinstance(value, dict)}
    if path and (plain or not table):
        lines.append(f"\n[{path}]")
    lines.extend(f"{name} = {_literal(value)}" for name, value in plain.items())
    for name, value in table.items():
        if isinstance(value, dict):
            key = name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)
            _write(value, f"{path}.{key}" if path else key, lines)


def _literal(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_literal, value))}]"
    # JSON's numbers, booleans and strings (without lone surrogates) are TOML's.
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{path}.{name}" if path else name
        flat |= _flat(value, key) if isinstance(value, dict) and value else {key: value}
    return flat
