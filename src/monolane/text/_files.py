"""Reading a model folder's JSON and template files, which anybody may have written.

Not ``json.loads`` at each place of use: a file from the Hub can be cut short, nest a million
lists, hold bytes that are no UTF-8 or be something else than an object, and each of these must
come out as one TextError that names the file.
"""

import json
from pathlib import Path
from typing import Any

from monolane._regular_files import check_parts, read_regular
from monolane.errors import TextError

# The largest published tokenizer.json has some 40 MB.
_MOST_BYTES = 1 << 28
# What a decoder of text takes from a tokenizer: ``model_input_names`` of tokenizer_config.json.
# Where a file does not say it, Transformers 4 gives ``token_type_ids`` too, which no decoder has.
MODEL_INPUTS = ("input_ids", "attention_mask")


def read_text(path: Path) -> str:
    """Return the file as text; TextError names the file when it cannot be read as UTF-8."""
    try:
        data = read_regular(path, _MOST_BYTES)
        # Line ends as Python's own files of text have them.
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TextError(f"{path}: expected a readable UTF-8 file, got: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file; TextError names the file when it holds none."""
    try:
        text = read_text(path)
        check_parts(text)
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, TextError):
            raise
        raise TextError(f"{path}: expected JSON, got: {error}; download the file again") from None
    if not isinstance(value, dict):
        raise TextError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_settings(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json over special_tokens_map.json; empty where there is neither.

    Older folders name bos and eos only in special_tokens_map.json.
    """
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings.update(read_object(folder / name))
    return settings


def named_token(settings: dict[str, Any], key: str, folder: Path) -> str | None:
    """Return the spelling of e.g. ``bos_token``: a string, an AddedToken object, or nothing."""
    value = settings.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value or None
    raise TextError(
        f"{folder / 'tokenizer_config.json'}: expected {key} to be a string, null or an object "
        f"with 'content', got {type(value).__name__}"
    )
