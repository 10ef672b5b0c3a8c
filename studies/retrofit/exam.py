"""What a model knows of held-out text, and how far it is from its source there."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from monolane.hf import LaneformerForCausalLM
from monolane.tune import swift


@torch.inference_mode()
def source_logs(
    folder: Path, source: LaneformerForCausalLM, windows: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the source's log-probabilities [R, C - 1, V] of each kind of text [R, C].

    They are computed once and kept in ``folder``, float32: 200 KB a token for SmolLM2.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for kind, rows_RC in windows.items():
        path = folder / f"{kind}-{hashlib.sha256(rows_RC.tobytes()).hexdigest()[:16]}.npy"
        if not path.exists():
            with swift(source):
                logs = [_logs(source, row).numpy() for row in rows_RC]
            part = path.with_suffix(".part")
            with part.open("wb") as file:
                np.save(file, np.stack(logs))
            part.replace(path)
        found[kind] = np.load(path, mmap_mode="r")
    return found


@torch.inference_mode()
def examine(
    model: LaneformerForCausalLM,
    windows: Mapping[str, np.ndarray],
    logs: Mapping[str, np.ndarray],
) -> dict[str, dict[str, float]]:
    """Return, for each kind of text [R, C] and for ``all`` of them, per token:

    ``nats`` (loss on the text), ``perplexity``, ``accuracy`` (its best guess is the next token),
    and against the source's ``logs``: ``kl`` (source to model, in nats) and ``agreement`` (same
    best guess).
    """
    names = ("nats", "kl", "agreement", "accuracy")
    found = {}
    with swift(model):
        for kind, rows_RC in windows.items():
            pairs = zip(rows_RC, logs[kind], strict=True)
            means = np.mean([_score(model, row, log) for row, log in pairs], axis=0)
            found[kind] = dict(zip(names, map(float, means), strict=True))
    sizes = [rows_RC.size for rows_RC in windows.values()]
    found["all"] = {
        name: float(np.average([values[name] for values in found.values()], weights=sizes))
        for name in names
    }
    for values in found.values():
        values["perplexity"] = math.exp(values["nats"])
    return found


def _logs(model: Any, row_C: np.ndarray) -> torch.Tensor:
    ids_1C = torch.from_numpy(row_C)[None]
    logs: torch.Tensor = model(input_ids=ids_1C, use_cache=False).logits[0, :-1].log_softmax(-1)
    return logs


def _score(model: Any, row_C: np.ndarray, logs_NV: np.ndarray) -> tuple[float, ...]:
    next_N = torch.from_numpy(row_C[1:])
    wanted_NV, found_NV = torch.from_numpy(np.array(logs_NV)), _logs(model, row_C)
    guess_N = found_NV.argmax(-1)
    return (
        functional.nll_loss(found_NV, next_N).item(),
        functional.kl_div(found_NV, wanted_NV, log_target=True, reduction="batchmean").item(),
        (guess_N == wanted_NV.argmax(-1)).double().mean().item(),
        (guess_N == next_N).double().mean().item(),
    )
