"""Files that a command writes beside its answer: refused before the work, not behind it."""

from pathlib import Path

from monolane.errors import ConfigError


def check_output(path: Path | None) -> None:
    """ConfigError if a file cannot be written there, as far as one can see; its folder is made."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(path, error) from None
    if path.is_dir():
        raise ConfigError(f"{path}: expected a file to write, got a folder; name a file in it")


def write_output(path: Path, text: str) -> None:
    """Write a file; ConfigError if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be written: {error.strerror}; choose another place")
