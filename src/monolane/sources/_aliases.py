"""Names that this user gives to models: a JSON object of name to model, in one file."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from monolane import _env
from monolane.errors import ConfigError
from monolane.sources._packaged import DEMO, PACKAGED

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}(:[\w.-]{1,63})?")
_FILE = "aliases.json"


def read_aliases() -> Mapping[str, str]:
    """Return the user's names, and what each stands for; ConfigError if the file is damaged."""
    path = _env.config_folder() / _FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: expected a JSON object of name to model, got {error!s:.80}; mend or remove it"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(x, str) for x in found.values()):
        raise ConfigError(
            f"{path}: expected a JSON object of name to model, got another; mend or remove it"
        )
    return found


def set_alias(name: str, model: str | None) -> None:
    """Have a name stand for a model, or no longer (None); ConfigError."""
    known = dict(read_aliases())
    if model is None:
        if known.pop(name, None) is None:
            raise ConfigError(
                f"alias: expected one of {', '.join(known) or 'none, for there is none'}, got "
                f"{name!r:.80}"
            )
    elif not _NAME.fullmatch(name):
        raise ConfigError(
            "alias: expected a name of letters, digits, dots, - and _, maybe with :TAG behind it, "
            f"got {name!r:.80}"
        )
    elif name in (DEMO, *PACKAGED) or Path(name).exists():
        raise ConfigError(
            f"alias: expected a name that nothing else has, got {name!r:.80}; choose another"
        )
    else:
        known[name] = model
    path = _env.config_folder() / _FILE
    import tempfile  # only here: a command that starts does without

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(known, file, indent=2)
        Path(file.name).replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; let {_env.CONFIG.name} name another "
            "folder"
        ) from None


def alias_of(name: str | Path) -> str | None:
    """Return what a name stands for; None if it is no alias."""
    return read_aliases().get(name) if isinstance(name, str) and _NAME.fullmatch(name) else None
