"""A teacher's best next tokens for each window of a text, computed once and kept on disk.

A teacher does not change, so what it says of a window is the same in every epoch, every run and
every variant. Kept are its ``k`` best tokens with their log-probabilities, in files that are mapped
into memory: 6 bytes each where the vocabulary has at most 65,536 tokens, so 384 bytes a token of
text for 64. All the logits of SmolLM2 would be 192 KiB.

A window is computed when it is first asked for. Its checksum is written last, so one that a killed
process left half written is computed again. Processes may share a folder if they compute the same
bits, with as many threads each: what they write over each other's is the same.

facts.json   what the rest hangs on: a folder of another teacher, text or ``k`` is refused
ids          [R, C, K] token ids, best first
logs         [R, C, K] float32
sums         [R] uint32: CRC-32 of a window's ids and logs; 0 where there is none yet
"""

import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from monolane.errors import CheckpointError
from monolane.hf import LaneformerForCausalLM
from monolane.tune._divergence import head_inputs, head_weight
from monolane.tune._fast_cpu_model import swift
from monolane.tune._windows import Windows

_ROWS_AT_ONCE = 256  # rows of logits
_FACTS = "facts.json"


class BestTokens:
    """The ``k`` best tokens of ``teacher`` after each token of the windows to train on."""

    def __init__(
        self,
        folder: Path,
        teacher: LaneformerForCausalLM,
        windows: Windows,
        k: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._teacher = teacher
        self._dtype = dtype  # of the factors of its products
        self._rows_RC = windows.train_RC
        vocabulary = int(teacher.config.vocab_size)
        k = min(k, vocabulary)
        shape = (*self._rows_RC.shape, k)
        facts = {
            "teacher": _digest(teacher),
            "products": str(dtype).removeprefix("torch."),
            "k": k,
            "text": _text_digest(self._rows_RC),
        }
        folder.mkdir(parents=True, exist_ok=True)
        _hold(folder / _FACTS, facts)
        kind = np.dtype(np.uint16 if vocabulary <= 2**16 else np.uint32)
        self._ids_RCK = _mapped(folder / "ids", kind, shape)
        self._logs_RCK = _mapped(folder / "logs", np.dtype(np.float32), shape)
        self._sums_R = _mapped(folder / "sums", np.dtype(np.uint32), shape[:1])

    def take(self, places_B: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return ids, int64, and log-probabilities [B, C, K] of these windows."""
        for place in places_B:
            if self._sums_R[place] == 0 or self._sums_R[place] != self._sum(place):
                self._compute(int(place))
        return (
            torch.from_numpy(self._ids_RCK[places_B].astype(np.int64)),
            torch.from_numpy(self._logs_RCK[places_B]),
        )

    def _compute(self, place: int) -> None:
        ids_1C = torch.from_numpy(self._rows_RC[place : place + 1]).to(self._teacher.device)
        logs_CK, best_CK = best_tokens(self._teacher, ids_1C, self._ids_RCK.shape[2], self._dtype)
        self._ids_RCK[place] = best_CK.cpu().numpy()
        self._logs_RCK[place] = logs_CK.cpu().numpy()
        self._sums_R[place] = self._sum(place)

    def _sum(self, place: int) -> int:
        found = zlib.crc32(
            self._logs_RCK[place].tobytes(), zlib.crc32(self._ids_RCK[place].tobytes())
        )
        return found or 1


@torch.no_grad()
def best_tokens(
    model: LaneformerForCausalLM, ids_BC: Tensor, k: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and ids [N, K] of the ``k`` best tokens after each token."""
    logs, ids = [], []
    with swift(model, dtype):
        x_LND = head_inputs(model, ids_BC)
    weight_LvD = head_weight(model)
    for part_LND in x_LND.split(_ROWS_AT_ONCE, 1):
        logits_NV = torch.cat([x @ w.T for x, w in zip(part_LND, weight_LvD, strict=True)], 1)
        best_NK, ids_NK = logits_NV.topk(k)
        logs.append((best_NK - logits_NV.logsumexp(1, keepdim=True)).float())
        ids.append(ids_NK)
    return torch.cat(logs), torch.cat(ids)


def _digest(model: LaneformerForCausalLM) -> str:
    """Return what tells this model from others: its weights, bit by bit."""
    digest = hashlib.sha256(json.dumps(model.config.to_diff_dict(), sort_keys=True).encode())
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def _text_digest(rows_RC: npt.NDArray[np.int64]) -> str:
    return hashlib.sha256(rows_RC.tobytes()).hexdigest()


def _hold(path: Path, facts: dict[str, Any]) -> None:
    """Begin a folder with ``facts``, or hold one that is there to them."""
    if not path.exists():
        part = path.with_name(f"{path.name}.{os.getpid()}")  # others may begin it now, too
        part.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        part.replace(path)
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if found != facts:
        raise CheckpointError(
            f"{path.parent}: expected the best tokens of this teacher on this text, by the same "
            "kind of products, found others; "
            "remove the folder, or give another"
        )


def _mapped(path: Path, kind: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Map a file into memory; a new one is full of zeros and takes no room until it is written."""
    size = int(np.prod(shape)) * kind.itemsize
    with path.open("ab") as file:
        if file.tell() == 0:
            file.truncate(size)
    if path.stat().st_size != size:
        raise CheckpointError(
            f"{path}: expected {size} bytes, found {path.stat().st_size}; remove the folder"
        )
    return np.memmap(path, kind, "r+", shape=shape)
