"""A local task of multiple choice: which of four goes on from here?

The beginning and its continuation stand together in a held-out window. The three wrong
continuations stand at the same place in other windows of the same source, so none is told by its
kind of text. The model chooses the one to which it gives the greatest probability. One in four is
guessed.
"""

from collections.abc import Mapping

import numpy as np
import torch

from monolane.hf import LaneformerForCausalLM
from monolane.tune import swift

CHOICES, BEGINNING, CONTINUATION = 4, 32, 16


def choice_items(rows_RC: np.ndarray, count: int) -> np.ndarray:
    """Return ``count`` items [I, 4, 48] out of windows [R, C]; the first of the four is right."""
    rows, width = rows_RC.shape
    length = BEGINNING + CONTINUATION
    if rows < CHOICES or count > rows * (width // length):
        raise SystemExit(
            f"expected {count} items of {length} tokens in {CHOICES} windows or more, got {rows} "
            f"windows of {width}; give it more of the text"
        )
    items = []
    for number in range(count):
        row, begin = number % rows, number // rows * length
        middle, end = begin + BEGINNING, begin + length
        others = (rows_RC[(row + i) % rows, middle:end] for i in range(CHOICES))
        items.append([np.concatenate([rows_RC[row, begin:middle], other]) for other in others])
    return np.array(items)


@torch.inference_mode()
def right_choices(
    model: LaneformerForCausalLM, items: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Return the share of items [I, 4, 48] that ``model`` gets right, by source and for ``all``."""
    with swift(model):
        right = {
            kind: [_choose(model, ids_4C) == 0 for ids_4C in items_I4C]
            for kind, items_I4C in items.items()
        }
    right["all"] = [found for kind in items for found in right[kind]]
    return {kind: float(np.mean(found)) for kind, found in right.items()}


def _choose(model: LaneformerForCausalLM, ids_4C: np.ndarray) -> int:
    tokens = torch.from_numpy(ids_4C)
    logs_4CV = model(input_ids=tokens, use_cache=False).logits.log_softmax(-1)
    told_4C = logs_4CV[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    return int(told_4C[:, -CONTINUATION:].sum(1).argmax())
