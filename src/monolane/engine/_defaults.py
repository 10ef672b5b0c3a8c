"""How a model's authors would have its tokens drawn, where a request does not say.

The Python API does not use them: ``SamplingParams`` says there what it means. The server and the
command line do, as vLLM does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from monolane.engine._parameters import SamplingParams
from monolane.errors import ConfigError, RequestError

# Our field -> its name in generation_config.json, and in GGUF metadata behind "general.sampling.".
_NAMES: Mapping[str, tuple[str, str | None]] = {
    "temperature": ("temperature", "temp"),
    "top_k": ("top_k", "top_k"),
    "top_p": ("top_p", "top_p"),
    "min_p": ("min_p", "min_p"),
    "repetition_penalty": ("repetition_penalty", "penalty_repeat"),
    "max_tokens": ("max_new_tokens", None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Fields of ``SamplingParams``; None: nothing is said.

    max_tokens   the most that any answer may have, as vLLM reads ``max_new_tokens``
    seed         of requests that name none; no file says it
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        SamplingParams(**self.said())  # RequestError for a value out of its range

    @staticmethod
    def of_config(config: Mapping[str, Any], where: str) -> "SamplingDefaults":
        """Read what a generation_config.json says of drawing; ConfigError for wrong values.

        ``do_sample`` is not read: files that leave it out mean to sample all the same.
        """
        found = {ours: config.get(theirs) for ours, (theirs, _) in _NAMES.items()}
        return _checked(found, where)

    @staticmethod
    def of_gguf(metadata: Mapping[str, Any], where: str) -> "SamplingDefaults":
        """Read what GGUF metadata say of drawing; ConfigError for wrong values."""
        found = {
            ours: metadata.get(f"general.sampling.{theirs}")
            for ours, (_, theirs) in _NAMES.items()
            if theirs is not None
        }
        return _checked(found, where)

    def said(self) -> dict[str, Any]:
        """Return the fields that say something."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if value is not None}

    def over(self, other: "SamplingDefaults") -> "SamplingDefaults":
        """Return these, and another's where these say nothing."""
        return SamplingDefaults(**{**other.said(), **self.said()})


def _checked(found: Mapping[str, Any], where: str) -> SamplingDefaults:
    values = {name: _plain(value) for name, value in found.items()}
    if values.get("top_k") == -1:  # all, as some files say it
        values["top_k"] = 0
    try:
        return SamplingDefaults(**values)
    except RequestError as error:
        raise ConfigError(f"{where}: {error}; mend the file, or leave the field out") from None


def _plain(value: Any) -> Any:
    """Return a whole number as an integer, and one of NumPy's as Python's."""
    value = value.item() if hasattr(value, "item") else value
    return int(value) if isinstance(value, float) and value.is_integer() else value
