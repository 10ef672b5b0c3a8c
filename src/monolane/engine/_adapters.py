"""The adapters of an engine: by names, for requests, and by numbers, for executors.

One without a name is of all requests that name none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolane._printable import printable
from monolane.engine._files import ModelFiles
from monolane.errors import RequestError
from monolane.model import Adapter, is_gguf
from monolane.sources import expand_path

_MOST_NAME = 512  # characters, as of any model that a request names


@dataclass(frozen=True, slots=True, eq=False)
class Adapters:
    """Adapters in an order; executors count them from 1 on."""

    names: tuple[str, ...] = ()
    loaded: tuple[Adapter, ...] = ()
    digests: tuple[str, ...] = ()  # of their numbers

    @staticmethod
    def open(given: Any, files: ModelFiles) -> "Adapters":
        """Read adapters of a model: RequestError, ConfigError or CheckpointError.

        given   what ``adapter_folders`` reads, or what this returned
        """
        if isinstance(given, Adapters):
            return given
        folders = adapter_folders(given)
        gguf = is_gguf(files.path)
        loaded = [Adapter.open(x, files.config, from_gguf=gguf) for x in folders.values()]
        return Adapters(tuple(folders), tuple(loaded), tuple(x.digest() for x in loaded))

    def number(self, name: str) -> int:
        """Return the number of a request's adapter, 0: it has none; RequestError."""
        if name in self.names:
            return self.names.index(name) + 1
        if name:
            known = ", ".join(repr(x) for x in self.names if x) or "none"
            raise RequestError(
                f"lora: expected the name of an adapter that this engine was loaded with, of which "
                f"there are {known}, got {name!r:.80}; load it with lora={{name: folder}}"
            )
        return 0

    def named(self, model: str | None) -> str:
        """Return the adapter that a request names by ``model``; "": none by that name."""
        return model if model is not None and model in self.names else ""

    def kept_under(self, namespace: str, number: int) -> str:
        """Return under which name prefixes are kept: what is in them depends on the adapter."""
        return f"{namespace}\0{self.digests[number - 1]}" if number else namespace


def adapter_folders(given: Any) -> dict[str, Path]:
    """Return folders by name, of what ``lora`` may be; RequestError.

    given   None, a folder (whose name is ""), folders by name, or texts NAME=FOLDER
    """
    if given is None:
        return {}
    if isinstance(given, str | Path):
        return {"": expand_path(given)}
    pairs: list[tuple[Any, Any]]
    if isinstance(given, Mapping):
        pairs = [*given.items()]
    elif isinstance(given, Sequence):
        pairs = [_pair(x) for x in given]
    else:
        raise RequestError(
            f"lora: expected a folder, or folders by name, got {type(given).__name__}"
        )
    found: dict[str, Path] = {}
    for name, folder in pairs:
        if not isinstance(name, str) or len(name) > _MOST_NAME or name != printable(name):
            raise RequestError(
                f"lora: expected names of at most {_MOST_NAME} printable characters, got "
                f"{name!r:.80}"
            )
        if name in found:
            raise RequestError(f"lora: expected each name once, got {name!r} twice")
        if not isinstance(folder, str | Path):
            raise RequestError(f"lora: expected a folder of {name!r}, got {folder!r:.80}")
        found[name] = expand_path(folder)
    return found


def _pair(text: Any) -> tuple[str, str]:
    name, equals, folder = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not (name and equals and folder):
        raise RequestError(
            f"lora: expected NAME=FOLDER, such as sql=./sql-adapter, got {text!r:.80}"
        )
    return name, folder
