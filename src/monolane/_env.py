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
PREFIX = "MONOLANE"


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One environment variable: its default when unset, and how its text is read."""

    name: str
    meaning: str
    default: T | Callable[[], T]
    parse: Callable[[str], T]

    def get(self) -> T:
        """Return the value in force; ConfigError names the variable and what it accepts."""
        text = os.environ.get(self.name)
        try:
            if text is not None:
                value = self.parse(text)
            else:
                value = self.default() if callable(self.default) else self.default
        except ValueError as error:
            raise ConfigError(f"{self.name}: {error}, got {text!r}; mend or unset it") from None
        try:
            # Not before it is asked for: there may be no home, and no need of one.
            return value.expanduser() if isinstance(value, Path) else value
        except RuntimeError:
            raise ConfigError(
                f"{self.name}: expected a folder, got {str(value)!r}, and this user has no home; "
                f"set {self.name} to a folder, or HOME"
            ) from None


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


def _word(text: str) -> str:
    if not text:
        raise ValueError("expected a word")
    return text


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


def _hub_switch(text: str) -> bool:
    return text.upper() in ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads its own


def _driver_switch(text: str) -> bool:
    return text not in ("", "0")  # as the driver reads its own


def _folder(text: str) -> Path:
    if not text:
        raise ValueError("expected a folder")
    return Path(text)


def _user_folder(variable: str, other: str) -> Path:
    """Return our folder below one of the XDG base directories, which have to be absolute."""
    given = os.environ.get(variable, "")
    return Path(given if given.startswith("/") else other) / "monolane"


BACKEND = Variable("MONOLANE_BACKEND", "backend that 'auto' stands for", "auto", _backend)
CACHE = Variable(
    "MONOLANE_CACHE",
    "folder of compiled kernels, fetched models and other things that can be made again",
    Path("~/.cache/monolane"),
    _folder,
)
CONFIG = Variable(
    "MONOLANE_CONFIG",
    "folder of what this user has set: config.toml and aliases of models; or a .toml file, which "
    "is then read for config.toml, with the aliases beside it",
    lambda: _user_folder("XDG_CONFIG_HOME", "~/.config"),
    _folder,
)
API_KEY = Variable(
    "MONOLANE_API_KEY", "key that requests to 'monolane serve' need", Secret(), Secret
)
RANK_KEY = Variable("MONOLANE_RANK_KEY", "key that ranks joined by TCP share", Secret(), Secret)
ISA = Variable(
    "MONOLANE_ISA",
    "instruction set of the cpu backend, such as avx2; auto: the best that runs here",
    "auto",
    _word,
)
OFFLINE = Variable("MONOLANE_OFFLINE", "1: nothing is downloaded", False, _switch)
HUB_OFFLINE = Variable("HF_HUB_OFFLINE", "the Hub's own word for that", False, _hub_switch)
LAUNCH_BLOCKING = Variable(
    "CUDA_LAUNCH_BLOCKING",
    "the driver's own: a launch returns when its kernel has ended; one GPU only",
    False,
    _driver_switch,
)
LAUNCHER = Variable(
    "MONOLANE_LAUNCHER",
    "process id of 'monolane launch', set by it; its processes end with it",
    0,
    int,
)

VARIABLES: tuple[
    Variable[int] | Variable[str] | Variable[Path] | Variable[Secret] | Variable[bool],
    ...,
] = (
    BACKEND,
    CACHE,
    CONFIG,
    API_KEY,
    RANK_KEY,
    ISA,
    OFFLINE,
    HUB_OFFLINE,
    LAUNCH_BLOCKING,
    LAUNCHER,
)


def config_folder() -> Path:
    """Return the folder of what this user has set."""
    path = CONFIG.get()
    return path.parent if path.suffix == ".toml" else path


def config_file() -> Path:
    """Return this user's config file, which need not be there."""
    path = CONFIG.get()
    return path if path.suffix == ".toml" else path / "config.toml"


def forbids_downloads() -> str:
    """Return the name of the variable that forbids downloads; "" if none does."""
    return next((x.name for x in (OFFLINE, HUB_OFFLINE) if x.get()), "")
