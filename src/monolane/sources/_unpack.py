"""A .gguf file as a folder in Hub layout, for what reads folders alone."""

import json
import logging
from pathlib import Path

from monolane._naming import naming
from monolane.errors import TextError
from monolane.model import (
    LICENCE_FILES,
    GgufModel,
    ModelConfig,
    WeightDtype,
    check_replaceable,
    copy_beside,
    folder_aside,
    write_unpacked,
)
from monolane.text import GgufText, write_text_files

log = logging.getLogger("monolane.sources")

_CARD = """{licence}# {name}

The model of `{file}`, dequantised by monolane: each number is the one that the file means. So this
folder is larger than the file, and no more accurate.
"""


def unpack_gguf(
    path: Path, destination: Path, *, dtype: WeightDtype | None = None, overwrite: bool = False
) -> ModelConfig:
    """Write the model of a .gguf file as a folder in Hub layout; return its config.

    ``dtype`` rounds all weights to it; without one, blocks become float32 and floats stay as they
    are. A file without a tokenizer, or with one that is not read, gives a folder without, and a
    warning says so. An existing folder is refused; with ``overwrite`` it is replaced, if it is a
    model folder. ConfigError or CheckpointError; then nothing is left behind.
    """
    with naming(path):
        return _unpack(path, destination, dtype, overwrite)


def _unpack(
    path: Path, destination: Path, dtype: WeightDtype | None, overwrite: bool
) -> ModelConfig:
    model = GgufModel(path)
    check_replaceable(path, destination, overwrite)
    with folder_aside(destination) as folder:
        config = write_unpacked(model, folder, dtype)
        text = _write_text(model, folder)
        eos_ids = {*config.eos_ids, *(() if text is None else text.ending_ids)}
        said = {
            "eos_token_id": sorted(eos_ids),
            "suppress_tokens": [] if text is None else [*text.suppressed_ids],
        }
        if any(said.values()):
            content = json.dumps({name: ids for name, ids in said.items() if ids}, indent=2)
            (folder / "generation_config.json").write_text(content + "\n", encoding="utf-8")
        copy_beside(path.parent, folder, LICENCE_FILES)
        terms = model.metadata.get("general.license")
        licence = f"---\nlicense: {json.dumps(terms)}\n---\n\n" if isinstance(terms, str) else ""
        card = _CARD.format(licence=licence, name=destination.name, file=path.name)
        (folder / "README.md").write_text(card, encoding="utf-8")
    return config


def _write_text(model: GgufModel, folder: Path) -> GgufText | None:
    try:
        text = GgufText.open(model.metadata, model.path, model.embedding_rows)
        if text is not None:
            write_text_files(text, folder, model.config.max_positions)
            return text
        reason = f"{model.path} holds none"
    except TextError as error:
        reason = str(error)
    log.warning("the folder has no tokenizer and takes token ids only: %s", reason)
    return None
