"""The environment variables that monolane reads, in one table; an unknown value raises.

``monolane doctor`` prints this table with the values in force.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that is never shown: not by ``monolane doctor``, not in a traceback."""

    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return "hidden" if self.text else "none"


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
API_KEY = Variable(
    "MONOLANE_API_KEY", "key that requests to 'monolane serve' need", Secret(), Secret
)

VARIABLES: tuple[Variable[str] | Variable[Path] | Variable[Secret], ...] = (
    BACKEND,
    CACHE,
    API_KEY,
)
