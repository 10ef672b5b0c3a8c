"""Packages that a machine without a network may lack: carried as wheels, unpacked there."""

from __future__ import annotations

import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

WHEELS = "wheels"
NEEDED = ("pydantic", "tomli_w")  # by configs and runs


def provide(carried: Path, site: Path) -> bool:
    """Unpack carried wheels of what this Python lacks; whether it lacked anything.

    A wheel is an archive of what belongs in a folder of packages.
    """
    if not [name for name in NEEDED if find_spec(name) is None]:
        return False
    for wheel in sorted((carried / WHEELS).glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    sys.path.insert(0, str(site))
    return True
