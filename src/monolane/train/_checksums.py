"""Seals: the checksum of every file of a checkpoint, so that a damaged one is found before use.

    sums-<rank>-of-<ranks>.json     {"file": "<SHA-256>", ...} of what this process wrote

A process writes its seal last, when its files are on disk. A folder that lacks a seal was never
finished; one whose files do not match was finished, and is damaged since. Disks, copies and people
cut files, lose them and flip bits, and a format that reads such a file says so far from the cause,
or not at all.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

_NAME = re.compile(r"sums-(\d+)-of-(\d+)\.json")


def sum_file(path: Path) -> str:
    """Return the SHA-256 of a file; OSError where it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_durably(path: Path, text: str) -> None:
    """Write a small file so that after a power cut it is there whole, or as it was before."""
    unfinished = path.with_name(f"{path.name}.tmp")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def write_seal(folder: Path, files: Iterable[Path], rank: int = 0, ranks: int = 1) -> None:
    """Seal the files that process ``rank`` of ``ranks`` wrote in ``folder``."""
    sums = {path.relative_to(folder).as_posix(): sum_file(path) for path in sorted(files)}
    write_durably(folder / f"sums-{rank}-of-{ranks}.json", json.dumps(sums, indent=1) + "\n")


def is_sealed(folder: Path) -> bool:
    """Whether every process has written its seal: the checkpoint was finished once."""
    return bool(_seals(folder))


def find_damage(folder: Path) -> str | None:
    """Return what is wrong with a sealed folder, in a few words, or None where all is as written.

    Reads every byte of it.
    """
    for seal in _seals(folder):
        try:
            sums = json.loads(seal.read_text(encoding="utf-8"))
            names = {str(name): str(sums[name]) for name in sums}
        except (OSError, ValueError, TypeError):
            return f"{seal.name} cannot be read"
        for name, expected in names.items():
            try:
                if sum_file(folder / name) != expected:
                    return f"{name} is not what was written (SHA-256)"
            except OSError as error:
                return f"{name}: {error.strerror}"
    return None


def _seals(folder: Path) -> list[Path]:
    """Return the seals of all processes, or none where one is missing."""
    if not folder.is_dir():
        return []
    found = {name: _NAME.fullmatch(name) for name in sorted(path.name for path in folder.iterdir())}
    seals = {int(m[1]): (name, int(m[2])) for name, m in found.items() if m}
    counts = {ranks for _, ranks in seals.values()}
    if len(counts) != 1 or set(seals) != set(range(*counts)):
        return []
    return [folder / name for name, _ in seals.values()]
