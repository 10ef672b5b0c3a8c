"""The files beside a model's weights, which travel with whatever is made of it.

Never code of the source folder, and never its card, which speaks of another model.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

TEXT_FILES = (
    "tokenizer*.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.jinja",
    "generation_config.json",
)
# A folder of them, such as THIRD_PARTY_LICENSES, matches too, with all that is in it.
LICENCE_FILES = ("LICENSE*", "LICENCE*", "NOTICE*", "THIRD_PARTY*", "USE_POLICY*")


def copy_beside(
    source: Path, folder: Path, patterns: Sequence[str] = (*TEXT_FILES, *LICENCE_FILES)
) -> None:
    """Copy how the model in ``source`` spells text, and the terms under which it stands."""
    for pattern in patterns:
        for found in sorted(source.glob(pattern)):
            for path in sorted(found.rglob("*")) if found.is_dir() else [found]:
                if path.is_file():
                    copy = folder / path.relative_to(source)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)
