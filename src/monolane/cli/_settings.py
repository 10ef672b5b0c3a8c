"""What an option is where the command line does not say: a variable, then a file, a default.

``--port`` of ``serve`` is MONOLANE_SERVE_PORT, and ``port`` below ``[serve]`` in config.toml.
Options of loading and of drawing (``SHARED``) mean the same wherever they are, so they also go
without the command: MONOLANE_THREADS, and ``threads`` above all sections.
"""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolane import _env
from monolane._draw import Draw
from monolane._loading import OPTIONS
from monolane._options import options_of
from monolane.cli._options import DRAWING, LOADING
from monolane.errors import ConfigError

# Keys that need no section. "key_file" goes with "ranks".
SHARED = {"model", "key_file"} | {
    (said.spelled or name).replace("-", "_")
    for name, said in (OPTIONS | options_of(Draw)).items()
    if said.help
}


def key_of(parameter: Any) -> str:
    """Return what an option is called in a file."""
    spelled: str = max(parameter.opts, key=len)
    return spelled.lstrip("-").replace("-", "_")


def is_set_elsewhere(parameter: Any) -> bool:
    """Whether a parameter is an option that variables and files can set."""
    hidden = getattr(parameter, "hidden", False)
    return parameter.param_type_name == "option" and parameter.expose_value and not hidden


def is_shared(parameter: Any) -> bool:
    """Whether an option goes without its command, too."""
    panel = getattr(parameter, "rich_help_panel", None)
    return panel in (LOADING, DRAWING) and key_of(parameter) in SHARED


def variables_of(path: Sequence[str], parameter: Any) -> list[str]:
    """Return the variables of an option of the command ``path``, the one that counts first."""
    key = key_of(parameter)
    own = "_".join((_env.PREFIX, *path, key)).upper().replace("-", "_")
    return [own, f"{_env.PREFIX}_{key.upper()}"] if is_shared(parameter) else [own]


@dataclass(frozen=True, slots=True)
class Settings:
    """A config file: ``table`` as TOML has it, and where it is."""

    path: Path
    table: Mapping[str, Any]

    @staticmethod
    def read(named: Path | None) -> "Settings":
        """Return the file that is named, or that of this user; no file is an empty one.

        ConfigError for a named one that is not there, and for one that cannot be read.
        """
        path = named or _env.config_file()
        if named is None and not path.is_file():
            if path.exists():
                raise ConfigError(f"{path}: expected a file, got a folder; remove or rename it")
            return Settings(path, {})
        import tomllib  # only here: most have no file

        try:
            return Settings(path, tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(
                f"{path}: expected a config file, got: {error.strerror}; name another with --config"
            ) from None
        except ValueError as error:  # no TOML, or no UTF-8
            raise ConfigError(f"{path}: expected TOML, got: {error}; mend that line") from None

    def check_sections(self, commands: Iterable[str]) -> None:
        """ConfigError for a section or a key above all sections that there is not."""
        for key, value in self.table.items():
            if isinstance(value, Mapping):
                self._check(key, commands, "section", f"[{key}]")
            else:
                self._check(key, SHARED, "key", f"{key} above all sections")

    def values(
        self, path: Sequence[str], parameters: Sequence[Any], inner: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Return what the file says of a command's parameters, by name; ConfigError.

        ``inner``: commands whose sections are inside this one's, as [bench.serve] is in [bench].
        """
        named = ".".join(path)
        section: Any = self.table
        for word in path:
            section = section.get(word, {}) if isinstance(section, Mapping) else {}
        options = {key_of(x): x for x in parameters}
        found = {
            key: value
            for key, value in self.table.items()
            if key in options and is_shared(options[key]) and not isinstance(value, Mapping)
        }
        for key, value in section.items():
            if not (isinstance(value, Mapping) and key in inner):
                self._check(key, options, "key", f"{key} in [{named}]")
                found[key] = value
        return {
            str(options[key].name): self._value(f"[{named}] {key}", options[key], value)
            for key, value in found.items()
        }

    def _check(self, key: str, known: Iterable[str], kind: str, shown: str) -> None:
        if key not in known:
            raise ConfigError(
                f"{self.path}: expected a {kind} that there is, got {shown}; "
                f"{meant(key, known) or 'take it out'}"
            )

    def _value(self, shown: str, parameter: Any, value: Any) -> Any:
        """Return a value as the command line would have it, which checks it further."""
        if isinstance(value, bool) or parameter.is_flag:
            if isinstance(value, bool) and parameter.is_flag:
                return value
            expected = "true or false" if parameter.is_flag else "a number or a text"
            raise ConfigError(f"{self.path}: {shown}: expected {expected}, got {value!r}; mend it")
        several = value if isinstance(value, list) else [value]
        if any(isinstance(x, bool) or not isinstance(x, str | int | float) for x in several) or (
            isinstance(value, list) and not parameter.multiple
        ):
            expected = "a list of numbers or texts" if parameter.multiple else "a number or a text"
            raise ConfigError(f"{self.path}: {shown}: expected {expected}, got {value!r}; mend it")
        return [str(x) for x in several] if parameter.multiple else str(value)


def meant(word: str, known: Iterable[str]) -> str:
    """Return "did you mean X?" where a known word is near; else ""."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {close[0]}?" if close else ""


def unread_variables(known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each of our variables that is set and that nothing reads, and what it may mean."""
    known = {*known, *(variable.name for variable in _env.VARIABLES)}
    for name in sorted(os.environ):
        if name.startswith(f"{_env.PREFIX}_") and name not in known:
            yield name, meant(name, known)
