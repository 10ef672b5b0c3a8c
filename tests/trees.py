"""Files of a machine that is not here: /sys and /proc as Linux shows them there."""

from collections.abc import Mapping
from pathlib import Path


def write_tree(root: Path, texts: Mapping[str, str]) -> None:
    """Write files below a folder, by their paths there."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith("\n") else f"{text}\n")
