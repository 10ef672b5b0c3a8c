"""Scoring text: the nats that a model needs for it, and whether it would have written it itself.

Held-out text is judged per byte, not per token, so that it compares with other vocabularies and
with compressors. Every document is scored from its start; later windows overlap the one before by
half, so that no token is judged with less than half a context unless there is no more to give.

Where several processes train, each scores every so-many-th batch of windows. The batches are the
same for any number of processes and the results are put together by window, so the scores are too;
and each process makes the same number of forward passes, as a sharded model's gathers need.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

ROWS = 4  # windows in one forward pass


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
class Window:
    """A stretch of token ids [T], and the first of its tokens that is to be scored."""

    ids: np.ndarray
    first: int

    def __post_init__(self) -> None:
        assert self.first >= 1, "a token is scored by what comes before it"


@dataclass(frozen=True)
class WindowScores:
    """What a model made of windows [W]."""

    nats: np.ndarray  # float64 [W], of the scored tokens together
    greedy: np.ndarray  # bool [W]: whether each scored token is the most probable one


def score_documents(
    model: torch.nn.Module,
    documents: Sequence[np.ndarray],
    sizes: Sequence[int],
    context: int,
    tick: Callable[[float], None] = lambda done: None,
    rows: int = ROWS,
) -> list[Score]:
    """Score each document of token ids [T], which stands for ``sizes[i]`` bytes.

    The first token is given; every later one is scored, ``</s>`` included: saying where a file
    ends is part of saying the file. ``tick`` is told the share that is done, 0 to 1.
    """
    windows = [list(cut_windows(ids, context)) for ids in documents]
    flat = [window for group in windows for window in group]
    nats = iter(score_windows(model, flat, rows, tick).nats.tolist())
    return [
        Score(math.fsum(next(nats) for _ in group) / math.log(2), size, len(ids) - 1)
        for group, ids, size in zip(windows, documents, sizes, strict=True)
    ]


def cut_windows(ids: np.ndarray, context: int) -> Iterator[Window]:
    """Yield windows of at most ``context`` tokens that together score each token but the first."""
    stride = context // 2
    scored = 1  # token 0 is given
    for start in range(0, max(1, len(ids) - stride), stride):
        window = ids[start : start + context]
        yield Window(window, scored - start)
        scored = start + len(window)


@torch.no_grad()  # not inference_mode: FSDP keeps what it gathers in it, and trains on that later
def score_windows(
    model: torch.nn.Module,
    windows: Sequence[Window],
    rows: int = ROWS,
    tick: Callable[[float], None] = lambda done: None,
) -> WindowScores:
    """Score windows on all processes together; each calls this with the same windows."""
    if not windows:
        return WindowScores(np.zeros(0), np.zeros(0, dtype=bool))
    device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    rank, size = (dist.get_rank(), dist.get_world_size()) if _several() else (0, 1)
    starts = range(0, len(windows), rows)
    results_2W = torch.zeros(2, len(windows), dtype=torch.float64, device=device)
    training = model.training
    model.eval()
    for turn in range(0, len(starts), size):
        at = turn + rank
        start = starts[min(at, len(starts) - 1)]
        batch_2B = _score(model, windows[start : start + rows], device)
        if at < len(starts):  # else it was a pass for the others' sake
            results_2W[:, start : start + rows] = batch_2B
        tick(min(1.0, (turn + size) / len(starts)))
    model.train(training)
    if size > 1:
        dist.all_reduce(results_2W)  # each window has one owner: x + 0 is exact
    nats_W, greedy_W = results_2W.cpu().numpy()
    return WindowScores(nats_W, greedy_W > 0)


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _score(model: torch.nn.Module, windows: Sequence[Window], device: torch.device) -> Tensor:
    """Return nats and greedy hits [2, B] of one batch."""
    ids_BT, scored_BT = (part.to(device) for part in _pad(windows))
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1].float()
    next_BT, scored_BT = ids_BT[:, 1:], scored_BT[:, 1:]
    nats_BT = torch.nn.functional.cross_entropy(
        logits_BTV.flatten(0, 1), next_BT.flatten(), reduction="none"
    ).view(next_BT.shape)
    hits_BT = (logits_BTV.argmax(-1) == next_BT) | ~scored_BT
    nats_B = nats_BT.double().where(scored_BT, 0.0).sum(1)
    return torch.stack([nats_B, hits_BT.all(1).double()])


def _pad(windows: Sequence[Window]) -> tuple[Tensor, Tensor]:
    """Return ids [B, T], filled up on the right where causal attention cannot see, and the mask."""
    width = max(len(window.ids) for window in windows)
    ids_BT = torch.zeros(len(windows), width, dtype=torch.long)
    scored_BT = torch.zeros(len(windows), width, dtype=torch.bool)
    for row, window in enumerate(windows):
        ids_BT[row, : len(window.ids)] = torch.from_numpy(window.ids.astype(np.int64))
        scored_BT[row, window.first : len(window.ids)] = True
    return ids_BT, scored_BT
