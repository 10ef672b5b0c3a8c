"""Held-out bits per byte: what the model needs to say text that it has never seen.

Per byte, not per token, so that it compares with other vocabularies and with compressors. Every
file is scored from its start; later windows overlap the one before by half, so that no token is
judged with less than half a context unless the file has no more to give.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_ROWS = 4  # windows in one forward pass


@dataclass(frozen=True)
class Score:
    """Bits that a model spent on some bytes of text."""

    bits: float
    bytes: int
    tokens: int

    @property
    def bits_per_byte(self) -> float:
        """Bits spent per byte of text."""
        return self.bits / self.bytes

    def __add__(self, other: "Score") -> "Score":
        return Score(self.bits + other.bits, self.bytes + other.bytes, self.tokens + other.tokens)


@dataclass(frozen=True)
class _Window:
    """A stretch of a document, and the first of its tokens that is to be scored."""

    ids: np.ndarray
    first: int


def score_documents(
    model: torch.nn.Module,
    documents: Sequence[np.ndarray],
    sizes: Sequence[int],
    context: int,
    tick: Callable[[], None] = lambda: None,
) -> list[Score]:
    """Score each document of token ids [T], which stands for ``sizes[i]`` bytes.

    The first token is given; every later one is scored, ``</s>`` included: saying where a file
    ends is part of saying the file.
    """
    model.eval()
    scores = []
    for ids, size in zip(documents, sizes, strict=True):
        nats = _nats(model, list(_windows(ids, context)))
        scores.append(Score(nats / math.log(2), size, len(ids) - 1))
        tick()
    return scores


def _windows(ids: np.ndarray, context: int) -> Iterator[_Window]:
    stride = context // 2
    scored = 1  # token 0 is given
    for start in range(0, max(1, len(ids) - stride), stride):
        window = ids[start : start + context]
        yield _Window(window, scored - start)
        scored = start + len(window)


@torch.inference_mode()
def _nats(model: torch.nn.Module, windows: Sequence[_Window]) -> float:
    total = 0.0
    for at in range(0, len(windows), _ROWS):
        group = windows[at : at + _ROWS]
        ids_BT, scored_BT = _pad(group)
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits.float()
        nats_BT = torch.nn.functional.cross_entropy(
            logits_BTV[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none"
        ).view(len(group), -1)
        total += nats_BT[scored_BT[:, 1:]].double().sum().item()
    return total


def _pad(windows: Sequence[_Window]) -> tuple[Tensor, Tensor]:
    """Return ids [B, T], filled up on the right where causal attention cannot see, and the mask."""
    width = max(len(window.ids) for window in windows)
    ids_BT = torch.zeros(len(windows), width, dtype=torch.long)
    scored_BT = torch.zeros(len(windows), width, dtype=torch.bool)
    for row, window in enumerate(windows):
        ids_BT[row, : len(window.ids)] = torch.from_numpy(window.ids.astype(np.int64))
        scored_BT[row, window.first : len(window.ids)] = True
    return ids_BT, scored_BT
