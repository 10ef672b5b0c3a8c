"""The text of the study: Python's standard library in the demo model's tokens, some files held out.

The demo's vocabulary was learnt from the same library; all variants read it alike.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import monolane

_HELD_OUT = 0.05  # of the files, by the hash of their content


@dataclass(frozen=True)
class Text:
    """Token ids of both halves, end to end, and the bytes of the held-out one."""

    train: np.ndarray
    held_out: np.ndarray
    held_out_bytes_per_token: float
    digest: str  # of both: runs of different texts do not compare

    def batch(self, seed: int, step: int, rows: int, context: int) -> np.ndarray:
        """Return the rows [rows, context] of a step: a function of the seed and the step alone."""
        rng = np.random.default_rng((seed, step))
        starts = rng.integers(len(self.train) - context, size=rows)
        return np.stack([self.train[start : start + context] for start in starts])

    def examination(self, rows: int, context: int) -> np.ndarray:
        """Return rows [rows, context] spread evenly over the held-out half."""
        starts = np.linspace(0, len(self.held_out) - context, rows).astype(np.int64)
        return np.stack([self.held_out[start : start + context] for start in starts])


def read_text(files: Sequence[Path]) -> Text:
    """Encode files; the same files give the same text, in whatever order they come."""
    tokenizer = Tokenizer.from_file(str(Path(monolane.__file__).parent / "demo" / "tokenizer.json"))
    halves: dict[bool, dict[str, str]] = {False: {}, True: {}}
    for path in files:
        try:
            content = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue  # a test of other encodings
        digest = hashlib.sha256(content.encode()).hexdigest()
        halves[int(digest[:8], 16) / 2**32 < _HELD_OUT][digest] = content
    train, held_out = (
        [text for _, text in sorted(halves[half].items()) if text.strip()] for half in (False, True)
    )
    if not train or not held_out:
        raise SystemExit(
            f"expected files in both halves, got {len(train)} to train on and {len(held_out)} held "
            "out; use a Python with its whole standard library"
        )
    train_ids, held_out_ids = (
        np.concatenate([np.asarray(e.ids, np.uint16) for e in tokenizer.encode_batch(texts)])
        for texts in (train, held_out)
    )
    size = sum(len(text.encode()) for text in held_out)
    digest = hashlib.sha256(train_ids.tobytes() + held_out_ids.tobytes()).hexdigest()
    return Text(train_ids, held_out_ids, size / len(held_out_ids), digest)
