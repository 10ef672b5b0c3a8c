"""The terms under which a model may be used: their files travel with whatever is made of it."""

import shutil
from pathlib import Path

# A folder of them, such as THIRD_PARTY_LICENSES, matches too, with all that is in it.
LICENCE_FILES = ("LICENSE*", "LICENCE*", "NOTICE*", "THIRD_PARTY*", "USE_POLICY*")


def copy_licences(source: Path, folder: Path) -> None:
    """Copy the terms of the model in ``source`` to ``folder``."""
    for pattern in LICENCE_FILES:
        for found in sorted(source.glob(pattern)):
            for path in sorted(found.rglob("*")) if found.is_dir() else [found]:
                if path.is_file():
                    copy = folder / path.relative_to(source)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)
