"""The text of the study: what it is trained on, and what it is examined on.

Three sources (README.md has their licences): Python's standard library, manuals out of Debian
packages, and what the model writes itself. A twentieth of the files of each, by the hash of their
content, is for the exam alone. Nothing of it is committed: it is made in the work folder.
"""

import gzip
import hashlib
import json
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from monolane.engine import Engine, SamplingParams
from monolane.text import Tokenizer

# In bookworm. "=" and a version would soon be gone from the mirrors: the digest tells texts apart.
PACKAGES = ("python3.11-doc", "debian-policy", "developers-reference")
_MANUALS = ("*.rst.txt", "policy.txt.gz")
_TRAIN_BYTES = 4_000_000  # of each source at most, files in the order of their hashes
_HELD_OUT = 0.05
_OWN_TEXTS, _OWN_TOKENS = 160, 512
SOURCES = ("library", "manuals", "own")


def prepare(work: Path, model: Path, own: int = _OWN_TEXTS) -> None:
    """Make ``work``/text: train/SOURCE.jsonl and exam/SOURCE.jsonl. What is there stays."""
    folder = work / "text"
    if not (folder / "exam" / "library.jsonl").exists():
        _split(folder, "library", _library())
    if not (folder / "exam" / "manuals.jsonl").exists():
        _split(folder, "manuals", _manuals(work / "packages"))
    if own and not (folder / "exam" / "own.jsonl").exists():
        _split(folder, "own", _own(work / "own.jsonl", model, own))


def exam_windows(
    work: Path, tokenizer: Tokenizer, context: int, rows: int
) -> dict[str, np.ndarray]:
    """Return ``rows`` windows [R, C] of each source, spread evenly over what was held out."""
    found = {}
    for path in sorted((work / "text" / "exam").glob("*.jsonl")):
        texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        ids_N = np.concatenate([np.array(part, np.int64) for part in ids])
        count = len(ids_N) // context
        if count < rows:
            raise SystemExit(f"{path}: expected {rows} windows of {context} tokens, got {count}")
        places = np.linspace(0, count - 1, rows).astype(np.int64)
        found[path.stem] = ids_N[: count * context].reshape(count, context)[places]
    return found


def digest(work: Path) -> str:
    """Return what tells this text from others: runs of different texts do not compare."""
    found = hashlib.sha256()
    for path in sorted((work / "text").rglob("*.jsonl")):
        found.update(path.relative_to(work).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _split(folder: Path, source: str, texts: Iterable[str]) -> None:
    hashed = sorted((hashlib.sha256(text.encode()).hexdigest(), text) for text in texts)
    halves: dict[str, list[str]] = {"train": [], "exam": []}
    room = _TRAIN_BYTES
    for name, text in dict(hashed).items():
        if int(name[-8:], 16) / 2**32 < _HELD_OUT:
            halves["exam"].append(text)
        elif len(text.encode()) <= room:
            halves["train"].append(text)
            room -= len(text.encode())
    for half, kept in halves.items():  # the exam last: it says that the source is done
        path = folder / half / f"{source}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text("".join(json.dumps({"text": text}) + "\n" for text in kept))
        part.replace(path)


def _library() -> Iterator[str]:
    for path in Path(sysconfig.get_path("stdlib")).rglob("*.py"):
        if {"site-packages", "test", "tests", "lib2to3"}.isdisjoint(path.parts):
            try:
                yield path.read_bytes().decode()
            except UnicodeDecodeError:
                continue  # a fixture of other encodings


def _manuals(folder: Path) -> Iterator[str]:
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if not any(folder.glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", package], cwd=folder, check=True)
        (archive,) = folder.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, folder / package], check=True)
        for path in (path for kind in _MANUALS for path in (folder / package).rglob(kind)):
            data = (
                path.read_bytes() if path.suffix == ".txt" else gzip.decompress(path.read_bytes())
            )
            yield data.decode()


def _own(path: Path, model: Path, count: int) -> Iterator[str]:
    """Draw texts from the model at temperature 1, from nothing; resumable, a line each."""
    done = path.read_text().splitlines() if path.exists() else []
    with Engine.load(model, "cpu", context=_OWN_TOKENS + 8) as engine, path.open("a") as file:
        assert engine.tokenizer is not None
        start = engine.tokenizer.encode("<|endoftext|>")
        for seed in range(len(done), count):
            params = SamplingParams(max_tokens=_OWN_TOKENS, temperature=1.0, seed=seed)
            text = engine.generate(start, params).text
            file.write(json.dumps({"text": text}) + "\n")
            file.flush()
    for line in path.read_text().splitlines():
        text = json.loads(line)["text"]
        if text.strip():
            yield text
