"""The text: what was carried, what is found on the machine, and the exam, all as token ids.

It lies on the device as a whole, so that a step waits for nothing. The rows of a step are a
function of the seed and the step. A token of the exam counts only if the 13 tokens that end with
it occur nowhere in the training text.
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from studies.delay.sources import EXAM, MANIFEST, TOKENIZER, find_text, read_ids

GRAM = 13  # tokens
_PRIME = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, as a signed number of 64 bits
_CHUNK = 1 << 23  # tokens at once


@dataclass(frozen=True)
class Exam:
    """Rows that are never trained on, and which of their targets count."""

    ids: Tensor  # [R, T + 1], int64
    counts: Tensor  # [R, T], bool: of targets
    bytes_per_token: float


@dataclass(frozen=True)
class Text:
    """Token ids [N] end to end, int16, on the device; and the exam."""

    ids: Tensor
    exam: Exam
    digest: str  # of both: the runs of a block have the same
    sources: tuple[dict[str, Any], ...]

    def rows(self, starts_B: Tensor, context: int) -> Tensor:
        """Return the rows [B, context + 1] that begin there."""
        places = torch.arange(context + 1, device=starts_B.device)
        return self.ids[starts_B[:, None] + places].long()

    def order(self, seed: int, steps: int, rows: int, context: int) -> Tensor:
        """Return where the rows of each step begin, [steps, rows].

        Each passage through the text reads every row once, in an order and from a beginning of
        its own.
        """
        whole = (len(self.ids) - 1) // context - 1  # one row is kept for the beginning
        if whole < 1:
            raise SystemExit(
                f"expected a text of more than {2 * context} tokens, got {len(self.ids)}; "
                "prepare more of it"
            )
        parts = []
        for passage in range(-(-steps * rows // whole)):
            rng = np.random.default_rng((seed, passage))
            parts.append(rng.integers(context) + context * rng.permutation(whole))
        starts = np.concatenate(parts)[: steps * rows].reshape(steps, rows)
        return torch.from_numpy(starts).to(self.ids.device)


def open_text(
    carried: Path, work: Path, device: torch.device, names: Sequence[str], rows: int, context: int
) -> Text:
    """Read what was carried and what this machine's packages ``names`` hold."""
    manifest = json.loads((carried / MANIFEST).read_text(encoding="utf-8"))
    with ThreadPoolExecutor() as pool:  # decompression is outside Python's lock
        parts = list(pool.map(lambda name: read_ids(carried / name), manifest["shards"]))
    found, sources = find_text(carried / TOKENIZER, work, names)
    train = np.concatenate([*parts, found])
    exam = read_ids(carried / EXAM)
    digest = hashlib.sha256(train.tobytes() + exam.tobytes()).hexdigest()[:16]
    ids_N = torch.from_numpy(train.astype(np.int16)).to(device)
    exam_N = torch.from_numpy(exam.astype(np.int16)).to(device)
    fresh_N = ~occurs(exam_N, ids_N)
    count = min(rows, (len(exam) - 1) // context)
    starts = np.linspace(0, len(exam) - context - 1, count).astype(np.int64)
    places = torch.from_numpy(starts)[:, None] + torch.arange(context + 1)
    places = places.to(device)
    size = manifest["exam"]["bytes"] / max(1, manifest["exam"]["tokens"])
    rows_of = Exam(exam_N[places].long(), fresh_N[places[:, 1:]], size)
    carried_sources = [source | {"where": "carried"} for source in manifest["packages"]]
    return Text(ids_N, rows_of, digest, (*carried_sources, *sources))


def occurs(exam_N: Tensor, train_N: Tensor) -> Tensor:
    """Say of each token whether the 13 that end with it occur in the training text, bool [N].

    The first twelve end no such piece; they count as known.
    """
    known_N = torch.ones(len(exam_N), dtype=torch.bool, device=exam_N.device)
    if len(exam_N) < GRAM:
        return known_N
    sorted_G, places_G = _grams(exam_N).sort()
    seen_G = torch.zeros(len(sorted_G), dtype=torch.bool, device=exam_N.device)
    for at in range(0, len(train_N) - GRAM + 1, _CHUNK):
        grams = _grams(train_N[at : at + _CHUNK + GRAM - 1])
        first = torch.searchsorted(sorted_G, grams).clamp_(max=len(sorted_G) - 1)
        seen_G[first[sorted_G[first] == grams]] = True
    # Equal pieces of the exam stand side by side, and a search finds the first of them.
    group_G = torch.searchsorted(sorted_G, sorted_G)
    known_N[places_G + GRAM - 1] = seen_G[group_G]
    return known_N


def _grams(ids_N: Tensor) -> Tensor:
    """Return a hash of 64 bits for each piece of 13 tokens, [N - 12]; products wrap around."""
    count = len(ids_N) - GRAM + 1
    hashes = torch.zeros(count, dtype=torch.int64, device=ids_N.device)
    for at in range(GRAM):
        hashes = hashes * _PRIME + (ids_N[at : at + count].long() + 1)
    return hashes ^ (hashes >> 29)
