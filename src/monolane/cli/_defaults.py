"""How to draw where nobody says: what the model's files, or others, would have."""

import json
from pathlib import Path
from typing import Any

from monolane.engine import SamplingDefaults
from monolane.errors import ConfigError, RequestError

AUTO, NONE = "auto", "none"
# What a person at a terminal gets of a model that says nothing.
_TERMINAL = SamplingDefaults(
    temperature=0.7, top_k=0, top_p=1.0, min_p=0.05, repetition_penalty=1.0
)


def read_defaults(source: str) -> SamplingDefaults:
    """Return what a file says, or the generation_config.json of a folder; nothing for a word.

    ConfigError if there is none.
    """
    if source in (AUTO, NONE):
        return SamplingDefaults()
    try:
        path = Path(source).expanduser()
        path = path / "generation_config.json" if path.is_dir() else path
        return SamplingDefaults.of_config(_object(path.read_text(encoding="utf-8")), str(path))
    except (OSError, ValueError, RuntimeError) as error:  # the last: of a home that nobody has
        raise ConfigError(
            f"--generation-config: expected {AUTO}, {NONE}, or a JSON file or its folder, got "
            f"{source}: {error!s:.200}"
        ) from None


def server_defaults(source: str, override: str | None, seed: int | None) -> SamplingDefaults:
    """Return what goes before the model's own defaults; RequestError or ConfigError."""
    try:
        given = _object(override or "{}")
    except ValueError as error:
        raise RequestError(
            f"--override-generation-config: expected a JSON object, got {override!r:.80}: {error}"
        ) from None
    over = SamplingDefaults.of_config(given, "--override-generation-config")
    return SamplingDefaults(seed=seed).over(over).over(read_defaults(source))


def terminal_defaults(own: SamplingDefaults, source: str, **given: Any) -> dict[str, Any]:
    """Return the parameters of an answer on a terminal: what options say, then the model, then we.

    ``given``: options, None where they are left out; ``own``: what the model's files say.
    ``max_tokens`` is both the option's and at most what the model allows.
    """
    said = SamplingDefaults(**{k: v for k, v in given.items() if k != "max_tokens"})
    files = own if source == AUTO else read_defaults(source)
    found = said.over(files).over(_TERMINAL).said()
    most = found.pop("max_tokens", None)
    return {**found, "max_tokens": min(given["max_tokens"], most or given["max_tokens"])}


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value
