"""Plain text as windows of tokens, for training a converted model back.

A window is a pure function of (seed, step): no loader state. Texts are joined with the model's end
of sequence between them; a twentieth of the windows, spread evenly, is held out.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from monolane.errors import TextError
from monolane.text import Tokenizer

_HELD_OUT = 20  # every so manieth window
_SUFFIXES = (".txt", ".md", ".py", ".jsonl")


class Windows:
    """Windows of ``context`` tokens, those to train on and those held out."""

    def __init__(self, ids_N: npt.NDArray[np.int64], context: int, seed: int) -> None:
        count = len(ids_N) // context
        if count < _HELD_OUT:
            raise TextError(
                f"expected at least {_HELD_OUT} windows of {context} tokens to train and to "
                f"measure on, got {len(ids_N)} tokens; give more text or a shorter context"
            )
        rows_RC = ids_N[: count * context].reshape(count, context)
        held_out = np.arange(count) % _HELD_OUT == _HELD_OUT // 2
        self.train_RC = rows_RC[~held_out]
        self.held_out_RC = rows_RC[held_out]
        self._seed = seed

    def batch(self, step: int, rows: int) -> npt.NDArray[np.int64]:
        """Return the windows [B, C] of step ``step``; an epoch shows each window once."""
        return self.train_RC[self.places(step, rows)]

    def places(self, step: int, rows: int) -> npt.NDArray[np.int64]:
        """Return where the windows of step ``step`` are among those to train on, [B]."""
        places, count = range(step * rows, (step + 1) * rows), len(self.train_RC)
        return np.array([self._order(p // count)[p % count] for p in places])

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng((self._seed, epoch)).permutation(len(self.train_RC))


def open_tokenizer(folder: Path, what: str) -> Tokenizer:
    """Return the tokenizer of a model folder, which turns ``what`` into tokens."""
    tokenizer = Tokenizer.open(folder)
    if tokenizer is None:
        raise TextError(f"{folder}: expected a tokenizer.json, to turn {what} into tokens")
    return tokenizer


def read_windows(path: Path, tokenizer: Tokenizer, context: int, seed: int) -> Windows:
    """Read a text file, a JSONL file with ``text``, or a folder of such files."""
    end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    parts = [
        np.array([*tokenizer.encode(text, add_special_tokens=False), *end], dtype=np.int64)
        for text in _texts(path)
    ]
    if not parts:
        raise TextError(f"{path}: expected {', '.join(_SUFFIXES)} files with text, found none")
    return Windows(np.concatenate(parts), context, seed)


def _texts(path: Path) -> Iterator[str]:
    if not path.exists():
        raise TextError(f"{path}: expected a text file or a folder of them, found nothing there")
    found = path.rglob("*") if path.is_dir() else [path]
    # A folder may be called notes.md; what was named itself is read whatever it is called.
    files = sorted(p for p in found if p.is_file() and (p == path or p.suffix in _SUFFIXES))
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            if path.is_dir():
                continue  # a folder of sources may hold fixtures in other encodings
            raise TextError(f"{path}: expected text in UTF-8") from None
        if file.suffix == ".jsonl":
            yield from _lines(file, text)
        elif text.strip():
            yield text


def _lines(file: Path, text: str) -> Iterator[str]:
    # Not splitlines: JSON may hold U+2028 and other ends of a line as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError):
            found = None
        if not isinstance(found, str):
            raise TextError(f"{file}, line {number}: expected a JSON object with a text")
        yield found
