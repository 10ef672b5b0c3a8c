"""The environment variables that monolane reads, in one table; an unknown value raises.

``monolane doctor`` prints this table with the values in force.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from monolane.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One environment variable: its default when unset, and how its text is read."""

    name: str
    meaning: str
    default: T
    parse: Callable[[str], T]

    def get(self) -> T:
        """Return the value in force; ConfigError names the variable and what it accepts."""
        text = os.environ.get(self.name)
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise ConfigError(f"{self.name}: {error}, got {text!r}; mend or unset it") from None


def _backend(text: str) -> str:
    if text not in ("auto", "reference", "cpu", "cuda"):
        raise ValueError("expected one of auto, reference, cpu, cuda")
    return text


def _folder(text: str) -> Path:
    if not text:
        raise ValueError("expected a folder")
    return Path(text).expanduser()


BACKEND = Variable("MONOLANE_BACKEND", "backend that 'auto' stands for", "auto", _backend)
CACHE = Variable(
    "MONOLANE_CACHE",
    "folder of compiled kernels and other things that can be made again",
    Path("~/.cache/monolane").expanduser(),
    _folder,
)

VARIABLES: tuple[Variable[str] | Variable[Path], ...] = (BACKEND, CACHE)
