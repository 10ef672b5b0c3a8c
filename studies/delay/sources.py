"""Where text comes from: files of packages, encoded; and shards of token ids. Needs no torch."""

import hashlib
import json
import lzma
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from monolane.data._sources import is_generated

MANIFEST, TOKENIZER, EXAM, WHEELS = "manifest.json", "tokenizer.json", "exam.xz", "wheels"
ENDINGS = (".py", ".pyi", ".h", ".hpp", ".cuh")
MOST_BYTES = 400_000  # of a file: larger ones are tables
# Of the image's packages, those under licences that let their text be used: BSD, MIT, Apache-2.0
# and the like. Each one's licence, as its own metadata names it, is in the results.
FOUND = (
    "accelerate", "botorch", "cupy-cuda13x", "diffrax", "e3nn", "equinox", "flax", "fonttools",
    "gpytorch", "huggingface-hub", "jax", "jaxlib", "lightning", "matplotlib", "networkx", "numba",
    "numpy", "numpyro", "onnx", "onnxscript", "optax", "orbax-checkpoint", "pandas", "peft",
    "pytorch-lightning", "scikit-image", "scikit-learn", "scipy", "sentence-transformers",
    "setuptools", "statsmodels", "sympy", "timm", "torch", "torch-geometric", "torchmetrics",
    "torchvision", "transformers", "triton", "xarray",
)  # fmt: skip


def read_ids(path: Path) -> np.ndarray:
    """Return the token ids [N] of a compressed shard, uint16."""
    return np.frombuffer(lzma.decompress(path.read_bytes()), "<u2")


def write_ids(path: Path, ids: np.ndarray) -> None:
    """Compress token ids [N] into a shard: 16 bits each, so that both bytes keep their places."""
    kind = {"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 1, "pb": 1}
    path.write_bytes(lzma.compress(ids.astype("<u2").tobytes(), filters=[kind]))


# ---- what is found -------------------------------------------------------------------------------
def find_text(
    tokenizer: Path, work: Path, names: Sequence[str]
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return the token ids of installed packages, and what these are; kept in ``work``."""
    kept, told = work / "found.npy", work / "found.json"
    there = [name for name in names if _version(name)]
    wish = {name: _version(name) for name in there}
    wish["tokenizer"] = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    if kept.exists() and told.exists():
        before = json.loads(told.read_text(encoding="utf-8"))
        if before["wish"] == wish:
            return np.load(kept), before["sources"]
    encoder = Tokenizer.from_file(str(tokenizer))
    seen: set[str] = set()
    parts, sources = [np.zeros(0, np.uint16)], []
    for name in there:
        texts = [text for text in installed_texts(name) if fresh(text, seen)]
        ids = encode(encoder, texts)
        sources.append({
            "name": name, "version": _version(name), "licence": licence_of(name),
            "where": "found", "documents": len(texts), "tokens": len(ids),
        })  # fmt: skip
        parts.append(ids)
    ids = np.concatenate(parts)
    work.mkdir(parents=True, exist_ok=True)
    np.save(kept, ids)
    told.write_text(json.dumps({"wish": wish, "sources": sources}), encoding="utf-8")
    return ids, sources


def installed_texts(name: str) -> Iterator[str]:
    """Yield the source files of an installed package, sorted by name."""
    for file in sorted(metadata.files(name) or (), key=str):
        if file.suffix in ENDINGS and (text := decoded(Path(str(file.locate())))) is not None:
            yield text


def decoded(path: Path) -> str | None:
    """Return a file's text; None where it is too large, unreadable or no UTF-8."""
    try:
        data = path.read_bytes()
        return data.decode("utf-8") if len(data) <= MOST_BYTES else None
    except (OSError, UnicodeDecodeError):
        return None


def fresh(text: str, seen: set[str]) -> bool:
    """Say whether a text is worth reading: not blank, not made by a program, not there before."""
    if not text.strip() or is_generated(text):
        return False
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest in seen:
        return False
    seen.add(digest)
    return True


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    """Return the ids of texts end to end, uint16; each begins with the token <s>."""
    parts = [np.zeros(0, np.uint16)]
    for at in range(0, len(texts), 256):
        found = tokenizer.encode_batch_fast(list(texts[at : at + 256]))
        parts += [np.asarray(one.ids, np.uint16) for one in found]
    return np.concatenate(parts)


def licence_of(name: str) -> str:
    """Return what a package's metadata says of its licence, in a line."""
    said = metadata.metadata(name)
    return licence_line(said.get_all("License-Expression"), said.get_all("Classifier"),
                        said.get_all("License"))  # fmt: skip


def licence_line(
    expressions: Sequence[str] | None, classifiers: Sequence[str] | None, free: Sequence[str] | None
) -> str:
    """Return the licence by its expression, else by its classifiers, else in the author's words."""
    if expressions:
        return expressions[0]
    lines = [x for x in classifiers or () if x.startswith("License ::")]
    if lines:
        return "; ".join(x.rpartition(" :: ")[2] for x in lines)
    return (free or ["not said"])[0].strip().splitlines()[0][:80]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
