"""The files beside a model's weights, which travel with whatever is made of it.

Never code of the source folder, and never its card, which speaks of another model.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from monolane._regular_files import open_regular, own_files

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
    """Copy how the model in ``source`` spells text, and the terms under which it stands.

    A link that leads out of ``source`` is left out: a folder of somebody else's must not say which
    files of this machine go into what is made of it, and is then published.
    """
    for pattern in patterns:
        for found in sorted(source.glob(pattern)):
            for path in own_files(source, found):
                copy = folder / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                with open_regular(path) as original, copy.open("wb") as file:
                    shutil.copyfileobj(original, file)
