"""The tokenizer settings of an exported folder.

tokenizer.json is the one description that every reader obeys. ``tokenizer_class`` must name the
class that takes it as it is: given a Llama class, transformers 5 rebuilds normalizer and decoder
from that class and encodes some strings differently (seen in 5.5 and 5.23). Without
``model_input_names`` a tokenizer gives ``token_type_ids`` too, which ``generate`` refuses.
"""

import json
from pathlib import Path
from typing import Any

from monolane._regular_files import is_own_file
from monolane.errors import TextError
from monolane.model import ModelConfig, read_json_object
from monolane.text import MODEL_INPUTS, read_object

SETTINGS = "tokenizer_config.json"


def write_settings(source: Path, folder: Path, config: ModelConfig) -> None:
    """Write the settings that fit the tokenizer of ``source``, if it has one."""
    fast = (source / "tokenizer.json").is_file()
    if is_own_file(source, source / SETTINGS):
        settings = read_json_object(source / SETTINGS)
    elif fast:
        settings = _settings_from(source / "tokenizer.json", config)
    else:
        return
    settings.pop("auto_map", None)  # names code of the source folder that is not copied
    settings["model_input_names"] = list(MODEL_INPUTS)
    if fast:
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (folder / SETTINGS).write_text(text + "\n", encoding="utf-8")


def _settings_from(path: Path, config: ModelConfig) -> dict[str, Any]:
    """Name the special tokens that the model's config knows by id only."""
    try:
        added = read_object(path).get("added_tokens") or []
        contents = {token["id"]: token["content"] for token in added}
    except (AttributeError, TypeError, KeyError) as error:
        raise TextError(f"{path}: expected the JSON of a tokenizer, got: {error!r}") from None
    ids = {
        "bos_token": config.bos_id,
        "eos_token": next(iter(config.eos_ids), None),
        "pad_token": config.pad_id,
    }
    named = {name: contents[token] for name, token in ids.items() if token in contents}
    return {"model_max_length": config.max_positions, **named}
